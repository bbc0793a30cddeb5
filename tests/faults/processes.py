"""Real schedulers and workers on a server of the test's own: started, watched, signalled, and gone when the test ends.

Every body leaves its lines in one file, so that what ran is known from outside of redsched. Nothing here waits for a
time to pass: `until` waits for what must come, and fails when it does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from redsched import embedded
from redsched.client import Client
from redsched.definition.model import DagSpec
from redsched.settings import Settings
from tests.conftest import Server
from tests.engine.harness import DAG20

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
LEASE_MS, WORKER_LEASE_MS = 1000, 3000
# With `everysec`, a server holds back writes that it has acknowledged while an fsync is under way; kill -9 loses them.
KEPT = ("--appendonly", "yes", "--appendfsync", "no")
# A shell line that proves an execution; `say` in Python is the same. `>>` appends, and so short a line is one write.
SAY = 'echo "$REDSCHED_RUN $REDSCHED_TASK $REDSCHED_ATTEMPT $$ begun" >> "$TRAIL"'
BODIES = """
import os, signal, sys, time
from redsched import Branch, context

TRAIL = os.open(os.environ["TRAIL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def say(word="begun"):
    c = context()
    os.write(TRAIL, f"{c.run} {c.task} {c.attempt} {os.getpid()} {word}\\n".encode())

def both():
    say()
    say("ended")

def slowly(seconds):
    say()
    time.sleep(seconds)
    say("ended")

def choose():
    return Branch("a")

def take(given):
    both()
    return given

def fail():
    say()
    raise ValueError("as it should be")

def kill_group():
    say()
    if context().attempt == 1:
        os.killpg(0, signal.SIGKILL)

def hold_the_lock(seconds):
    say()
    sys.setswitchinterval(600)  # no other thread of this process gets a turn
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    say("ended")
"""


def until(condition: Callable[[], T], what: str | Callable[[], str], seconds: float = 30) -> T:
    """The condition's first true value."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"after {seconds:g} s: {what if isinstance(what, str) else what()}"
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    """Running; a zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Line(NamedTuple):
    """What a body said of itself."""

    run: str
    task: str
    attempt: int
    pid: int
    word: str


class Process:
    """One `redsched …`; its lines go to a file."""

    def __init__(
        self, site: Site, name: str, words: Sequence[str], env: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = site.folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "redsched", *words],
                cwd=site.folder,
                env=site.env if env is None else env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    def count(self, words: str) -> int:
        return sum(words in line for line in self.lines)

    def says(self, words: str, seconds: float = 30) -> None:
        """Wait for a line with these words."""
        until(lambda: self.count(words), lambda: f"{words!r} is not said: {self.lines}", seconds)

    def signal(self, number: signal.Signals) -> None:
        assert self.alive, f"{self.name} has ended: {self.lines}"
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self, seconds: float = 20) -> int:
        """Its exit code, when it has ended by itself."""
        return self.process.wait(seconds)

    def stop(self, seconds: float = 20) -> int:
        self.signal(signal.SIGTERM)
        return self.end(seconds)


class Site:
    """An installation: its server, its processes, its folder. `with Site(…) as site:`"""

    def __init__(self, folder: Path, server: Server | None, query: str = "", **settings: Any) -> None:
        self.folder = folder
        self.server = server
        self.trail_file = folder / "trail"
        (folder / "tmp").mkdir()
        (folder / "bodies.py").write_text(BODIES)
        self.settings = Settings(
            **{
                "redis": server.url + query if server else None,
                "namespace": "f",
                "shards": 12,
                "data": folder / ".redsched",
                "lease_ms": LEASE_MS,
                "worker_lease_ms": WORKER_LEASE_MS,
                **settings,
            },
        )
        self.processes: list[Process] = []
        self._client: Client | None = None

    @property
    def env(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("REDSCHED_")}
        names = (
            "namespace",
            "shards",
            "lease_ms",
            "worker_lease_ms",
            "result_limit",
            "username",
            "password",
            "db",
        )
        given = {f"REDSCHED_{n.upper()}": getattr(self.settings, n) for n in names}
        return {
            **clean,
            **{k: str(v) for k, v in given.items() if v is not None},
            **({"REDSCHED_REDIS_URL": self.settings.redis} if self.settings.redis else {}),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.folder / "tmp"),
            "TRAIL": str(self.trail_file),
            "FAULTS_SITE": str(self.folder),
        }

    def embedded_settings(self) -> Settings:
        """As soon as `up` has started its server."""
        return replace(self.settings, redis=embedded.find(self.settings.data), embedded=True)

    def keep_writes(self) -> None:
        """The embedded server writes at once what it acknowledges (see KEPT)."""
        with Client(settings=self.embedded_settings()) as client:
            client.store.client.config_set("appendfsync", "no")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Everything is killed hard, and nothing of it may be left: also what the killed ones had started."""
        if self._client:
            self._client.close()
        for process in self.processes:
            process.kill()
        embedded.stop(self.settings.data)
        self._tell()
        try:
            until(lambda: not self.everybody(), lambda: f"left behind: {self.everybody()}", 10)
        finally:
            self.kill_everybody()

    def _tell(self) -> None:
        """For who reads of a failure; pytest shows it only then."""
        for process in self.processes:
            print(f"--- {process.name}", *process.lines[-40:], sep="\n")
        print("--- trail", *(" ".join(map(str, line)) for line in self.trail()[-40:]), sep="\n")

    @property
    def redis(self) -> Server:
        assert self.server, "this site has no server of its own"
        return self.server

    # ---- processes

    def start(
        self, schedulers: int = 1, workers: int = 1, *, concurrency: int = 2, wait: bool = True
    ) -> tuple[list[Process], list[Process]]:
        """Start them all at once, and wait until all shards have owners and all workers are known."""
        ones = [self.scheduler() for _ in range(schedulers)]
        others = [self.worker("--concurrency", str(concurrency)) for _ in range(workers)]
        if wait:
            self.ready([*ones, *others])
        return ones, others

    def scheduler(self) -> Process:
        return self.process("scheduler")

    def worker(self, *words: str) -> Process:
        return self.process("worker", *words, str(self.folder))

    def process(self, kind: str, *words: str, env: dict[str, str] | None = None) -> Process:
        made = Process(self, f"{kind}{len(self.processes)}", [kind, *words], env)
        self.processes.append(made)
        return made

    def ready(self, processes: Iterable[Process]) -> None:
        """They are at work. Processes that have ended are no reason to wait."""
        wanted = list(processes)
        until(
            lambda: all(self._at_work(p) for p in wanted), lambda: f"not at work: {[p.lines for p in wanted]}"
        )

    def _at_work(self, process: Process) -> bool:
        assert process.alive, f"{process.name} has ended: {process.lines}"
        if process.name.startswith("worker"):
            return any(w.get("pid") == process.pid for w in self.client.workers())
        owners = {s["owner"] for s in self.client.shards()}
        return None not in owners and any(f":{process.pid}:" in str(o) for o in owners)

    def scheduler_names(self) -> dict[int, str]:
        """Process number -> the name under which it owns shards."""
        return {int(s["scheduler"].split(":")[1]): s["scheduler"] for s in self.client.schedulers()}

    def everybody(self) -> dict[int, str]:
        """All processes that descend from this site's, whatever group or session they went to."""
        mark = f"FAULTS_SITE={self.folder}\0".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdecimal() or not alive(int(entry.name)):
                    continue
                # A server writes its title over its environment.
                here = (entry / "cwd").readlink().is_relative_to(self.folder)
                if here or mark in (entry / "environ").read_bytes():
                    line = (entry / "cmdline").read_text(errors="replace")
                    found[int(entry.name)] = line.replace("\0", " ").strip()
        return found

    def kill_everybody(self) -> None:
        """As a power cut does; but for the test's own server."""
        until(lambda: not self._killed(), "killed, and alive")

    def _killed(self) -> dict[int, str]:
        found = self.everybody()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def of_task(self, task: str) -> dict[int, str]:
        """Processes that a body of the task (a command) is or has started."""
        mark = f"REDSCHED_TASK={task}\0".encode()
        found = {}
        for pid, line in self.everybody().items():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes():
                    found[pid] = line
        return found

    def cli(
        self, *words: str, code: int | None = 0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "redsched", *words],
            cwd=self.folder,
            env=self.env if env is None else env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert code is None or done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.cli(*words, "--json").stdout)

    # ---- work

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = Client(settings=self.settings)
        return self._client

    def dag(self, dag: str, tasks: dict[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
        return self.client.register(DagSpec.model_validate({"dag": dag, "tasks": tasks, **more}))

    def run(self, dag: str, **how: Any) -> str:
        run: str = self.client.trigger(dag, **how)["run"]
        return run

    def wait(self, dag: str, runs: str | Iterable[str], seconds: float = 30) -> list[dict[str, Any]]:
        """These runs, when all have ended."""
        listed = [runs] if isinstance(runs, str) else list(runs)
        end = time.monotonic() + seconds
        return [self.client.wait(dag, r, max(0.1, end - time.monotonic())) for r in listed]

    def state(self, dag: str, run: str, task: str) -> str:
        state: str = self.client.run(dag, run)["tasks"][task]["state"]
        return state

    # ---- proof

    def trail(self) -> list[Line]:
        try:
            text = self.trail_file.read_text()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind("\n") + 1]  # a reader may come in the middle of a write
        split = (x.split(" ", 4) for x in whole.splitlines())
        return [Line(run, task, int(attempt), int(pid), word) for run, task, attempt, pid, word in split]

    def begun(self, task: str | None = None, run: str | None = None) -> list[Line]:
        return [
            x for x in self.trail() if x.word != "ended" and task in (None, x.task) and run in (None, x.run)
        ]

    def nth(self, count: int, task: str, run: str | None = None) -> Line:
        """The line of the task's execution number `count`, as soon as it is there."""
        until(lambda: len(self.begun(task, run)) >= count, f"{task} was not begun {count} times")
        return self.begun(task, run)[count - 1]


def dag20(call: str = "bodies:both") -> dict[str, dict[str, Any]]:
    """The 20 tasks of the comparison with other schedulers."""
    return {name: {"call": call, **task} for name, task in DAG20.items()}


def executions(lines: Iterable[Line]) -> Counter[tuple[str, str]]:
    """How often each (run, task) was begun."""
    return Counter((x.run, x.task) for x in lines if x.word != "ended")


def check_order(lines: Sequence[Line], tasks: dict[str, dict[str, Any]]) -> None:
    """No body began before one of each of its upstreams had ended."""
    ended: set[tuple[str, str]] = set()
    for line in lines:
        if line.word == "ended":
            ended.add((line.run, line.task))
            continue
        early = [up for up in tasks[line.task].get("needs", ()) if (line.run, up) not in ended]
        assert not early, f"{line} began before {early} had ended"
