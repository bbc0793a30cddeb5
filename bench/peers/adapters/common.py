"""What all peers share: the shapes, the body that writes one line, and the talk with `bench.peers`. Standard library only,
because it runs in the venv of each peer.

`bench.peers` says `<workload> <prefix> <count>` a line; the answer is one JSON line with when submitting began and ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redsched.bench import shapes

PORT = int(os.environ.get("PEER_PORT", "0"))
URL = f"redis://127.0.0.1:{PORT}/0"
SHAPES = {"dag20": shapes.dag20(), "hop": shapes.chain(50), "flat": shapes.chain(1)}
# Where a peer has no joins of single tasks: a layer starts when the one before has ended.
LAYERS = [
    ["t0"],
    *([f"t{i}" for i in range(a, b)] for a, b in ((1, 7), (7, 13), (13, 17), (17, 19), (19, 20))),
]

_trace = -1


def mark(run: str, task: str) -> None:
    """The body of every task."""
    global _trace
    at = time.monotonic_ns()
    if _trace < 0:
        _trace = os.open(os.environ["PEER_TRACE"], os.O_WRONLY | os.O_APPEND)
    os.write(_trace, f"{run}\t{task}\t{at}\n".encode())


def layers_of(workload: str) -> list[list[str]]:
    return LAYERS if workload == "dag20" else [[task] for task in SHAPES[workload]]


def downstream(workload: str, task: str) -> list[tuple[str, int]]:
    """The tasks that need this one, each with how many it needs."""
    return [(name, len(needs)) for name, needs in SHAPES[workload].items() if task in needs]


def roots(workload: str) -> list[str]:
    return [name for name, needs in SHAPES[workload].items() if not needs]


def serve(submit: Callable[[str, list[str]], Any]) -> None:
    """Submit runs as told; `submit` gets the workload and the runs' names."""
    print("ready", flush=True)
    for line in sys.stdin:
        workload, runs = _asked(line)
        begun = time.monotonic_ns()
        submit(workload, runs)
        _answer(begun)


async def serve_async(submit: Callable[[str, list[str]], Awaitable[Any]]) -> None:
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        workload, runs = _asked(line)
        begun = time.monotonic_ns()
        await submit(workload, runs)
        _answer(begun)


def _asked(line: str) -> tuple[str, list[str]]:
    workload, prefix, count = line.split()
    return workload, [f"{prefix}.{i}" for i in range(int(count))]


def _answer(begun: int) -> None:
    print(json.dumps({"begun": begun, "ended": time.monotonic_ns()}), flush=True)
