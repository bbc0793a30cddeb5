"""An installation for the length of one measurement: a server, schedulers and workers as processes of their own.

The server is private and thrown away, or the one that was named, where a namespace of its own is used and cleaned up.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from redsched import embedded
from redsched.bench import bodies
from redsched.bench.trace import Trace
from redsched.errors import RedschedError, Unavailable
from redsched.settings import Settings

START_S: Final = 30.0
STOP_S: Final = 10.0
SCRIPTS: Final = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall")
KEEP_ALL: Final = 100_000_000  # runs: what is measured must not be tidied away meanwhile


@dataclass(frozen=True)
class Setup:
    """What is to be measured. `redis`: somebody's server, instead of a private one."""

    schedulers: int = 1
    workers: int = 1
    concurrency: int = 2
    aof: bool = False
    redis: Settings | None = None
    tcp: bool = False  # a private server listens on a port of loopback, too, and is used through it


class Counters(NamedTuple):
    """What the server has counted up to a moment; times in microseconds."""

    cpu_us: float
    script_us: float
    scripts: int
    commands: int

    def since(self, before: Counters) -> Counters:
        return Counters(
            self.cpu_us - before.cpu_us,
            self.script_us - before.script_us,
            self.scripts - before.scripts,
            self.commands - before.commands,
        )


@dataclass
class Process:
    role: str
    popen: subprocess.Popen[bytes]
    log: Path


