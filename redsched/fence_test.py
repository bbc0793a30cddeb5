"""`redsched fence-test`: a scheduler that sleeps past its lease in the middle of work, on a live installation, on purpose.

It is a process of its own, takes its share of the shards, holds what a canary run offers, is stopped (SIGSTOP), loses
everything to the others, wakes, and tries each write that an owner makes. The canary has a pool and a worker of its own,
and leaves a line for each execution. Whatever ends the test, nothing of it stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Final, Self, TypeVar

from redsched.client import Client
from redsched.errors import Conflict, Fenced, NotFound, RedschedError
from redsched.keys import CANARY, shard_of
from redsched.settings import Settings

T = TypeVar("T")

PATIENCE_S: Final = 20.0
PAUSE_S: Final = 0.02
TASKS: Final = ("one", "two")


@dataclass(frozen=True)
class Try:
    """A write that the woken scheduler tried. `answer` is what Redis said."""

    write: str
    cell: str
    refused: bool
    answer: str


@dataclass
class Found:
    """What the test saw; `ok` if every write was refused and each task of the canary ran exactly once."""

    canary: str
    shard: int = -1
    sleeper: str = ""
    fence: int = 0
    successor: str = ""
    successor_fence: int = 0
    tried: list[Try] = field(default_factory=list)
    refused_writes: int = 0  # by how many the shard's own count has grown
    run_state: str = ""
    attempts: dict[str, int] = field(default_factory=dict)
    executions: dict[str, int] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        once = dict.fromkeys(TASKS, 1)
        refused = bool(self.tried) and all(x.refused for x in self.tried)
        return refused and self.run_state == "success" and self.attempts == self.executions == once

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def fence_test(settings: Settings, tell: Callable[[str], None]) -> Found:
    """Run it. Raises RedschedError if it could not be done; whatever happens, what it made is taken away."""
    name = f"{CANARY}{secrets.token_hex(3)}"
    with Trial(settings, Found(name), tell) as trial:
        trial.prepare()
        trial.fall_asleep()
        trial.wake()
        trial.judge()
        return trial.found


class Process:
    """One of the processes of the test; it dies with us."""

    def __init__(
        self, words: Sequence[str], folder: Path, settings: Settings, *, talks: bool = False
    ) -> None:
        self.log = folder / f"{words[-1].replace('/', '_')[-20:]}-{secrets.token_hex(2)}.log"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", *words],
                env=_environment(settings),
                cwd=folder,
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else log,
                stderr=log,
                text=True,
                process_group=0,  # because Ctrl-C is ours: we clean up
            )

    def check(self) -> None:
        if self.popen.poll() is not None:
            raise RedschedError(f"a process of the test has ended: {self.last_words()}")

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else f"exit code {self.popen.returncode}"

    def ask(self, **words: Any) -> dict[str, Any]:
        """Say something to the sleeper, and hear its answer."""
        self.tell(**words)
        return self.hear()

    def tell(self, **words: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            _pipe(self.popen.stdin).write(json.dumps(words) + "\n")
            _pipe(self.popen.stdin).flush()

    def hear(self) -> dict[str, Any]:
        line = _pipe(self.popen.stdout).readline()
        if not line:
            self.popen.wait()
            raise RedschedError(f"the scheduler of the test has ended: {self.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self, patience_s: float) -> None:
        """SIGTERM, if it is not stopped, and SIGKILL when the patience is over."""
        self.popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(patience_s)
        self.popen.kill()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _environment(settings: Settings) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("REDSCHED_") or k == "REDSCHED_DEBUG"}
    for one in fields(Settings):
        value = getattr(settings, one.name)
        if one.name not in ("embedded", "data", "redis") and value is not None:
            env[f"REDSCHED_{one.name.upper()}"] = str(value)
    source = str(Path(__file__).parents[1])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    more = {"REDSCHED_REDIS_URL": settings.redis or "", "REDSCHED_PARENT_PID": str(os.getpid())}
    return env | more | {"PYTHONPATH": path}


class Trial:
    """The canary, and the processes around it."""

    def __init__(self, settings: Settings, found: Found, tell: Callable[[str], None]) -> None:
        self.settings, self.found, self.tell = settings, found, tell
        self.client = Client(settings=settings)
        self.folder = Path(tempfile.mkdtemp(prefix="redsched-fence-test-"))
        self.trail = self.folder / "trail"
        self.others: list[Process] = []
        self.sleeper: Process | None = None
        self.pool = found.canary
        self.refused_before = 0
        self.begun = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        before = signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # a second Ctrl-C must not leave anything behind
        try:
            if self.sleeper:
                self.sleeper.popen.kill()
                self.sleeper.end(0)
            with contextlib.suppress(RedschedError):
                self._remove_canary()
            for process in self.others:
                process.end(5)
            with contextlib.suppress(RedschedError):
                self._remove_pool()
            self.client.close()
            shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            signal.signal(signal.SIGINT, before)

    def _remove_canary(self) -> None:
        dag = self.found.canary
        with contextlib.suppress(NotFound):
            self.client.delete(dag, force=True)
        # The name never comes back, so nobody has to know how often it was deleted.
        store = self.client.store
        with store.translate():
            store.client.hdel(store.shard.prefix(dag) + "generations", dag)

    def _remove_pool(self) -> None:
        """Nobody else has heard of it: what a killed worker of ours still held goes with it."""
        store, pool = self.client.store, self.pool
        with store.translate():
            store.client.srem(store.keys.control + "pools", pool)
            for key in store.client.scan_iter(match=store.keys.pool(pool) + "*", count=1000):
                store.client.unlink(key)

    # ---- the steps

    def prepare(self) -> None:
        """Everybody is there, and the sleeper has its share of the shards."""
        if not self.client.schedulers():
            self.tell("no scheduler is alive: starting one for the length of the test")
            self._start("a second scheduler", "redsched", "scheduler")
        self.client.set_pool(self.pool, 1)
        self.tell("starting a worker with a pool of its own, for the canary only")
        words = ("worker", "--pool", self.pool, "--concurrency", "1", "--grace", "1s")
        self._start("a worker", "redsched", *words)
        self.sleeper = Process(["redsched.fence_test"], self.folder, self.settings, talks=True)
        self.found.sleeper = self.sleeper.hear()["name"]
        self.tell(f"scheduler {self.found.sleeper} joins: the one that will sleep")
        self._until(self._balanced, "the shards did not get into balance")
        mine = [s["shard"] for s in self.client.shards() if s["owner"] == self.found.sleeper]
        if not mine:
            raise Conflict(
                f"there are {len(self.client.schedulers())} schedulers for {self.client.store.shards} shards, so one more gets none; "
                "stop one of them for this test"
            )
        self._name_canary(mine)
        self._until(lambda: any(self.pool in w["pools"] for w in self.client.workers()), "no worker came")

    def _start(self, what: str, *words: str) -> None:
        self.others.append(Process(words, self.folder, self.settings))
        self.found.started.append(what)

    def _balanced(self) -> bool:
        """Every shard has an owner that lives, and the sleeper has its share."""
        from redsched.scheduler.balance import fair_share

        live = [s["scheduler"] for s in self.client.schedulers()]
        if self.found.sleeper not in live or len(live) < 2:
            return False
        shards = self.client.shards()
        owned = sum(s["owner"] == self.found.sleeper for s in shards)
        share = fair_share(len(shards), live, self.found.sleeper)
        return all(s["owner"] in live for s in shards) and owned == share

    def _name_canary(self, mine: list[int]) -> None:
        """A name whose shard the sleeper owns. Its pool keeps the first name."""
        from redsched.definition.model import DagSpec

        pool, count = self.pool, self.client.store.shards
        while shard_of(self.found.canary, count) not in mine:
            self.found.canary = f"{CANARY}{secrets.token_hex(3)}"
        self.found.shard = shard_of(self.found.canary, count)
        line = f"echo $REDSCHED_TASK $REDSCHED_ATTEMPT >> {shlex.quote(str(self.trail))}"
        tasks = {"one": {"run": line, "pool": pool}, "two": {"run": line, "pool": pool, "needs": ["one"]}}
        about = "Made by `redsched fence-test`, which deletes it."
        spec = {"dag": self.found.canary, "description": about, "tasks": tasks}
        self.client.register(DagSpec.model_validate(spec))

    def fall_asleep(self) -> None:
        """The sleeper has applied the canary's trigger and holds its first offer; then it is stopped."""
        sleeper = self._sleeper
        sleeper.ask(hold=self.found.shard)
        run = self.client.trigger(self.found.canary, run="canary")["run"]
        held = sleeper.hear()
        self.found.fence = held["fence"]
        os.kill(sleeper.popen.pid, signal.SIGSTOP)
        self.tell(
            f"shard {self.found.shard}: {self.found.canary}/{run} is created; the sleeper, fence {held['fence']}, has read it and "
            f"holds {held['offers']} offer; SIGSTOP"
        )
        row = self._until(self._taken_over, "nobody took the shard over")
        self.found.successor, self.found.successor_fence = row["owner"], row["fence"]
        self.refused_before = row["refused_writes"]
        self.tell(f"shard {self.found.shard} is taken over by {row['owner']}, fence {row['fence']}")
        self._until(self._ended, "the canary did not end")
        self.tell(f"the canary's run has ended: {self._state()}")

    def _taken_over(self) -> dict[str, Any] | None:
        row = self._row()
        return row if row["owner"] not in (None, self.found.sleeper) else None

    def _row(self) -> dict[str, Any]:
        row: dict[str, Any] = self.client.shards()[self.found.shard]
        return row

    def _state(self) -> str:
        return str(self.client.run(self.found.canary, "canary")["state"])

    def _ended(self) -> bool:
        return self._state() not in ("queued", "running")

    def wake(self) -> None:
        """It goes on where it was."""
        sleeper = self._sleeper
        os.kill(sleeper.popen.pid, signal.SIGCONT)
        self.tell("SIGCONT: the sleeper goes on where it was, with its old fence")
        tried = sleeper.ask(go=self.found.canary)["tried"]
        self.found.tried = [Try(**one) for one in tried]
        for one in self.found.tried:
            self.tell(
                f"  {one.write} in {one.cell}: {'refused' if one.refused else 'NOT REFUSED'}, {one.answer}"
            )
        sleeper.ask(leave=True)

    def judge(self) -> None:
        """What the canary's record and its own lines say."""
        shown = self.client.run(self.found.canary, "canary")
        self.found.run_state = shown["state"]
        self.found.attempts = {name: t["attempt"] for name, t in shown["tasks"].items()}
        lines = self.trail.read_text().splitlines() if self.trail.exists() else []
        self.found.executions = dict(Counter(line.split()[0] for line in lines))
        self.found.refused_writes = self._row()["refused_writes"] - self.refused_before
        self.found.seconds = round(time.monotonic() - self.begun, 1)

    @property
    def _sleeper(self) -> Process:
        assert self.sleeper is not None
        return self.sleeper

    def _until(self, condition: Callable[[], T | None], what: str) -> T:
        end = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            for process in self.others:
                process.check()
            if self._sleeper.popen.poll() is not None:
                raise RedschedError(f"the scheduler of the test has ended: {self._sleeper.last_words()}")
            if time.monotonic() > end:
                raise RedschedError(f"{what} within {PATIENCE_S:g} s")
            time.sleep(PAUSE_S)
        return found


