"""One taker of part: its processes, and what it is asked to do. Everybody is measured by the same lines of the same bodies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bench.peers.catalog import ADAPTERS, NODE, Peer
from redsched.bench import load, shapes
from redsched.bench.shapes import Shape
from redsched.bench.site import Site
from redsched.bench.stats import quantile, rate_of_rest
from redsched.bench.trace import faults, gaps_ms

SHAPES: dict[str, Shape] = {"dag20": shapes.dag20(), "hop": shapes.chain(50), "flat": shapes.chain(1)}
CHAINS = 5
PILOT = 20
STALL_S = 20.0
ROOT = Path(__file__).parents[2]


class Submitted(NamedTuple):
    runs: list[str]
    begun_ns: int
    ended_ns: int


class Taker(Protocol):
    """Somebody who takes part."""

    flat_after: bool

    def start(self) -> None: ...
    def start_workers(self) -> None: ...
    def stop_workers(self) -> None: ...
    def submit(self, workload: str, prefix: str, count: int) -> Submitted: ...
    def checked(self, shape: Shape) -> Shape: ...
    def stop(self) -> None: ...


class Ours:
    """redsched, with schedulers and workers as the site says."""

    flat_after = True

    def __init__(self, site: Site) -> None:
        self.site = site
        self.dags: dict[str, list[str]] = {}

    def start(self) -> None:
        for name, shape in SHAPES.items():
            self.dags[name] = load.register(self.site, name, shape)
        self.site.start("scheduler", self.site.setup.schedulers or 1)
        self.start_workers()

    def start_workers(self) -> None:
        self.site.start_workers(self.site.setup.workers or 1)

    def stop_workers(self) -> None:
        self.site.stop("worker")

    def submit(self, workload: str, prefix: str, count: int) -> Submitted:
        begun = time.monotonic_ns()
        runs = load.submit(self.site, self.dags[workload], count)
        return Submitted(runs, begun, time.monotonic_ns())

    def checked(self, shape: Shape) -> Shape:
        return shape

    def stop(self) -> None:
        self.site.stop()


class Theirs:
    """A peer: a process that submits, and its workers, each in a process group of its own."""

    def __init__(self, peer: Peer, site: Site) -> None:
        self.peer, self.site, self.flat_after = peer, site, peer.flat_after
        self.workers: list[subprocess.Popen[Any]] = []
        self.submitter: subprocess.Popen[str] | None = None

    def _environment(self) -> dict[str, str]:
        port = (self.site.settings.redis or "").rpartition(":")[2].partition("/")[0]
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith("REDSCHED_")},
            "PEER_PORT": port,
            "PEER_TRACE": str(self.site.trace.path),
            "PEER_SHAPES": json.dumps(SHAPES),
            "PEER_MODULES": str(NODE),
            "PYTHONPATH": os.pathsep.join([str(ADAPTERS), str(ROOT)]),
        }

    def _popen(self, words: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
        with (self.site.folder / "peer.log").open("ab") as log:
            return subprocess.Popen(
                words, env=self._environment(), cwd=ADAPTERS, stderr=log, start_new_session=True, **more
            )

    def start(self) -> None:
        self.submitter = self._popen(
            self.peer.submit_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()
        self.start_workers()

    def start_workers(self) -> None:
        for _ in range(self.peer.count):
            self.workers.append(
                self._popen(self.peer.work_command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            )

    def stop_workers(self) -> None:
        end_all(self.workers)
        self.workers = []

    def submit(self, workload: str, prefix: str, count: int) -> Submitted:
        assert self.submitter and self.submitter.stdin
        self.submitter.stdin.write(f"{workload} {prefix} {count}\n")
        self.submitter.stdin.flush()
        said = json.loads(self._answer())
        return Submitted([f"{prefix}.{i}" for i in range(count)], said["begun"], said["ended"])

    def _answer(self) -> str:
        assert self.submitter and self.submitter.stdout
        while line := self.submitter.stdout.readline():
            if line.startswith(("ready", "{")):
                return line
        last = (self.site.folder / "peer.log").read_text(errors="replace").splitlines()[-3:]
        raise RuntimeError(f"{self.peer.name} ended by itself: {' | '.join(last)}")

    def checked(self, shape: Shape) -> Shape:
        return self.peer.checked(shape)

    def stop(self) -> None:
        self.stop_workers()
        if self.submitter:
            end_all([self.submitter])


def end_all(processes: Sequence[subprocess.Popen[Any]]) -> None:
    """SIGTERM to each group, SIGKILL to what is left of it."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        end = time.monotonic() + patience
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))