class Site:
    """See the module."""

    def __init__(self, setup: Setup, settings: Settings, folder: Path) -> None:
        from redsched.client import Client

        self.setup, self.settings, self.folder = setup, settings, folder
        self.client = Client(settings=settings)
        self.trace = Trace()
        self.processes: list[Process] = []

    def register(self, spec: dict[str, Any]) -> None:
        from redsched.definition.model import DagSpec

        self.client.register(DagSpec.model_validate(spec))

    @property
    def private(self) -> bool:
        return self.setup.redis is None

    # ---- processes

    def start(self, role: str, count: int = 1, *words: str) -> None:
        """Start processes of a role, and wait until they are seen in Redis."""
        if not count:
            return
        for _ in range(count):
            log = self.folder / f"{role}-{secrets.token_hex(3)}.log"
            with log.open("wb") as output:
                popen = subprocess.Popen(
                    [sys.executable, "-m", "redsched", role, *words],
                    env=self._environment(),
                    cwd=self.folder,  # because a redsched.toml of the folder we stand in is not what is measured
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            self.processes.append(Process(role, popen, log))
        wanted = sum(p.role == role for p in self.processes)
        seen = self.client.workers if role == "worker" else self.client.schedulers
        self.until(lambda: len(seen()) >= wanted, f"{role} did not come up")
        if role == "scheduler":
            self.until(lambda: all(s["owner"] for s in self.client.shards()), "a shard has no owner")

    def start_workers(self, count: int, concurrency: int | None = None, pools: Sequence[str] = ()) -> None:
        words = ["--concurrency", str(concurrency or self.setup.concurrency), "--grace", "1s"]
        self.start("worker", count, *words, *(w for pool in pools for w in ("--pool", pool)))

    def stop(self, role: str | None = None) -> None:
        """SIGTERM, then SIGKILL for what does not end."""
        leaving = [p for p in self.processes if role in (None, p.role)]
        self.processes = [p for p in self.processes if p not in leaving]
        for process in leaving:
            process.popen.terminate()
        for process in leaving:
            try:
                process.popen.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()

    def _environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("REDSCHED_") or k == "REDSCHED_DEBUG"}
        for field in fields(Settings):
            value = getattr(self.settings, field.name)
            if field.name not in ("embedded", "data", "redis") and value is not None:
                env[f"REDSCHED_{field.name.upper()}"] = str(value)
        source = str(Path(__file__).parents[2])
        return env | {
            "REDSCHED_REDIS_URL": self.settings.redis or "",
            "REDSCHED_PARENT_PID": str(os.getpid()),  # they end with us, also if we are killed
            "TMPDIR": str(self.folder),
            bodies.VARIABLE: str(self.trace.path),
            "PYTHONPATH": os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def until(self, condition: Callable[[], Any], what: str, seconds: float = START_S) -> None:
        """Raises Unavailable, with the last lines of a process that has ended, if it takes too long."""
        end = time.monotonic() + seconds
        while not condition():
            for process in self.processes:
                if process.popen.poll() is not None:
                    last = process.log.read_text(errors="replace").splitlines()[-3:]
                    raise Unavailable(f"a {process.role} ended by itself: {' | '.join(last)}")
            if time.monotonic() > end:
                raise Unavailable(f"{what} within {seconds:g} s")
            time.sleep(0.01)

    # ---- what it costs

    def counters(self) -> Counters:
        infos = self._infos()
        calls = [i.get(name, {}) for i in infos for name in SCRIPTS]
        return Counters(
            sum(i["used_cpu_user"] + i["used_cpu_sys"] for i in infos) * 1e6,
            sum(c.get("usec", 0) for c in calls),
            sum(c.get("calls", 0) for c in calls),
            sum(i["total_commands_processed"] for i in infos),
        )

    def _infos(self) -> list[dict[str, Any]]:
        """INFO of the server, or of all masters of a cluster."""
        client = self.client.store.client
        with self.client.store.translate():
            if hasattr(client, "nodes_manager"):
                return list(client.info("all", target_nodes=client.PRIMARIES).values())
            return [client.info("all")]

    def cpu_s(self, role: str) -> float:
        """CPU seconds of all processes of a role with their children; NaN where there is no /proc."""
        if not Path("/proc/self/schedstat").exists():
            return float("nan")
        ours = {p.popen.pid for p in self.processes if p.role == role}
        spent_ns = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (int(entry.name) in ours or _parent(entry) in ours):
                for thread in entry.glob("task/*/schedstat"):
                    spent_ns += int(thread.read_text().split()[0])
        return spent_ns / 1e9

    def bytes_by_key(self) -> Counter[str]:
        """Bytes of all keys of the namespace, by cell and name: `s:runs`, `p:entries` …"""
        sizes: Counter[str] = Counter()
        for key, size in self.key_sizes(self._ours):
            cell, _, name = key.decode().partition("}:")
            sizes[f"{cell.split(':')[1]}:{name.split(':')[0]}"] += size
        return sizes

    def key_sizes(self, pattern: str = "*") -> Iterator[tuple[bytes, int]]:
        """Keys with the bytes that each takes, all of its elements counted."""
        for some in self._keys(pattern):
            with self.client.store.translate():
                pipe = self.client.store.client.pipeline(transaction=False)
                for key in some:
                    pipe.memory_usage(key, samples=0)
                found = pipe.execute()
            yield from ((key, size or 0) for key, size in zip(some, found, strict=True))

    @property
    def _ours(self) -> str:
        return f"{{{self.settings.namespace}:*"

    def _keys(self, pattern: str) -> Iterator[list[bytes]]:
        """The keys, some at a time."""
        some: list[bytes] = []
        with self.client.store.translate():
            for key in self.client.store.client.scan_iter(pattern, count=1000):
                some.append(key)
                if len(some) == 500:
                    yield some
                    some = []
        if some:
            yield some

    # ---- end

    def close(self) -> None:
        self.stop()
        self.trace.close()
        if not self.private:
            with contextlib.suppress(RedschedError):
                self._forget()
        self.client.close()

    def _forget(self) -> None:
        for some in list(self._keys(self._ours)):
            with self.client.store.translate():
                pipe = self.client.store.client.pipeline(transaction=False)
                for key in some:
                    pipe.unlink(key)
                pipe.execute()


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has just ended
        return 0


@contextmanager
def site(setup: Setup) -> Iterator[Site]:
    """The installation, with its schedulers and workers up."""
    folder = Path(tempfile.mkdtemp(prefix="redsched-bench-"))
    try:
        with _server(setup, folder) as settings:
            made = Site(setup, settings, folder)
            try:
                made.start("scheduler", setup.schedulers)
                made.start_workers(setup.workers)
                yield made
            finally:
                made.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _server(setup: Setup, folder: Path) -> Iterator[Settings]:
    namespace = f"bench-{secrets.token_hex(4)}"
    if setup.redis is not None:
        yield replace(setup.redis, namespace=namespace, retention_runs=KEEP_ALL)
        return
    options = {} if setup.aof else {"appendonly": "no"}
    data = folder / "server"
    try:
        if setup.tcp:
            port = _free_port()
            options |= {"port": str(port), "bind": "127.0.0.1"}
        url = embedded.ensure(data, options)
        url = f"redis://127.0.0.1:{port}/0" if setup.tcp else url
        yield Settings(redis=url, namespace=namespace, retention_runs=KEEP_ALL)
    finally:
        embedded.stop(data)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