# ---- the sleeper, a process of its own


def sleep_and_wake(settings: Settings) -> None:
    """Says its name; then does what it is told, a line of JSON each: hold SHARD, go CANARY, leave."""
    from redsched.scheduler.loop import Scheduler, scheduler_name
    from redsched.store import Store

    store = Store.open(settings, "scheduler")
    scheduler = Scheduler(store, scheduler_name())
    _say(name=scheduler.ownership.name)
    while not _is_told():
        scheduler.turn()
    shard = int(json.loads(sys.stdin.readline())["hold"])
    _say(holds=shard)
    token = scheduler.ownership.tokens[shard]
    offers: list[Any] = []
    while not offers:
        scheduler.upkeep()
        scheduler.dispatch.pump([s for s in scheduler.wait(20) if s != shard])
        offers = store.shard.advance(shard, token, 200).offers
    _say(offers=len(offers), fence=int(token.rpartition(":")[2]))
    canary = json.loads(sys.stdin.readline())["go"]  # here it is stopped, with the offers in its hands
    _say(tried=[asdict(one) for one in _tried(store, shard, token, offers, canary)])
    sys.stdin.readline()
    scheduler.ownership.beat()  # finds what it has lost, as every scheduler does that wakes
    scheduler.ownership.leave()
    _say(left=True)


