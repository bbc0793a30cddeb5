"""The world of a simulation: its clock, its processes of which one runs at a time, and a network that a seed breaks.

At each call to Redis the seed chooses: run it, let others go first, lose the call or its reply, kill or pause the caller, let
Redis restart and forget its last writes. Time moves only here, so nothing waits for real.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from redis.exceptions import ConnectionError

from redsched.simulation.server import UNKNOWN, Server, Words

# 2026-01-01T00:00:00Z
EPOCH_MS: Final = 1_767_225_600_000
# Modules of processes that are simulated; their `time` is the world's.
CLOCKED: Final = (
    "redsched.scheduler.",
    "redsched.editing",
    "redsched.auditing",
    "redsched.audit.",
    "redsched.client",
)
# A history that is longer is one that does not end.
MOST_CALLS: Final = 25_000
STACK_BYTES: Final = 1_048_576
# Calls that put nothing on a stream, so nobody who waits for news is woken by them.
QUIET: Final = (
    "pool_heartbeat",
    "pool_start",
    "control_",
    "shard_pack",
    "shard_due",
    "shard_ready",
    "shard_acquire",
)


# Where a process that sleeps through its lease does most harm, if nobody stops it: it does so more often there.
FENCED_LATE: Final = ("redsched_pool_offer", "redsched_shard_report")


class Killed(BaseException):
    """The process is dead: nothing of it runs any more."""


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Faults:
    """How often (per call) each thing happens."""

    delay: float = 0.0
    drop: float = 0.0
    lose: float = 0.0
    repeat: float = 0.0
    kill: float = 0.0
    pause: float = 0.0
    restart: float = 0.0
    hint: float = 0.0

    KINDS = ("delay", "drop", "lose", "repeat", "kill", "pause", "restart", "hint")


NONE: Final = Faults()
SOME: Final = Faults(0.15, 0.01, 0.02, 0.01, 0.003, 0.004, 0.001, 0.004)
MANY: Final = Faults(0.3, 0.03, 0.05, 0.03, 0.01, 0.01, 0.004, 0.01)


@dataclass(eq=False)
class Actor:
    """A process. `watches`: cells whose news end its wait; `immune`: no faults happen to it."""

    name: str
    kind: str
    body: Callable[[], None]
    immune: bool = False
    wake_at: int = 0
    paused_until: int = 0
    watches: frozenset[str] = frozenset()
    cut: bool = False  # its connections broke since it last called
    dead: bool = False  # killed; nothing of it runs any more
    doomed: bool = False  # the simulation is over
    over: bool = False
    baton: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None


class World:
    """See the module. Whoever holds the baton runs; `home` is whoever made the world."""

    def __init__(self, server: Server, seed: int, faults: Faults = NONE, *, trace: bool = False) -> None:
        self.server, self.rnd, self.faults = server, Random(seed), faults
        self.now = EPOCH_MS
        self.away_until = 0  # until then Redis can't be reached
        self.actors: list[Actor] = []
        self.home = Actor("home", "home", lambda: None, immune=True)
        self.current = self.home
        self.home.baton.acquire()
        self.failure: BaseException | None = None
        self.calls = 0
        self.happened: Counter[str] = Counter()
        self.tracing = trace
        self.trace: list[str] = []
        self.digest = 0
        self.hints: deque[tuple[str, list[bytes]]] = deque(maxlen=20)  # the last that were read
        self.on_reply: Callable[[Actor, Words, Any], None] | None = None
        self.on_call: Callable[[], None] | None = None
        self.on_death: Callable[[Actor], None] | None = None
        self.on_restart: Callable[[], None] | None = None
        self.pause_ms = (4000, 30_000)
        self.most_calls = MOST_CALLS
        self.interrupted = False
        self.forgetful = True  # whether a restart of Redis loses writes

    # ---- time, as the hosts' modules see it

    def monotonic(self) -> float:
        return self.now / 1000

    def time(self) -> float:
        return self.now / 1000

    def sleep(self, seconds: float) -> None:
        self.wait(self.current, self.now + int(seconds * 1000) + 1)

    # ---- processes

    def start(self, name: str, kind: str, body: Callable[[], None], after_ms: int = 0) -> Actor:
        actor = Actor(name, kind, body, wake_at=self.now + after_ms)
        actor.baton.acquire()
        threading.stack_size(STACK_BYTES)
        actor.thread = threading.Thread(target=self._live, args=(actor,), name=name, daemon=True)
        self.actors.append(actor)
        actor.thread.start()
        return actor

    def _live(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            if not actor.doomed:
                actor.body()
            if not actor.doomed:
                self.note(actor, "left")
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever ends a process is for the one who judges
            self.fail(error if isinstance(error, Broken) else _crash(actor, error))
        actor.over = True
        self.actors.remove(actor)
        if self.on_death and not actor.doomed:
            self.on_death(actor)
        self._give(self.home if self.failure or actor.doomed else self._next())

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error

    def wait(self, actor: Actor, until: int, watches: frozenset[str] = frozenset()) -> None:
        """Others go on until then, or until there is news in a cell that is watched."""
        actor.wake_at, actor.watches = until, watches
        self._switch(actor)
        actor.watches = frozenset()

    def yield_(self, actor: Actor) -> None:
        actor.wake_at = self.now
        self._switch(actor)

    def _switch(self, actor: Actor) -> None:
        following = self.home if self.failure else self._next()
        if following is not actor:
            self._give(following)
            actor.baton.acquire()
            self.current = actor
        if actor.doomed:
            raise Killed

    def _give(self, actor: Actor) -> None:
        self.current = actor
        actor.baton.release()

    def _next(self) -> Actor:
        """Somebody who can go on now; if nobody can, time passes until somebody can."""
        everybody = [*self.actors, self.home]
        able = [a for a in everybody if a.wake_at <= self.now and a.paused_until <= self.now]
        if not able:
            self.now = min(max(a.wake_at, a.paused_until) for a in everybody)
            able = [a for a in everybody if a.wake_at <= self.now and a.paused_until <= self.now]
        return able[0] if len(able) == 1 else self.rnd.choice(able)

    def breathe(self, until: int) -> None:
        """Home lets the others go on until then. Raises what broke them, and KeyboardInterrupt for a signal."""
        self.wait(self.home, until)
        if self.failure:
            raise self.failure
        if self.interrupted:
            raise KeyboardInterrupt

    def end(self) -> None:
        """Everybody ends where they stand."""
        for actor in list(self.actors):
            actor.doomed = True
            self._give(actor)
            self.home.baton.acquire()
            assert actor.thread is not None
            actor.thread.join()
        self.current = self.home

    # ---- the network

    def trip(self, actor: Actor) -> Callable[[Sequence[Words]], list[Any]]:
        """The way of one process to Redis."""

        def go(commands: Sequence[Words]) -> list[Any]:
            if actor.doomed or actor.dead:
                raise Killed
            first = commands[0]
            if first[0] in ("XREAD", "XREADGROUP") and len(commands) == 1:
                return [self._read(actor, first)]
            return self._round(actor, commands)

        return go

    def _read(self, actor: Actor, words: Words) -> Any:
        """A blocking read is asked again when there is news."""
        block, words = _unblocked(words)
        until = self.now + block
        cells = frozenset(cell(key) for key in _streams(words))
        while True:
            (reply,) = self._round(actor, [words])
            if isinstance(reply, Exception) or reply or self.now >= until:
                return reply
            self.wait(actor, until, cells)

    def _round(self, actor: Actor, commands: Sequence[Words]) -> list[Any]:
        self.calls += 1
        if self.calls > self.most_calls:
            self.fail(Broken(f"no end after {self.most_calls} calls"))
            self._switch(actor)
        if actor.immune:
            return self.server.say(commands, self.now)
        self.now += self.rnd.randrange(2)
        fate = self._fate(commands[0])
        if fate == "delay":
            self.now += self.rnd.randrange(30)
            self.yield_(actor)
        elif fate == "kill" and self.rnd.random() < 0.5:
            self._die(actor, commands, "before")
        elif fate == "pause" and self.rnd.random() < 0.5:
            self._pause(actor, "before")
        if fate == "restart":
            self._restart()
        if fate == "hint":
            self._again()
        self._reachable(actor, commands, fate)
        return self._run(actor, commands, fate)

    def _reachable(self, actor: Actor, commands: Sequence[Words], fate: str) -> None:
        if self.now < self.away_until or fate == "drop":
            self.note(actor, "unreachable", commands)
            self._charge()
            raise ConnectionError("Error 111 connecting to the simulation: refused")
        if actor.cut:
            actor.cut = False
            self.note(actor, "cut", commands)
            raise ConnectionError("Connection closed by server.")

    def _charge(self) -> None:
        """A call that failed takes a while, too."""
        self.now += self.rnd.randrange(20)

    def _run(self, actor: Actor, commands: Sequence[Words], fate: str) -> list[Any]:
        if fate == "lose" and len(commands) > 1 and self.rnd.random() < 0.5:
            commands = commands[: self.rnd.randrange(1, len(commands))]
        replies = self.server.say(commands, self.now)
        if fate == "repeat" and commands[0][0] == "FCALL":
            self.server.say(commands, self.now)
        self.note(actor, fate or "ran", commands, replies)
        self._after(actor, commands, replies)
        if fate == "lose":
            raise ConnectionError("Connection closed by server.")
        if fate == "kill":
            self._die(actor, commands, "after")
        elif fate == "pause":
            self._pause(actor, "after")
        return replies

    def _after(self, actor: Actor, commands: Sequence[Words], replies: Sequence[Any]) -> None:
        for words, reply in zip(commands, replies, strict=True):
            if words[0] == "FCALL" and str(reply) != UNKNOWN:
                self._wake(words)
                if self.on_reply:
                    self.on_reply(actor, words, reply)
            elif words[0] == "XREADGROUP" and reply and not isinstance(reply, Exception):
                self._stamp(words, reply)
        if self.on_call:
            self.on_call()

    def _wake(self, words: Words) -> None:
        if words[1].startswith(QUIET, 9):  # after `redsched_`
            return
        news = cell(words[3])
        for other in self.actors:
            if news in other.watches:
                other.wake_at = min(other.wake_at, self.now)

    def _stamp(self, words: Words, reply: Any) -> None:
        """Note on delivered entries when that was (see `server.CLOCK`)."""
        group, consumer = words[2], words[3]
        for key, entries in reply:
            ids = [entry for entry, fields in entries if fields]
            self.hints.extend((key.decode(), fields) for _, fields in entries if fields)
            if ids:
                claim = ("XCLAIM", key, group, consumer, 0, *ids, "RETRYCOUNT", self.now, "JUSTID")
                self.server.say([claim], self.now)

    # ---- what a seed does

    def _fate(self, words: Words) -> str:
        roll = self.rnd.random()
        if words[0] == "FCALL" and words[1].startswith(FENCED_LATE) and roll > 1 - 6 * self.faults.pause:
            self.happened["pause"] += 1
            return "pause"
        for kind in Faults.KINDS:
            roll -= getattr(self.faults, kind)
            if roll < 0:
                self.happened[kind] += 1
                return kind
        return ""

    def _die(self, actor: Actor, commands: Sequence[Words], when: str) -> None:
        self.note(actor, f"killed {when}", commands)
        actor.dead = True
        raise Killed

    def _pause(self, actor: Actor, when: str) -> None:
        low, high = self.pause_ms
        actor.paused_until = self.now + self.rnd.randrange(low, high)
        self.note(actor, f"paused {when} for {actor.paused_until - self.now} ms")
        self.yield_(actor)

    def _restart(self) -> None:
        """Redis restarts without its last writes; all connections break, and perhaps it has forgotten its scripts."""
        lost = self.rnd.choice((0, 0, 1, 2, 3, 5, 8, 13, 30)) if self.forgetful else 0
        if lost:
            self.server.lose(lost)
        if self.rnd.random() < 0.5:
            self.server.known.clear()
        self.away_until = self.now + self.rnd.randrange(2000)
        for actor in self.actors:
            actor.cut = True
            if actor.watches:
                actor.wake_at = self.now
        self.note(self.home, f"Redis restarts, {lost} writes lost")
        self.happened["writes lost"] += lost
        if self.on_restart:
            self.on_restart()

    def _again(self) -> None:
        """A hint comes twice: it is put on the stream once more."""
        if self.hints:
            key, fields = self.rnd.choice(self.hints)
            self.server.say([("XADD", key, f"{self.now}-*", *fields)], self.now)

    # ---- what happened

    def note(
        self, actor: Actor, what: str, commands: Sequence[Words] = (), replies: Sequence[Any] = ()
    ) -> None:
        names = " ".join(_short(words) for words in commands)
        self.digest = zlib.crc32(f"{self.now}{actor.name}{what}{names}".encode(), self.digest)
        if self.tracing:
            shown = " | ".join(_shown(words) for words in commands)
            answer = f" -> {_clipped(replies)}" if replies else ""
            self.trace.append(
                f"{(self.now - EPOCH_MS) / 1000:10.3f} {actor.name:<6} {what:<6} {shown}{answer}"
            )


@contextmanager
def hosts_clock(world: World) -> Iterator[None]:
    """What runs in a simulation takes its time from the world, and sleeps there."""
    modules = [m for name, m in list(sys.modules.items()) if name.startswith(CLOCKED) and hasattr(m, "time")]
    before = [vars(module)["time"] for module in modules]
    try:
        for module in modules:
            vars(module)["time"] = world
        yield
    finally:
        for module, real in zip(modules, before, strict=True):
            vars(module)["time"] = real


@contextmanager
def ends_in_order(world: World) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the simulation where home has the baton, and nowhere in the middle of somebody else's call."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(_number: int, _frame: object) -> None:
        world.interrupted = True

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, note) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def cell(key: str | bytes) -> str:
    text = key.decode() if isinstance(key, bytes) else key
    return text[: text.index("}") + 1]


def _unblocked(words: Words) -> tuple[int, Words]:
    for i, word in enumerate(words):
        if word in ("BLOCK", b"BLOCK"):
            return int(words[i + 1]), (*words[:i], *words[i + 2 :])
    return 0, words


def _streams(words: Words) -> tuple[Any, ...]:
    at = next(i for i, word in enumerate(words) if word in ("STREAMS", b"STREAMS"))
    names = words[at + 1 :]
    return names[: len(names) // 2]


def _short(words: Words) -> str:
    return str(words[1]) if words[0] == "FCALL" else str(words[0])


def _shown(words: Words) -> str:
    if words[0] == "FCALL":
        name = "/".join(words[1].split("_")[1:-1])
        return f"{name} {_clipped(words[3:], 300)}"
    return _clipped(words, 200)


def _clipped(value: Any, most: int = 400) -> str:
    text = repr(value).replace("b'", "'")
    return text if len(text) <= most else text[: most - 1] + "…"


def _crash(actor: Actor, error: BaseException) -> Broken:
    tail = "".join(traceback.format_exception(error))
    return Broken(f"{actor.name} ({actor.kind}) crashed: {type(error).__name__}: {error}\n{tail}")