# ---- the contest


def contest(taker: Taker, site: Site, seconds: float) -> dict[str, Any]:
    """dag20, hop and flat, each about so many seconds long. Sizes follow from how fast a few runs are."""
    try:
        taker.start()
        _once(taker, site, "dag20", "warm", 2)
        hops = _hops(taker, site)
        pilot = _once(taker, site, "dag20", "pilot", PILOT)["tasks_per_s"]
        many = max(PILOT, min(2000, int(pilot * seconds / 20)))
        sizes, before = _bytes(site), site.counters()
        numbers = _once(taker, site, "dag20", "dag20", many)
        time.sleep(1)  # for acknowledgements and results that come after the last body
        spent, left = site.counters().since(before), _bytes(site) - sizes
        flat = _flat(taker, site, max(500, min(10_000, int(numbers["tasks_per_s"] * seconds))))
    finally:
        taker.stop()
    return {
        "dag20_runs": many,
        **{f"dag20_{name}": value for name, value in numbers.items()},
        "dag20_redis_us_per_task": spent.cpu_us / (many * 20),
        "dag20_redis_commands_per_task": spent.commands / (many * 20),
        "bytes_per_run": left / many,
        **hops,
        **flat,
    }


def _bytes(site: Site) -> int:
    return sum(size for _, size in site.key_sizes())


def _once(taker: Taker, site: Site, workload: str, prefix: str, count: int) -> dict[str, Any]:
    """All at once, until the last body."""
    shape = SHAPES[workload]
    site.trace.clear()
    said = taker.submit(workload, prefix, count)
    site.trace.wait(count * len(shape), STALL_S)
    lines = site.trace.lines
    last = max((line.ns for line in lines), default=said.begun_ns + 1)
    return {
        "tasks_per_s": len(lines) / ((last - said.begun_ns) / 1e9),
        "submitted_runs_per_s": count / ((said.ended_ns - said.begun_ns) / 1e9),
        **faults(lines, said.runs, taker.checked(shape))._asdict(),
    }


def _hops(taker: Taker, site: Site) -> dict[str, float]:
    hops: list[float] = []
    for i in range(CHAINS):
        _once(taker, site, "hop", f"hop{i}", 1)
        hops += gaps_ms(site.trace.lines, list(SHAPES["hop"]))
    return {"hop_ms_p50": quantile(hops, 0.5), "hop_ms_p99": quantile(hops, 0.99), "hops": len(hops)}


def _flat(taker: Taker, site: Site, count: int) -> dict[str, float]:
    """Enqueued while nobody works, then drained; without the first tenth, in which workers still start."""
    if taker.flat_after:
        taker.stop_workers()
    site.trace.clear()
    said = taker.submit("flat", "flat", count)
    if taker.flat_after:
        taker.start_workers()
    site.trace.wait(count, STALL_S)
    lost, doubled, _ = faults(site.trace.lines, said.runs, SHAPES["flat"])
    return {
        "flat_tasks": count,
        "flat_enqueued_per_s": count / ((said.ended_ns - said.begun_ns) / 1e9),
        "flat_drain_per_s": rate_of_rest(load.seconds_of(site.trace.lines)),
        "flat_lost": lost,
        "flat_doubled": doubled,
    }
