"""A private server with schedulers and workers as processes of their own, for the length of one measurement."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redsched import embedded
from redsched.client import Client
from redsched.settings import Settings

BODIES = Path(__file__).parent / "bodies"

# The 20-task DAG: layers of 1, 6, 6, 4, 2, 1 with 40 edges.
DAG20: dict[str, list[int]] = {"0": []}
DAG20 |= {str(i): [0] for i in range(1, 7)}
DAG20 |= {str(7 + i): [1 + i, 1 + (i + 1) % 6] for i in range(6)}
DAG20 |= {str(13 + i): [7 + i, 7 + (i + 1) % 6, 7 + (i + 2) % 6] for i in range(4)}
DAG20 |= {"17": [13, 14, 15, 16], "18": [13, 14, 15, 16], "19": [17, 18]}


@dataclass
class Installation:
    client: Client
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def counters(self) -> dict[str, float]:
        """What the server has counted: commands, microseconds of its CPU, microseconds in scripts, script calls."""
        with self.client.store.translate():
            info = self.client.store.client.info("all")
        fcall = info.get("cmdstat_fcall", {"usec": 0, "calls": 0})
        return {
            "commands": info["total_commands_processed"],
            "cpu_us": (info["used_cpu_user"] + info["used_cpu_sys"]) * 1e6,
            "script_us": fcall["usec"],
            "scripts": fcall["calls"],
            "memory": info["used_memory"],
        }

    def active(self) -> int:
        return sum(s["runs_queued"] + s["runs_running"] for s in self.client.shards())

    def cpu_s(self) -> float:
        """CPU seconds of all redsched processes, with their children."""
        ours = {p.pid for p in self.processes}
        total, tick = 0, os.sysconf("SC_CLK_TCK")
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    rest = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(entry.name) in ours or int(rest[1]) in ours:
                    total += int(rest[11]) + int(rest[12])
        return total / tick


@contextmanager
def installation(
    *, schedulers: int = 1, workers: int = 1, concurrency: int = 2, aof: bool = False
) -> Iterator[Installation]:
    folder = Path(tempfile.mkdtemp(prefix="redsched-bench-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--appendonly", "yes" if aof else "no", "--save", "", "--dir", str(folder)]
    url = f"redis://127.0.0.1:{port}/0"
    server = subprocess.Popen(
        [embedded.binary(), "--port", str(port), "--bind", "127.0.0.1", *options], stdout=subprocess.DEVNULL
    )
    _await(lambda: socket.create_connection(("127.0.0.1", port), 1).close() is None)
    made = Installation(Client(settings=Settings(redis=url)))
    made.client.set_pool("default", 1000)
    env = {**os.environ, "REDSCHED_REDIS_URL": url, "PYTHONPATH": str(BODIES.parent.parent)}
    command = [sys.executable, "-m", "redsched"]
    roles = [["scheduler"]] * schedulers
    roles += [["worker", str(BODIES), "--concurrency", str(concurrency)]] * workers
    try:
        made.processes = [subprocess.Popen([*command, *r], env=env, stderr=subprocess.DEVNULL) for r in roles]
        _await(lambda: len(made.client.workers()) == workers)
        _await(lambda: all(s["owner"] for s in made.client.shards()))
        yield made
    finally:
        for process in made.processes:
            process.terminate()
        for process in made.processes:
            process.wait()
        made.client.close()
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _await(ready: Any, timeout: float = 30.0) -> None:
    end = time.monotonic() + timeout
    while True:
        try:
            if ready():
                return
        except OSError:
            pass
        if time.monotonic() > end:
            raise TimeoutError("the installation did not come up")
        time.sleep(0.02)


def report(name: str, numbers: dict[str, Any], client: Client) -> None:
    """A table for people on stderr, one JSON document on stdout."""
    with client.store.translate():
        info = client.store.client.info("server")
    server = (
        f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
    )
    where = {
        "workload": name,
        "server": server,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": " ".join(["python", "-m", f"bench.{name}", *sys.argv[1:]]),
    }
    for key, value in {**where, **numbers}.items():
        print(f"{key:24} {value:,.2f}" if isinstance(value, float) else f"{key:24} {value}", file=sys.stderr)
    print(json.dumps({**where, **numbers}))
