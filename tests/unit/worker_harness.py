"""A worker in a process of its own, on a fake store in this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .fake_store import FakeRedis, Server

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import json, sys
from redsched.definition import python
from redsched.settings import Settings
from redsched.worker.supervisor import Worker
from tests.unit.fake_store import FakeStore
o = json.loads(sys.argv[1])
path = o.pop("socket")
settings = Settings(**o.pop("settings"))
sys.exit(Worker(settings, pools=["default"], open_store=lambda: FakeStore(path), **o).run())
"""


def wait_for(condition: Callable[[], object], timeout: float = 10.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Running; a zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class WorkerProcess:
    """`with WorkerProcess(tmp_path) as w:` … it is killed at the end, and must leave nothing behind."""

    def __init__(
        self, folder: Path, *, concurrency: int = 1, grace_s: float = 5, start: bool = True, **settings: Any
    ) -> None:
        self.folder = folder
        self.redis = FakeRedis()
        self.server = Server(self.redis, str(folder / "s"))
        self.err = folder / "worker.err"
        self.options = {
            "socket": str(folder / "s"),
            "concurrency": concurrency,
            "grace_s": grace_s,
            "paths": [str(folder)],
            "settings": settings,
            "name": "w:0",
        }
        self.process: subprocess.Popen[bytes] | None = None
        if start:
            self.start()

    def start(self) -> None:
        import json

        temp = self.folder / "tmp"
        temp.mkdir(exist_ok=True)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temp)}
        with self.err.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, json.dumps(self.options)], env=env, stderr=err, cwd=self.folder
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.server.close()

    def module(self, text: str, name: str = "jobs") -> None:
        (self.folder / f"{name}.py").write_text(text)

    def run(self, task: dict[str, Any], timeout: float = 10.0) -> Any:
        """Run one task, of a DAG of its own, to its report."""
        attempt_id = self.queue(task)
        wait_for(lambda: self.redis.reported(attempt_id), timeout)
        return self.redis.report(attempt_id)

    def queue(self, task: dict[str, Any]) -> str:
        dag = f"d{len(self.redis.specs)}"
        self.redis.dag(dag, {"t": task})
        return self.redis.queue(dag, flags="p" if self.redis.params else "")

    def children(self) -> list[int]:
        assert self.process
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                pid, parent = int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])
                if (
                    parent == self.process.pid
                    and b"guardian.py" not in (stat.parent / "cmdline").read_bytes()
                ):
                    found.append(pid)
        return found

    def signal(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def end(self, timeout: float = 10.0) -> int:
        assert self.process
        return self.process.wait(timeout)

    @property
    def lines(self) -> list[str]:
        return self.err.read_text().splitlines()
