"""A master that dies, or must step down, under load: what docs/guarantees.md says of a failover, with real sentinels."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Self, TypeVar

import pytest

from redsched.client import Client
from redsched.errors import NotFound, Unavailable
from redsched.settings import Settings
from redsched.store.connect import connect, translate
from tests.conftest import Server
from tests.processes import Site, Tasks, needs, until

from .places import Place

T = TypeVar("T")
USERS = 4
OUTAGE_S = (
    15.0  # a second to believe it, a vote, a promotion; and pauses of at most two seconds before the next try
)
LOAD: Tasks = {
    "first": {"call": "bodies:both"},
    **{f"middle{i}": {"call": "bodies:slowly", "with": {"seconds": 0.05}, **needs("first")} for i in (1, 2)},
    "last": {"call": "bodies:both", **needs("middle1", "middle2")},
}


class User(threading.Thread):
    """Triggers a run, waits for its end, and so on, as a program does that was told that Redis may go away."""

    def __init__(self, name: str, settings: Settings, leaving: threading.Event) -> None:
        super().__init__(name=name)
        self.client = Client(settings=settings)
        self.leaving = leaving
        self.told: list[str] = []  # runs that were acknowledged
        self.ended: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            number = 0
            while not self.leaving.is_set():
                number += 1
                self._one(f"{self.name}.{number}")
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def _one(self, run: str) -> None:
        self._say(lambda: self.client.trigger("load", run=run))
        self.told.append(run)
        try:
            shown = self._say(lambda: self.client.wait("load", run, 60))
        except NotFound:
            return  # acknowledged, and lost with the master
        assert shown["state"] == "success", shown
        self.ended.append(run)

    def _say(self, call: Callable[[], T]) -> T:
        end = time.monotonic() + 2 * OUTAGE_S
        while True:
            try:
                return call()
            except Unavailable:
                assert time.monotonic() < end, f"Redis has not come back after {2 * OUTAGE_S} s"
                self.leaving.wait(0.02)


@dataclass
class Users:
    """All of them, and how far they have come."""

    site: Site
    leaving: threading.Event = field(default_factory=threading.Event)
    all: list[User] = field(default_factory=list)
    windows: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.all = [User(f"u{i}", self.site.settings, self.leaving) for i in range(USERS)]
        for user in self.all:
            user.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leaving.set()
        for user in self.all:
            user.join(90)
            user.client.close()

    def check(self) -> None:
        for user in self.all:
            if user.error:
                raise user.error

    @contextmanager
    def window(self, name: str) -> Iterator[None]:
        """What was acknowledged in it is looked at by itself afterwards; a run that began before it, too."""
        before = [max(0, len(u.told) - 1) for u in self.all]
        yield
        self.windows[name] = list(zip(before, (len(u.told) for u in self.all), strict=True))

    def lost(self, known: Collection[str]) -> dict[str, int]:
        """How many runs were acknowledged in each window and are not known any more: an unbroken end of a user's history."""
        outside = [[*u.told] for u in self.all]
        counts = dict.fromkeys(self.windows, 0)
        for name, spans in self.windows.items():
            for number, (user, (first, last)) in enumerate(zip(self.all, spans, strict=True)):
                gone = [run not in known for run in user.told[first:last]]
                assert len(list(groupby(gone))) <= 3, f"{name}: holes in {user.name}'s history: {gone}"
                counts[name] += sum(gone)
                outside[number][first:last] = [""] * (last - first)
        assert {run for runs in outside for run in runs if run} <= set(known), "lost without a failover"
        return counts

    def go_on(self) -> None:
        """Each user sees two more runs begin and end."""
        aims = [len(u.ended) + 2 for u in self.all]

        def all_there() -> bool:
            self.check()
            return all(len(u.ended) >= aim for u, aim in zip(self.all, aims, strict=True))

        until(all_there, lambda: f"stuck: {[(u.name, len(u.ended)) for u in self.all]}", 60)


@pytest.fixture
def site(place: Place, tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "site", None, redis=place.url) as made:
        yield made


def master(place: Place) -> Server:
    _, port = place.sentinels[0].say("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mine")
    return next(s for s in place.servers if s.port == int(port))


def another_leads(place: Place, old: Server) -> None:
    """Every sentinel names another master, and it is one."""

    def moved() -> bool:
        named = [w.say("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mine")[1] for w in place.sentinels]
        if len({*named}) != 1 or int(named[0]) == old.port:
            return False
        return bool(master(place).say("ROLE")[0] in (b"master", "master"))

    until(moved, "no other master", 30)


