"""A seeded schedule of faults, and the installation that it befalls: three schedulers, three workers, one server.

Who is killed is replaced, as a service manager does. The first scheduler and the first worker are killed like the others
but never frozen, cut off or given a wrong clock, so that there is always somebody who can go on: after each fault, the
siege waits until more bodies have run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

from redis.exceptions import RedisError

from tests.processes import Process, Site, until
from tests.proxy import Proxy

from .clocks import library, wrong_clock

Kind = Literal["scheduler", "worker"]
Undo = Callable[[], None]

SEATS: Final = 3
BEHIND_PROXY, FREEZES = 1, 2  # seats; 0 is the one that is spared
CLOCKS_S: Final = (0, 300, -300)
UNAVAILABLE: Final = 5  # the exit code of who starts while Redis is away
STEP_BYTES: Final = 800  # lines of some twenty bodies
PROGRESS_S: Final = 60.0


class Step(NamedTuple):
    """One fault: whom it hits and how hard is in `dice`; what lasts is undone that many steps later."""

    number: int
    fault: str
    dice: float
    lasts: int


@dataclass
class Event:
    """What was done to whom. `since` and `until` are sizes of the trail: executions begun in between may have suffered."""

    step: Step
    at_s: float
    since: int
    seats: set[str] = field(default_factory=set)  # none: everybody
    target: str = ""
    until: int | None = None

    def hit(self, seat: str, begun: int) -> bool:
        return (not self.seats or seat in self.seats) and (self.until is None or self.until >= begun)

    def __str__(self) -> str:
        return f"#{self.step.number} {self.step.fault}{f' ({self.target})' if self.target else ''}"


class Siege:
    """`with Siege(site, seed) as siege: siege.run(plan(…))`"""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.proxy = Proxy(site.redis.url)
        self.seats: dict[Kind, list[Process]] = {"scheduler": [], "worker": []}
        self.leaving: list[Process] = []
        self.restarted: list[str] = []
        self.events: list[Event] = []
        self.longest_pause_s = 0.0
        self._undo: list[tuple[int, Event, Undo]] = []
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        for kind in self.seats:
            self.seats[kind] = [self._start(kind, number) for number in range(SEATS)]
        self._ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.close()

    def _start(self, kind: Kind, seat: int) -> Process:
        """Bodies find the name of their worker in SEAT."""
        env = self.site.env | {"REDSCHED_RETENTION_RUNS": "100000"}
        env["SEAT"] = f"{kind}{len(self.site.processes)}"
        if seat == BEHIND_PROXY:
            env["REDSCHED_REDIS_URL"] = self.proxy.url
        if CLOCKS_S[seat] and library():
            env |= wrong_clock(CLOCKS_S[seat])
        words = ("--concurrency", "2", "--pool", "default", "--pool", "narrow", str(self.site.folder))
        return self.site.process(kind, *(words if kind == "worker" else ()), env=env)

    def _ready(self) -> None:
        ready(self.site, [p for processes in self.seats.values() for p in processes])

    # ---- the schedule

    def run(self, steps: Sequence[Step], seconds: float = 0) -> None:
        """All steps, spread over that time; sooner is never sooner than the installation goes on."""
        self._began = time.monotonic()
        for step in steps:
            self._pace(seconds * step.number / len(steps))
            self._tend()
            self._strike(step)
            self._undo_until(step.number)
            self._progress()
        self._undo_until(len(steps) + 10)
        self._tend()
        self._ready()

    def _pace(self, at_s: float) -> None:
        time.sleep(max(0.0, self._began + at_s - time.monotonic()))

    def _strike(self, step: Step) -> None:
        event = Event(step, round(time.monotonic() - self._began, 2), self.size())
        self.events.append(event)
        undo = FAULTS[step.fault](self, event)
        if undo:
            self._undo.append((step.number + step.lasts, event, undo))
        else:
            event.until = self.size()

    def _undo_until(self, number: int) -> None:
        due = [x for x in self._undo if x[0] <= number]
        self._undo = [x for x in self._undo if x[0] > number]
        for _, event, undo in due:
            undo()
            event.until = self.size()

    def _progress(self) -> None:
        before, began = self.size(), time.monotonic()
        until(
            lambda: self.size() >= before + STEP_BYTES,
            lambda: f"nothing goes on after {self.events[-1]}",
            PROGRESS_S,
        )
        self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - began)

    def _tend(self) -> None:
        """Who could not reach Redis when it started has ended, and is started again. Nobody else may have ended."""
        for kind, processes in self.seats.items():
            for seat, process in enumerate(processes):
                if not process.alive:
                    assert process.end() == UNAVAILABLE, f"{process.name} has ended: {process.lines}"
                    self.restarted.append(process.name)
                    processes[seat] = self._start(kind, seat)

    def size(self) -> int:
        try:
            return self.site.trail_file.stat().st_size
        except FileNotFoundError:
            return 0

    # ---- what faults do

    def victim(self, kind: Kind, event: Event, seats: Sequence[int] = range(SEATS)) -> tuple[int, Process]:
        seat = seats[int(event.step.dice * len(seats))]
        process = self.seats[kind][seat]
        event.seats, event.target = {process.name}, process.name
        return seat, process

    def at_work(self, kind: Kind, event: Event, seats: Sequence[int] = range(SEATS)) -> tuple[int, Process]:
        """A victim that is past its start: a scheduler with shards, a worker with children."""
        seat, process = self.victim(kind, event, seats)
        begun = " acquired, " if kind == "scheduler" else ": started: "
        until(lambda: process.count(begun) or not process.alive, f"{process.name} does not begin")
        if process.alive:
            return seat, process
        self._tend()  # it could not reach Redis, so its successor is hit
        return self.at_work(kind, event, seats)

    def replace(self, kind: Kind, seat: int) -> None:
        self.seats[kind][seat] = self._start(kind, seat)

    def child(self, event: Event) -> int:
        """A child of a worker."""
        _, worker = self.at_work("worker", event)
        found = until(lambda: children(self.site, worker), f"{worker.name} has no children")
        pid = found[int(event.step.dice * 1000) % len(found)]
        event.target += f", child {pid}"
        return pid

    def everybody_behind_proxy(self, event: Event) -> None:
        event.seats = {processes[BEHIND_PROXY].name for processes in self.seats.values()}
        event.target = ", ".join(sorted(event.seats))


def ready(site: Site, processes: Sequence[Process]) -> None:
    """They are at work; a machine that is busy with other things is given time."""
    until(
        lambda: all(map(site._at_work, processes)),
        lambda: f"not at work: {[p.lines for p in processes]}",
        2 * PROGRESS_S,
    )


def children(site: Site, worker: Process) -> list[int]:
    """Those that run bodies."""
    found = []
    for pid, line in site.everybody().items():
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if parent == worker.pid and "guardian" not in line:
                found.append(pid)
    return found


def bodies_of(site: Site, process: Process) -> list[int]:
    """What a killed worker leaves: until its guardian has been round, its children may begin another body."""
    mark, found = f"SEAT={process.name}\0".encode(), []
    for pid in site.everybody():
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def plan(seed: int, kills: int, others: int) -> list[Step]:
    """So many kills, and so many other faults, in an order of their own for each seed."""
    dice = random.Random(seed)
    names = [KILLS[i % len(KILLS)] for i in range(kills)] + [OTHERS[i % len(OTHERS)] for i in range(others)]
    dice.shuffle(names)
    return [Step(number, name, dice.random(), dice.randint(1, 3)) for number, name in enumerate(names)]


# ---------------------------------------------------------------- schedulers, workers


def _kill(kind: Kind) -> Callable[[Siege, Event], Undo | None]:
    def strike(siege: Siege, event: Event) -> None:
        seat, process = siege.victim(kind, event)
        process.kill()
        until(lambda: not bodies_of(siege.site, process), f"children of {process.name} live on", 10)
        siege.replace(kind, seat)

    return strike


def _stop(kind: Kind) -> Callable[[Siege, Event], Undo | None]:
    def strike(siege: Siege, event: Event) -> None:
        seat, process = siege.at_work(kind, event)
        process.signal(signal.SIGTERM)
        siege.leaving.append(process)
        siege.replace(kind, seat)

    return strike


def _freeze_scheduler(siege: Siege, event: Event) -> Undo:
    """For longer than its lease: it wakes up deposed."""
    _, process = siege.at_work("scheduler", event, [FREEZES])
    process.signal(signal.SIGSTOP)
    mine = f":{process.pid}:"
    until(
        lambda: not any(mine in str(s["owner"]) for s in siege.site.client.shards()),
        f"nobody takes over from {process.name}",
    )
    return _wake(process)


def _freeze_worker(siege: Siege, event: Event) -> Undo:
    """Its children go on; for how long decides whether what they run is taken back."""
    _, process = siege.at_work("worker", event, [FREEZES])
    process.signal(signal.SIGSTOP)
    return _wake(process)


def _wake(process: Process) -> Undo:
    def undo() -> None:
        if process.alive:
            process.signal(signal.SIGCONT)

    return undo


def _signal_child(number: signal.Signals) -> Callable[[Siege, Event], Undo | None]:
    def strike(siege: Siege, event: Event) -> None:
        _send(siege.child(event), number)

    return strike


def _freeze_child(siege: Siege, event: Event) -> Undo:
    pid = siege.child(event)
    _send(pid, signal.SIGSTOP)
    return lambda: _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


# ---------------------------------------------------------------- Redis


def _kill_redis(siege: Siege, event: Event) -> None:
    siege.site.redis.kill(signal.SIGKILL)
    time.sleep(event.step.dice)
    siege.site.redis.start()


def _freeze_redis(siege: Siege, event: Event) -> None:
    siege.site.redis.signal(signal.SIGSTOP)
    time.sleep(event.step.dice * 2)
    siege.site.redis.signal(signal.SIGCONT)


def _say(*words: str) -> Callable[[Siege, Event], Undo | None]:
    def strike(siege: Siege, event: Event) -> None:
        siege.site.redis.say(*words)

    return strike


def _forget_scripts(siege: Siege, event: Event) -> None:
    siege.site.redis.say("SCRIPT", "FLUSH")
    siege.site.redis.say("FUNCTION", "FLUSH")


def stream(site: Site) -> str:
    return f"{{{site.settings.namespace}:p:default}}:stream"


def _drop_stream(siege: Siege, event: Event) -> None:
    siege.site.redis.say("DEL", stream(siege.site))


def _drop_group(siege: Siege, event: Event) -> None:
    with contextlib.suppress(RedisError):  # there is no stream to have one: the last fault took it
        siege.site.redis.say("XGROUP", "DESTROY", stream(siege.site), "workers")


def _fill_memory(siege: Siege, event: Event) -> None:
    """Until a write is refused, and a moment longer."""
    server = siege.site.redis
    server.say("CONFIG", "SET", "maxmemory", int(server.say("INFO", "memory")["used_memory"]) - 500_000)
    with contextlib.suppress(RedisError):
        while True:
            server.say("SET", "probe", "x")
    time.sleep(event.step.dice)
    server.say("CONFIG", "SET", "maxmemory", 0)


def _change_role(siege: Siege, event: Event) -> None:
    """A replica of nobody refuses writes and keeps its data."""
    siege.site.redis.say("REPLICAOF", "127.0.0.1", "1")
    time.sleep(event.step.dice)
    siege.site.redis.say("REPLICAOF", "NO", "ONE")


# ---------------------------------------------------------------- the network


def _cut(siege: Siege, event: Event) -> None:
    siege.everybody_behind_proxy(event)
    siege.proxy.cut_all()


def _lose_reply(siege: Siege, event: Event) -> None:
    """The script runs; who called it never hears of it."""
    siege.everybody_behind_proxy(event)
    lose = siege.proxy.cut_next_reply if event.step.dice < 0.8 else siege.proxy.hold_next_reply
    lose("FCALL")


def _hang(siege: Siege, event: Event) -> Undo:
    siege.everybody_behind_proxy(event)
    siege.proxy.hang()
    return siege.proxy.go_on


def _delay(siege: Siege, event: Event) -> Undo:
    siege.everybody_behind_proxy(event)
    siege.proxy.delay_s = event.step.dice / 5

    def undo() -> None:
        siege.proxy.delay_s = 0.0

    return undo


FAULTS: Final[dict[str, Callable[[Siege, Event], Undo | None]]] = {
    "kill scheduler": _kill("scheduler"),
    "kill worker": _kill("worker"),
    "kill child": _signal_child(signal.SIGKILL),
    "kill redis": _kill_redis,
    "stop scheduler": _stop("scheduler"),
    "stop worker": _stop("worker"),
    "stop child": _signal_child(signal.SIGTERM),
    "freeze scheduler": _freeze_scheduler,
    "freeze worker": _freeze_worker,
    "freeze child": _freeze_child,
    "freeze redis": _freeze_redis,
    "kill connections": _say("CLIENT", "KILL", "TYPE", "normal"),
    "forget scripts": _forget_scripts,
    "drop stream": _drop_stream,
    "drop group": _drop_group,
    "fill memory": _fill_memory,
    "change role": _change_role,
    "cut": _cut,
    "lose reply": _lose_reply,
    "hang": _hang,
    "delay": _delay,
}
KILLS: Final = [
    *("kill scheduler", "kill worker", "kill redis", "kill child", "kill scheduler"),
    *("kill worker", "kill scheduler", "kill child", "kill worker", "kill redis"),
]
OTHERS: Final = [name for name in FAULTS if not name.startswith("kill ") or name == "kill connections"]