def _tried(store: Any, shard: int, token: str, offers: list[Any], canary: str) -> list[Try]:
    """Everything that an owner writes, each with the token from before the sleep."""
    pool, number = offers[0].pool, int(token.rpartition(":")[2])
    cell = f"shard {shard}"
    writes: list[tuple[str, str, Callable[[], object]]] = [
        (
            "offer",
            f"pool {pool}",
            lambda: store.pool.offer(pool, shard, number, "9007199254740991-0", offers),
        ),
        ("advance", cell, lambda: store.shard.advance(shard, token, 200, [o.attempt_id for o in offers])),
        ("ready", cell, lambda: store.shard.ready(shard, token)),
        ("due", cell, lambda: store.shard.due(shard, token, 10)),
        ("fire", cell, lambda: store.shard.fire(shard, token, [])),
        ("backfill_due", cell, lambda: store.shard.backfill_due(shard, token, 10)),
        ("pack", cell, lambda: store.shard.pack(shard, token, [(canary, "canary")])),
    ]
    return [_try(*write) for write in writes]


def _try(name: str, cell: str, write: Callable[[], object]) -> Try:
    try:
        answer = write()
    except Fenced as refusal:
        return Try(name, cell, True, str(refusal))
    return Try(name, cell, False, f"it answered {answer}")


def _say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _is_told() -> bool:
    import select

    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    """The sleeper's process. It ends with its parent, also while it is stopped."""
    import ctypes

    parent = int(os.environ.pop("REDSCHED_PARENT_PID"))
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == parent:
        from redsched.settings import load_settings

        sleep_and_wake(load_settings())


if __name__ == "__main__":
    main()
