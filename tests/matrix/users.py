"""Programs that trigger runs and wait for their ends, over and over, while a test breaks things under them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Self, TypeVar

from redsched.client import Client
from redsched.errors import NotFound, Unavailable
from redsched.settings import Settings
from tests.processes import Site, Tasks, needs, until

T = TypeVar("T")
USERS = 4
OUTAGE_S = (
    15.0  # a second to believe it, a vote, a promotion; pauses of up to two seconds before the next try
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


def all_ended(site: Site) -> list[str]:
    """The runs of `load` that exist, when all have ended; what a user saw end may have lost its end with a master."""

    def states() -> dict[str, str]:
        return {row["run"]: row["state"] for row in site.client.runs("load", limit=10_000)}

    def rest() -> list[object]:
        return [
            (r, state, site.client.explain("load", r)) for r, state in states().items() if state != "success"
        ]

    until(lambda: set(states().values()) == {"success"}, lambda: f"stuck: {rest()}", 60)
    return list(states())
