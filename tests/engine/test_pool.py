"""Pools: never over their slots, fair between groups, priority and age inside, nothing left behind."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from redsched.store.pool import Hint, Offer

from .harness import Engine


class Line:
    """One pool without shards: offers go in, whoever is admitted is taken, started and released by hand."""

    def __init__(self, engine: Engine, slots: int) -> None:
        self.pool = engine.store.pool
        self.pool.configure("p", slots)
        self.slots = slots
        self.count = 0
        self.running: list[Hint] = []
        self.group: dict[str, str] = {}

    def offer(self, group: str, n: int = 1, *, slots: int = 1, priority: int = 0, weight: float = 1) -> None:
        for start in range(0, n, 500):
            offers = []
            for _ in range(min(500, n - start)):
                self.count += 1
                ident = f"{group.replace('!', '-')}/r/{self.count}/1"
                self.group[ident] = group
                offers.append(Offer(ident, "p", f"{slots},{priority},{group},{weight};"))
            assert set(self.pool.offer("p", 0, 1, "9-0", offers) or "") == {"T"}

    def admitted(self) -> list[str]:
        """Who got onto the stream since the last look."""
        hints = self.pool.read("c", ["p"], 100_000, 0)
        if hints:
            self.pool.start("w", "n", hints)
        self.running += hints
        return [h.attempt_id for h in hints]

    def release(self, n: int = 1) -> None:
        done, self.running = self.running[:n], self.running[n:]
        self.pool.release("n", done)

    @property
    def used(self) -> int:
        return int(self.pool.show("p")["used"])


@pytest.fixture
def line(engine: Engine) -> Line:
    return Line(engine, 10)


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "b!backfill": 0.2}])
def test_each_busy_group_gets_its_weight_within_two_percent(line: Line, weights: dict[str, float]) -> None:
    for group, weight in weights.items():
        line.offer(group, 1000 if weight == 1 else 400, weight=weight)
    line.admitted()
    got: Counter[str] = Counter()
    while sum(got.values()) < 1000:
        line.release()
        got.update(line.group[i] for i in line.admitted())
    total = sum(weights.values())
    for group, weight in weights.items():
        assert abs(got[group] / 1000 - weight / total) < 0.02, got


def test_an_idle_group_saves_no_credit_and_a_flood_does_not_starve_it(line: Line) -> None:
    line.offer("flood", 2000)
    line.admitted()
    for _ in range(500):
        line.release()
    line.admitted()
    line.offer("small", 20)
    order = []
    for _ in range(40):
        line.release()
        order += [line.group[i] for i in line.admitted()]
    assert order.count("small") == 20
    assert abs(order[:20].count("small") - 10) <= 1, (
        "it gets its half from now on, not what it did not use before"
    )


def test_a_small_team_waits_less_than_twice_as_long_under_a_flood_of_backfill(line: Line) -> None:
    """Counted in admissions, so that no clock decides: alone, its 40 tasks need 40."""
    line.offer("big!backfill", 20_000, weight=0.2)
    line.admitted()
    line.offer("small", 40)
    admissions, left = 0, 40
    while left:
        line.release()
        for ident in line.admitted():
            admissions += 1
            left -= line.group[ident] == "small"
    assert admissions < 80


def test_priority_goes_first_inside_a_group_then_age(line: Line) -> None:
    line.offer("g", 10)
    line.admitted()
    line.offer("g", 2, priority=-1)
    line.offer("g", 2, priority=5)
    order = []
    for _ in range(4):
        line.release()
        order += [int(i.split("/")[2]) for i in line.admitted()]
    assert order == [13, 14, 11, 12]


def test_a_wide_task_is_not_overtaken_for_ever_and_slots_are_not_wasted(line: Line) -> None:
    line.offer("g", 9)
    line.admitted()
    line.offer("wide", 1, slots=6)
    line.offer("g", 200)
    passed, seen = 0, False
    for _ in range(60):
        for ident in line.admitted():
            seen = seen or line.group[ident] == "wide"
            passed += not seen
        if seen:
            break
        line.release()
    assert seen
    assert 1 <= passed <= 20


def test_slots_are_never_exceeded_and_return_to_zero(line: Line) -> None:
    rnd = random.Random(7)
    for _ in range(300):
        what = rnd.random()
        if what < 0.4:
            line.offer(rnd.choice("abc"), rnd.randint(1, 3), slots=rnd.choice([1, 1, 2, 5]))
        elif what < 0.9:
            line.release(rnd.randint(1, 3))
        else:
            line.slots = rnd.randint(5, 12)
            before = line.used
            line.pool.configure("p", line.slots)
            assert line.used <= max(before, line.slots)
        line.admitted()
        assert line.used <= max(12, line.slots)
    line.pool.configure("p", 12)
    while line.admitted() or line.running:
        line.release(3)
    shown = line.pool.show("p")
    assert (shown["used"], shown["waiting"], shown["running"]) == (0, 0, 0)


def test_revoked_ones_leave_the_line_and_running_ones_keep_their_slot_until_they_stopped(line: Line) -> None:
    line.offer("g", 12)
    line.admitted()
    ids = list(line.group)
    assert line.pool.revoke("p", [ids[0], ids[11]]) == 1
    assert line.used == 10
    assert line.pool.show("p")["waiting"] == 1
    assert line.pool.heartbeat("w", "p", ids[:2]) == [ids[0]]
    line.release()
    assert line.pool.show("p")["waiting"] == 0
    assert line.used == 10


def test_a_deleted_pool_must_be_empty(line: Line) -> None:
    line.offer("g", 1)
    assert line.pool.delete("p") == 1
    line.admitted()
    line.release()
    assert line.pool.delete("p") == 0
    assert line.pool.offer("p", 0, 1, "9-0", []) is None


class Reference:
    """Start-time fair queueing, one admission after the other: what the scripts, which do many at once, must equal."""

    def __init__(self, slots: int) -> None:
        self.free, self.v = slots, 0.0
        self.tags: dict[str, float] = {}
        self.waiting: dict[str, list[tuple[int, int, str]]] = {}

    def come(self, offers: list[Offer]) -> list[str]:
        """First each is held or waits; then whatever is free is given out."""
        held = []
        for o in offers:
            if not any(self.waiting.values()) and self.free:
                self.free -= 1
                held.append(o.attempt_id)
                continue
            _, priority, group, _ = o.terms.partition(";")[0].split(",")
            line = self.waiting.setdefault(group, [])
            if not line:
                self.tags[group] = max(self.v, self.tags.get(group, 0.0))
            line.append((-int(priority), int(o.created_ms), o.attempt_id))
        return held + self.admit()

    def admit(self) -> list[str]:
        given = []
        while self.free and (busy := [g for g, line in self.waiting.items() if line]):
            group = min(busy, key=lambda g: (self.tags[g], g))
            first = min(self.waiting[group])
            self.waiting[group].remove(first)
            self.v = max(self.v, self.tags[group])
            self.tags[group] += 1
            self.free -= 1
            given.append(first[2])
        return given

    def leave(self, count: int) -> list[str]:
        self.free += count
        return self.admit()


@pytest.mark.parametrize("seed", range(12))
def test_many_at_once_are_admitted_as_one_by_one(engine: Engine, seed: int) -> None:
    """Groups by the dozen (more than one look takes in), priorities and runs' ages: the order of the stream is the reference's."""
    rnd = random.Random(seed)
    slots, groups = rnd.choice((1, 3, 20)), [f"g{i}" for i in range(rnd.choice((1, 5, 30, 130)))]
    line, reference, number = Line(engine, slots), Reference(slots), 0
    for _ in range(40):
        if rnd.random() < 0.5:
            offers = []
            for _ in range(rnd.randint(1, 60)):
                number += 1
                group, age = rnd.choice(groups), str(rnd.randint(1000, 1010))
                ident = f"{group}/r{age}/{number}/1"
                offers.append(Offer(ident, "p", f"1,{rnd.choice((0, 0, 5))},{group},1;", age))
            line.pool.offer("p", 0, 1, "9-0", offers)
            expected = reference.come(offers)
        else:
            count = min(len(line.running), rnd.randint(1, 25))
            line.release(count)
            expected = reference.leave(count)
        assert line.admitted() == expected
    while line.running:
        count = len(line.running)
        line.release(count)
        assert line.admitted() == reference.leave(count)
    assert line.used == 0 and not any(reference.waiting.values())
