"""Schedulers and workers as processes against a server, in a namespace of their own; what bodies did is read from a file.

A body appends `run task attempt pid` and maybe one more word, so that what was executed is known without asking redsched.
Waits are for states and events, never for a time to pass. `close` kills everything and asserts that no process is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from redis import Redis

from redsched.client import Client
from redsched.definition.model import DagSpec
from redsched.settings import Settings

T = TypeVar("T")
Tasks = dict[str, dict[str, Any]]

ROOT = Path(__file__).parents[2]
FOREVER = "sleep 300"
SKIP, FAIL = "exit 99", "exit 1"
BODIES = """
import os, sys, threading, time
from redsched import Retry, context

FILE = os.open(os.environ["FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def line(word=""):
    c = context()
    os.write(FILE, f"{c.run} {c.task} {c.attempt} {os.getpid()} {word}".rstrip().encode() + b"\\n")

def ok():
    line()

def stamped(seconds):
    line(f"begin={time.monotonic_ns()}")
    time.sleep(seconds)
    line(f"end={time.monotonic_ns()}")

def beats(seconds):
    for _ in range(int(seconds * 50)):
        line(f"beat={time.monotonic_ns()}")
        time.sleep(0.02)
    line(f"end={time.monotonic_ns()}")

def fail_slowly_at(attempt):
    line()
    if context().attempt < attempt:
        raise Retry(0)
    raise ValueError("now")

def kill_group():
    line()
    if context().attempt == 1:
        os.killpg(0, 9)

def hold_the_lock(seconds):
    line()
    turns, over = [0], threading.Event()
    def other():
        while not over.wait(0.005):
            turns[0] += 1
    threading.Thread(target=other).start()
    sys.setswitchinterval(600)
    end = time.monotonic() + seconds
    before = turns[0]
    while time.monotonic() < end:
        sum(range(10**6))
    after = turns[0]
    over.set()
    return after - before
"""


def line(word: str = "") -> str:
    """Shell: leave a line. It is short and appended, so it is one write."""
    values = f'"$REDSCHED_RUN" "$REDSCHED_TASK" "$REDSCHED_ATTEMPT" $$ "{word}"'
    return f"""printf '%s %s %s %s %s\\n' {values} >> "$FILE\""""


def sh(*commands: str) -> dict[str, Any]:
    """A task that leaves its line and then does this."""
    return {"run": "; ".join([line(), *commands])}


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
    return {"run": f"{first}; {line()}; if [ $FIRST = 0 ]; then {command}; else {otherwise}; fi"}


def needs(*names: str, rule: str | None = None) -> dict[str, Any]:
    return {"needs": list(names), **({"trigger_rule": rule} if rule else {})}


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
    run: str
    task: str
    attempt: int
    pid: int
    word: str

    @property
    def kind(self) -> str:
        return self.word.partition("=")[0]

    @property
    def stamp(self) -> float:
        """Seconds."""
        return int(self.word.partition("=")[2]) / 1e9


class Process:
    """One `redsched scheduler` or `redsched worker`."""

    def __init__(self, kind: str, words: Iterable[str], folder: Path, env: dict[str, str]) -> None:
        self.kind = kind
        self.told = False
        self.log = folder / f"{kind}-{secrets.token_hex(3)}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "redsched", kind, *words],
                cwd=folder,
                env=env,
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
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        assert self.alive, self.said
        self.process.send_signal(number)

    def kill(self) -> None:
        self.told = True
        self.process.kill()
        self.process.wait()

    def ended(self, seconds: float = 20) -> int:
        """Its exit code, when it has ended as it was told."""
        self.told = True
        return self.process.wait(seconds)


class Installation:
    """Processes, their client and their folder. Commands run in the folder, which is where gates are opened."""

    def __init__(self, folder: Path, url: str, *, lease_ms: int = 1000, worker_lease_ms: int = 3000) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "lines"
        (folder / "bodies.py").write_text(BODIES)
        self.settings = Settings(
            redis=url,
            namespace="c" + secrets.token_hex(4),
            shards=12,
            lease_ms=lease_ms,
            worker_lease_ms=worker_lease_ms,
        )
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("REDSCHED_")} | {
            "REDSCHED_REDIS_URL": url,
            "REDSCHED_NAMESPACE": self.settings.namespace,
            "REDSCHED_SHARDS": "12",
            "REDSCHED_LEASE_MS": str(lease_ms),
            "REDSCHED_WORKER_LEASE_MS": str(worker_lease_ms),
            "PYTHONPATH": str(ROOT),
            "FILE": str(self.file),
            "CASES_FOLDER": str(folder),
        }
        self.client = Client(settings=self.settings)
        self.processes: list[Process] = []

    # ---- processes

    def start(
        self, schedulers: int = 1, workers: int = 1, *, concurrency: int = 2, pools: Iterable[str] = ()
    ) -> tuple[list[Process], list[Process]]:
        """When all shards have owners and all workers are known."""
        ones = [self.process("scheduler") for _ in range(schedulers)]
        others = [self.worker(concurrency, pools) for _ in range(workers)]
        self.ready([*ones, *others])
        return ones, others

    def worker(self, concurrency: int = 2, pools: Iterable[str] = (), *words: str) -> Process:
        for pool in pools:
            words = (*words, "--pool", pool)
        return self.process("worker", "--concurrency", str(concurrency), *words, str(self.folder))

    def process(self, kind: str, *words: str) -> Process:
        made = Process(kind, words, self.folder, self.env)
        self.processes.append(made)
        return made

    def ready(self, processes: Iterable[Process]) -> None:
        wanted = list(processes)

        def missing() -> list[str]:
            workers = {w.get("pid") for w in self.client.workers()}
            owners = [str(s["owner"]) for s in self.client.shards()]
            for process in wanted:
                assert process.alive, process.said
            owning = {int(o.split(":")[1]) for o in owners if o.count(":") >= 2}
            at_work = workers | owning
            late = [p.said for p in wanted if p.pid not in at_work]
            return late if late or None not in owners else ["a shard has no owner"]

        until(lambda: not missing(), lambda: f"not at work: {missing()}")

    def everybody(self) -> dict[int, str]:
        """All processes that come from here, whatever group or session they went to."""
        mark = f"CASES_FOLDER={self.folder}\0".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                ours = entry.name.isdecimal() and mark in (entry / "environ").read_bytes()
                if ours and alive(int(entry.name)):
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ").strip()
        return found

    def bodies(self, task: str, run: str) -> dict[int, str]:
        """Processes that a command is or has started."""
        marks = [f"REDSCHED_TASK={task}\0".encode(), f"REDSCHED_RUN={run}\0".encode()]
        found = {}
        for pid, words in self.everybody().items():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/environ").read_bytes()
                if all(mark in text for mark in marks):
                    found[pid] = words
        return found

    def close(self) -> None:
        """Nobody has died by itself. Kill hard; what bodies had started ends with their workers."""
        self.client.close()
        print(*(f"--- {p.kind} {p.pid}\n{p.said[-4000:]}" for p in self.processes), sep="\n")
        wrong = [p.said for p in self.processes if not (p.told or p.alive) or "Traceback" in p.said]
        for process in self.processes:
            process.kill()
        try:
            until(lambda: not self.everybody(), lambda: f"left behind: {self.everybody()}", 10)
        finally:
            for pid in self.everybody():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert not wrong, wrong

    def forget(self) -> None:
        """Give the server its memory back."""
        with Redis.from_url(self.settings.redis or "") as redis:
            for keys in batches(redis.scan_iter(match=f"{{{self.settings.namespace}:*", count=1000), 500):
                redis.unlink(*keys)

    # ---- work

    def cli(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "redsched", *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.cli(*words, "--json").stdout)

    def dag(self, dag: str, tasks: Tasks, **more: Any) -> None:
        self.client.register(DagSpec.model_validate({"dag": dag, "tasks": tasks, **more}))

    def trigger(self, dag: str, **how: Any) -> str:
        run: str = self.client.trigger(dag, **how)["run"]
        return run

    def run(self, dag: str, tasks: Tasks, **more: Any) -> dict[str, Any]:
        """Register, trigger, wait for the end."""
        self.dag(dag, tasks, **more)
        return self.wait(dag, self.trigger(dag))

    def wait(self, dag: str, run: str, seconds: float = 30) -> dict[str, Any]:
        try:
            return self.client.wait(dag, run, seconds)
        except TimeoutError:
            print(*self.client.explain(dag, run), sep="\n")
            raise

    def wait_all(self, dag: str, runs: Iterable[str], seconds: float = 60) -> list[dict[str, Any]]:
        end = time.monotonic() + seconds
        return [self.wait(dag, r, max(0.1, end - time.monotonic())) for r in runs]

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
        def used() -> tuple[int, int]:
            shown = self.client.pool(pool)
            return shown["used"], shown["waiting"]

        until(lambda: used() == (0, 0), lambda: f"pool {pool} holds {used()}")

    # ---- proof

    def lines(self, run: str | None = None, task: str | None = None) -> list[Line]:
        try:
            text = self.file.read_text()
        except FileNotFoundError:
            return []
        made = []
        whole = text[: text.rfind("\n") + 1]  # a write that crosses a page may be seen half
        for words in (x.rstrip().split(" ", 4) for x in whole.splitlines()):
            word = words[4] if len(words) > 4 else ""
            made.append(Line(words[0], words[1], int(words[2]), int(words[3]), word))
        return [x for x in made if run in (None, x.run) and task in (None, x.task)]

    def executed(self, run: str) -> Counter[str]:
        """How often the body of each task was begun; lines with another word than `begin=` are no beginnings."""
        return Counter(x.task for x in self.lines(run) if x.kind in ("", "begin"))

    def nth(self, count: int, run: str, task: str) -> Line:
        """The line of execution number `count`, when it has begun."""
        until(lambda: len(self.lines(run, task)) >= count, f"{task} did not begin {count} times")
        return self.lines(run, task)[count - 1]


def batches(items: Iterable[T], size: int) -> Iterable[list[T]]:
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def states(shown: dict[str, Any]) -> dict[str, str]:
    return {name: task["state"] for name, task in shown["tasks"].items()}


def attempts(shown: dict[str, Any]) -> dict[str, int]:
    return {name: task["attempt"] for name, task in shown["tasks"].items()}
