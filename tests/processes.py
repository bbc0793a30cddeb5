"""Real schedulers, workers and commands: started, watched, signalled, and gone when the test ends.

Every body leaves its lines in one file, `run task attempt pid word`, so that what ran is known without asking redsched.
Nothing here waits for a time to pass: `until` waits for what must come, and fails when it does not.
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

from redis import Redis

from redsched import embedded
from redsched.client import Client
from redsched.definition.model import DagSpec
from redsched.settings import Settings
from tests.conftest import Server
from tests.engine.harness import DAG20

T = TypeVar("T")
Tasks = dict[str, dict[str, Any]]

ROOT = Path(__file__).parents[1]
LEASE_MS, WORKER_LEASE_MS = 1000, 3000
# With `everysec`, a server holds back writes that it has acknowledged while an fsync is under way; kill -9 loses them.
KEPT = ("--appendonly", "yes", "--appendfsync", "no")
FOREVER = "sleep 300"
SKIP, FAIL = "exit 99", "exit 1"
BODIES = """
import os, signal, sys, threading, time
from redsched import Branch, Retry, context

TRAIL = os.open(os.environ["TRAIL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def say(word="begun"):
    c = context()
    os.write(TRAIL, f"{c.run} {c.task} {c.attempt} {os.getpid()} {word} {time.monotonic_ns()}\\n".encode())

def ok():
    say()

def both():
    say()
    say("ended")

def slowly(seconds):
    say()
    time.sleep(seconds)
    say("ended")

def beats(seconds):
    say()
    for _ in range(int(seconds * 50)):
        time.sleep(0.02)
        say("beat")
    say("ended")

def choose():
    return Branch("a")

def take(given):
    both()
    return given

def fail_slowly_at(attempt):
    say()
    if context().attempt < attempt:
        raise Retry(0)
    raise ValueError("now")

def kill_group():
    say()
    if context().attempt == 1:
        os.killpg(0, signal.SIGKILL)

def hold_the_lock(seconds):
    say()
    turns, over = [0], threading.Event()
    def other():
        while not over.wait(0.005):
            turns[0] += 1
    threading.Thread(target=other).start()
    sys.setswitchinterval(600)  # no other thread of this process gets a turn
    before, end = turns[0], time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10**6))
    after = turns[0]
    over.set()
    return after - before