def follows(place: Place, server: Server) -> bool:
    info = server.say("INFO", "replication")
    return (
        info["role"] == "slave"
        and info["master_port"] == master(place).port
        and info["master_link_status"] == "up"
    )


def all_follow(place: Place) -> None:
    others = [s for s in place.servers if s is not master(place)]
    until(lambda: all(follows(place, s) for s in others), "an old master does not follow", 40)


@pytest.mark.parametrize("place", ["sentinel"], indirect=True)
def test_failovers_under_load_leave_nothing_stuck(site: Site, place: Place) -> None:
    """Every run that exists afterwards ends, no slot stays taken, every process lives on, and what is lost is the end of history."""
    schedulers, workers = site.start(2, 2)
    site.dag("load", LOAD)
    with Users(site) as users:
        users.go_on()
        for step in ("killed", "asked", "coordinated"):
            begun = time.monotonic()
            with users.window(step):
                old = fail_over(place, step)
                if old is None:
                    continue  # Sentinel learnt to wait for the replica with Valkey 9
                users.go_on()
                assert time.monotonic() - begun < OUTAGE_S + 10
                if step == "killed":
                    old.start()  # as a master, which it is not any more
                all_follow(place)
        users.go_on()
    users.check()

    def states() -> dict[str, str]:
        return {row["run"]: row["state"] for row in site.client.runs("load", limit=10_000)}

    # What a user saw end may have lost its end with the master: then it ends once more.
    until(lambda: set(states().values()) == {"success"}, lambda: f"stuck: {unfinished(site, states())}", 60)
    everything = states()
    did = Counter((line.run, line.task) for line in site.trail() if line.word == "ended")
    assert all(did[run, task] for run in everything for task in LOAD)
    site.slots_free()
    for process in (*schedulers, *workers):
        assert process.alive and process.count("does not answer") + process.count("trying again") <= 20
    assert [process.stop() for process in (*schedulers, *workers)] == [0] * 4
    lost = users.lost(everything)
    again = sum(did[run, task] - 1 for run in everything for task in LOAD)
    print(f"{len(everything)} runs, acknowledged and lost {lost}, bodies run again {again}")
    assert lost.get("coordinated", 0) == 0


def fail_over(place: Place, how: str) -> Server | None:
    """The old master, when another leads; None if this server's sentinels can't do it so."""
    from redis.exceptions import ResponseError

    old = master(place)
    more = ("COORDINATED",) if how == "coordinated" else ()

    def taken() -> bool:
        try:
            place.sentinels[1].say("SENTINEL", "FAILOVER", "mine", *more)
        except ResponseError as error:
            if "wrong number" in str(error):
                raise NotImplementedError from error
            return False  # the last one is not quite over
        return True

    if how == "killed":
        old.kill(signal.SIGKILL)
    else:
        try:
            until(taken, "no sentinel wants to begin a failover", 30)
        except NotImplementedError:
            return None
    another_leads(place, old)
    return old


def unfinished(site: Site, states: dict[str, str]) -> list[object]:
    return [(run, site.client.explain("load", run)) for run, state in states.items() if state != "success"]


@pytest.mark.parametrize("place", ["sentinel"], indirect=True)
@pytest.mark.parametrize("protocol", [2, 3])
def test_connections_to_a_master_that_steps_down_are_given_up(place: Place, protocol: int) -> None:
    """READONLY did not happen; a waiting read ends at once; the next connection asks the sentinels again."""
    all_follow(place)
    old = master(place)
    clients = connect(Settings(redis=f"{place.url}?protocol={protocol}"), "test")
    key = f"{{rs:c}}:role{protocol}"
    first = clients.scripts.client_id()
    clients.scripts.set(key, 1)
    waiting = clients.reader.client_id()
    outcome: list[Exception] = []

    def wait() -> None:
        try:
            with translate():
                clients.reader.execute_command("XREAD", "BLOCK", 2000, "STREAMS", "{rs:c}:news", "0")
        except Unavailable as error:
            outcome.append(error)

    reader = threading.Thread(target=wait)
    reader.start()
    until(lambda: old.say("INFO", "clients")["blocked_clients"], "nobody waits")
    begun = time.monotonic()
    old.say("REPLICAOF", "127.0.0.1", next(s.port for s in place.servers if s is not old))
    reader.join(10)
    assert outcome and type(outcome[0]) is Unavailable and time.monotonic() - begun < 1
    with pytest.raises(Unavailable) as caught, translate():
        clients.scripts.incr(key)
    assert type(caught.value) is Unavailable  # not MayHaveHappened
    old.say("REPLICAOF", "NO", "ONE")
    assert clients.scripts.incr(key) == 2
    assert clients.scripts.client_id() != first and clients.reader.client_id() != waiting
    clients.close()