"""


def line(word: str = "begun") -> str:
    """Shell: leave a line, as `say` does in Python. `>>` appends, and so short a line is one write."""
    return f'echo "$REDSCHED_RUN $REDSCHED_TASK $REDSCHED_ATTEMPT $$ {word}" >> "$TRAIL"'


SAY = line()


def sh(*commands: str) -> dict[str, Any]:
    """A task that leaves its line and then does this."""
    return {"run": "; ".join([SAY, *commands])}


def branch(*names: str) -> str:
    return f"echo '::branch:: {json.dumps(names)}'"


def gate(name: str) -> str:
    """Shell: wait until the test has opened it."""
    return f"until [ -e {name} ]; do sleep 0.02; done"


def first_time(command: str, otherwise: str = "true") -> dict[str, Any]:
    """A task that does one thing in its first execution in a run, another in those after it.

    Who is killed as soon as its line is there has already taken note that it was the first.
    """
    first = 'mkdir "first.$REDSCHED_RUN.$REDSCHED_TASK" 2>&-; FIRST=$?'
    return {"run": f"{first}; {SAY}; if [ $FIRST = 0 ]; then {command}; else {otherwise}; fi"}


def needs(*names: str, rule: str | None = None) -> dict[str, Any]:
    return {"needs": list(names), **({"trigger_rule": rule} if rule else {})}


def dag20(call: str = "bodies:both") -> Tasks:
    """The 20 tasks of the comparison with other schedulers."""
    return {name: {"call": call, **task} for name, task in DAG20.items()}


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
    """What a body said of itself; `at` where it told the time too."""

    run: str
    task: str
    attempt: int
    pid: int
    word: str
    at: float = 0.0

    @classmethod
    def read(cls, text: str) -> Self:
        run, task, attempt, pid, word, *at = text.split(" ")
        return cls(run, task, int(attempt), int(pid), word, *(int(ns) / 1e9 for ns in at))


class Process:
    """One `redsched …`; its lines go to a file."""

    def __init__(
        self, site: Site, name: str, words: Sequence[str], env: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.told = False  # to end
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
    def failed(self) -> bool:
        """It has ended, and neither by our word nor by kill -9; or it was surprised."""
        died = not self.told and self.process.poll() not in (None, -signal.SIGKILL)
        return died or self.count("Traceback") > 0

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
        self.told = True
        self.process.kill()
        self.process.wait()

    def end(self, seconds: float = 20) -> int:
        """Its exit code, when it has ended as it was told."""
        self.told = True
        return self.process.wait(seconds)

    def stop(self, seconds: float = 20) -> int:
        self.signal(signal.SIGTERM)
        return self.end(seconds)


class Site:
    """An installation: its server, its processes, its folder, where gates are opened. `with Site(…) as site:`"""

    def __init__(self, folder: Path, server: Server | None, query: str = "", **settings: Any) -> None:
        self.folder = folder
        self.server = server
        self.trail_file = folder / "trail"
        (folder / "tmp").mkdir(parents=True)
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
        self.extra_env: dict[str, str] = {}
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
            "TEST_SITE": str(self.folder),
            **self.extra_env,
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
        """Nobody has died by itself. Everything is killed hard, and nothing may be left, of what the killed had started too."""
        if self._client:
            self._client.close()
        failed = [p.lines for p in self.processes if p.failed]
        for process in self.processes:
            process.kill()
        embedded.stop(self.settings.data)
        self._tell()
        try:
            until(lambda: not self.everybody(), lambda: f"left behind: {self.everybody()}", 10)
        finally:
            self.kill_everybody()
        assert error or not failed, failed

    def _tell(self) -> None:
        """For who reads of a failure; pytest shows it only then."""
        for process in self.processes:
            print(f"--- {process.name}", *process.lines[-40:], sep="\n")
        print("--- trail", *(" ".join(map(str, line)) for line in self.trail()[-40:]), sep="\n")

    def forget(self) -> None:
        """Give a server that others use too its memory back."""
        with Redis.from_url(self.settings.redis or "") as redis:
            while keys := list(redis.scan_iter(match=f"{{{self.settings.namespace}:*", count=1000)):
                redis.unlink(*keys)

    @property
    def redis(self) -> Server:
        assert self.server, "this site has no server of its own"
        return self.server

    # ---- processes

    def start(
        self,
        schedulers: int = 1,
        workers: int = 1,
        *,
        concurrency: int = 2,
        pools: Iterable[str] = (),
        wait: bool = True,
    ) -> tuple[list[Process], list[Process]]:
        """Start them all at once, and wait until all shards have owners and all workers are known."""
        ones = [self.scheduler() for _ in range(schedulers)]
        others = [self.worker(concurrency=concurrency, pools=pools) for _ in range(workers)]
        if wait:
            self.ready([*ones, *others])
        return ones, others

    def scheduler(self) -> Process:
        return self.process("scheduler")

    def worker(self, *words: str, concurrency: int | None = None, pools: Iterable[str] = ()) -> Process:
        served = [word for pool in pools for word in ("--pool", pool)]
        wide = ["--concurrency", str(concurrency)] if concurrency else []
        return self.process("worker", *wide, *served, *words, str(self.folder))

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
        mark = f"TEST_SITE={self.folder}\0".encode()
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

    def of_task(self, task: str, run: str | None = None) -> dict[int, str]:
        """Processes that a body of the task (a command) is or has started."""
        marks = [f"REDSCHED_TASK={task}\0".encode(), f"REDSCHED_RUN={run}\0".encode() if run else b""]
        found = {}
        for pid, line in self.everybody().items():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/environ").read_bytes()
                if all(mark in text for mark in marks):
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
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.cli(*words, "--json").stdout)

    # ---- work

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = Client(settings=self.settings)
        return self._client

    def dag(self, dag: str, tasks: Tasks, **more: Any) -> dict[str, Any]:
        return self.client.register(DagSpec.model_validate({"dag": dag, "tasks": tasks, **more}))

    def run(self, dag: str, **how: Any) -> str:
        run: str = self.client.trigger(dag, **how)["run"]
        return run

    def done(self, dag: str, tasks: Tasks, **more: Any) -> dict[str, Any]:
        """Register, trigger, wait for the end."""
        self.dag(dag, tasks, **more)
        return self.ended(dag, self.run(dag))

    def ended(self, dag: str, run: str, seconds: float = 30) -> dict[str, Any]:
        try:
            return self.client.wait(dag, run, seconds)
        except TimeoutError:
            print(*self.client.explain(dag, run), sep="\n")
            raise

    def wait(self, dag: str, runs: str | Iterable[str], seconds: float = 60) -> list[dict[str, Any]]:
        """These runs, when all have ended."""
        listed = [runs] if isinstance(runs, str) else list(runs)
        end = time.monotonic() + seconds
        return [self.ended(dag, r, max(0.1, end - time.monotonic())) for r in listed]

    def state(self, dag: str, run: str, task: str) -> str:
        state: str = self.client.run(dag, run)["tasks"][task]["state"]
        return state

    def becomes(self, dag: str, run: str, task: str, state: str) -> None:
        until(
            lambda: self.state(dag, run, task) == state,
            lambda: f"{task} is {self.state(dag, run, task)}, not {state}",
        )

    def watch(self, dag: str, run: str, seconds: float = 30) -> tuple[dict[str, Any], dict[str, list[str]]]:
        """The ended run, and each task's states as they were seen."""
        seen: dict[str, list[str]] = {}

        def look() -> dict[str, Any] | None:
            shown = self.client.run(dag, run)
            for name, task in shown["tasks"].items():
                states = seen.setdefault(name, [])
                if states[-1:] != [task["state"]]:
                    states.append(task["state"])
            return shown if shown["state"] in ("success", "failed", "cancelled") else None

        found = until(look, lambda: f"not ended: {seen}", seconds)
        assert found
        return found, seen

    def open(self, gate: str) -> None:
        (self.folder / gate).touch()

    def slots_free(self, pool: str = "default") -> None:
        def held() -> tuple[int, int, int]:
            shown = self.client.pool(pool)
            return shown["used"], shown["waiting"], shown["running"]

        until(lambda: held() == (0, 0, 0), lambda: f"pool {pool}: used, waiting, running {held()}")

    # ---- proof

    def trail(self, task: str | None = None, run: str | None = None) -> list[Line]:
        try:
            text = self.trail_file.read_text()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind("\n") + 1]  # a reader may come in the middle of a write
        lines = (Line.read(x) for x in whole.splitlines())
        return [x for x in lines if task in (None, x.task) and run in (None, x.run)]

    def begun(self, task: str | None = None, run: str | None = None) -> list[Line]:
        return [x for x in self.trail(task, run) if x.word == "begun"]

    def executed(self, run: str) -> Counter[str]:
        """How often the body of each task was begun."""
        return Counter(x.task for x in self.begun(run=run))

    def nth(self, count: int, task: str, run: str | None = None) -> Line:
        """The line of the task's execution number `count`, as soon as it is there."""
        until(lambda: len(self.begun(task, run)) >= count, f"{task} was not begun {count} times")
        return self.begun(task, run)[count - 1]


def states(shown: dict[str, Any]) -> dict[str, str]:
    return {name: task["state"] for name, task in shown["tasks"].items()}


def attempts(shown: dict[str, Any]) -> dict[str, int]:
    return {name: task["attempt"] for name, task in shown["tasks"].items()}


def executions(lines: Iterable[Line]) -> Counter[tuple[str, str]]:
    """How often each (run, task) was begun."""
    return Counter((x.run, x.task) for x in lines if x.word == "begun")


def check_order(lines: Sequence[Line], tasks: Tasks) -> None:
    """No body began before one of each of its upstreams had ended."""
    ended: set[tuple[str, str]] = set()
    for line in lines:
        if line.word == "ended":
            ended.add((line.run, line.task))
            continue
        early = [up for up in tasks[line.task].get("needs", ()) if (line.run, up) not in ended]
        assert not early, f"{line} began before {early} had ended"
