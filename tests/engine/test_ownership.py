"""Who owns which shard, when somebody's belief is out of date."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from redsched.errors import Fenced
from redsched.scheduler.loop import Scheduler
from redsched.scheduler.ownership import Ownership
from redsched.settings import Settings
from redsched.store import Store
from tests.conftest import Server

from .harness import Engine


def fall_silent(engine: Engine, *names: str) -> None:
    """Their leases are over, by Redis' clock, as after a stop of more than a lease."""
    client, key = engine.store.client, engine.store.keys.control + "schedulers"
    client.zadd(key, dict.fromkeys(names, 1))


def settled(engine: Engine, schedulers: list[Scheduler], beats: int = 8) -> None:
    """After a few beats each shard has exactly one scheduler that believes to own it, and rightly so."""
    for _ in range(beats):
        for scheduler in schedulers:
            scheduler.ownership.beat()
            scheduler.dispatch.sync()
    owners = {s["shard"]: s["owner"] for s in engine.client.shards()}
    believed = {s: x.ownership.name for x in schedulers for s in x.ownership.tokens}
    assert believed == owners
    assert sum(len(x.ownership.tokens) for x in schedulers) == engine.store.shards


def oversleep(engine: Engine, *schedulers: Scheduler) -> None:
    fall_silent(engine, *(x.ownership.name for x in schedulers))
    for x in schedulers:
        x.ownership._renewed -= engine.settings.lease_ms + 1


def test_those_who_slept_strand_no_shard(engine: Engine) -> None:
    """One of three took all and gave up its surplus; the two others would count as theirs what is theirs no more."""
    three = [engine.scheduler, engine.new_scheduler("two"), engine.new_scheduler("three")]
    settled(engine, three)
    awake, *asleep = three
    oversleep(engine, *asleep)
    for _ in range(3):
        awake.ownership.beat()
    assert len(awake.ownership.tokens) == engine.store.shards
    settled(engine, three)


def test_a_wrong_belief_is_found_without_a_write(engine: Engine) -> None:
    """Nothing ever happens in the shard, so nothing refuses."""
    two = [engine.scheduler, engine.new_scheduler("two")]
    settled(engine, two)
    one = two[0].ownership
    another = next(s for s in range(engine.store.shards) if s not in one.tokens)
    one.give_up(min(one.tokens))
    one.tokens[another] = "one:999"  # so that it has its share, and takes nothing
    settled(engine, two, beats=22)


def test_nothing_is_taken_from_one_who_has_just_come(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes between our look at who lives and our look at who owns what."""
    one, two = engine.scheduler.ownership, engine.new_scheduler("two").ownership
    asked = one.store.control.owners

    def late() -> dict[int, str]:
        if not two.tokens:
            two.beat()
        return asked()

    monkeypatch.setattr(one.store.control, "owners", late)
    one.beat()
    assert two.tokens and not set(one.tokens) & set(two.tokens)
    owners = {s["shard"]: s["owner"] for s in engine.client.shards()}
    assert all(owners[s] == "two" for s in two.tokens)


# ---------------------------------------------------------------- many at once


class Crowd:
    """Up to 64 schedulers in one process, moved one beat at a time in an order of its own each round.

    Nothing depends on how long it takes: leases are long, and `lapse` ends those of who was killed or stopped.
    """

    def __init__(self, engine: Engine, shards: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = Store.open(replace(engine.settings, shards=shards, lease_ms=600_000), "test")
        self.engine, self.shards = engine, shards
        self.beating: list[Ownership] = []
        self.stopped: list[Ownership] = []
        self.count = 0

    def join(self) -> Ownership:
        self.count += 1
        name = f"h{self.rng.randrange(10**6)}:{self.count}:x"
        self.beating.append(Ownership(self.store, name))
        return self.beating[-1]

    def fall(self, one: Ownership) -> None:
        """Killed, or stopped: it beats no more."""
        self.beating.remove(one)
        self.stopped.append(one)

    def lapse(self) -> None:
        fall_silent(self.engine, *(x.name for x in self.stopped))

    def wake(self, one: Ownership) -> None:
        self.stopped.remove(one)
        one._renewed -= self.store.settings.lease_ms + 1
        self.beating.append(one)

    def round(self) -> None:
        self.rng.shuffle(self.beating)
        for one in self.beating:
            one.beat()

    def owners(self) -> dict[int, str]:
        return {r["shard"]: r["token"].rpartition(":")[0] for r in self.store.shard.overview()}

    def check(self) -> dict[int, str]:
        """Each shard has one owner that lives and knows it; the sizes differ by at most one."""
        owners = self.owners()
        assert {s: x.name for x in self.beating for s in x.tokens} == owners
        sizes = [len(x.tokens) for x in self.beating]
        assert max(sizes) - min(sizes) <= 1, sizes
        assert sum(sizes) == self.shards
        return owners


def moved(before: dict[int, str], after: dict[int, str]) -> list[int]:
    return [s for s, owner in before.items() if after[s] != owner]


@pytest.mark.parametrize("count", [2, 3, 5, 16, 64])
def test_schedulers_that_come_at_once_share_the_shards(engine: Engine, count: int) -> None:
    """Four over three are 2 + 1 + 1, and 64 over 16 shards leave 48 in reserve."""
    crowd = Crowd(engine, 16, count)
    for _ in range(count):
        crowd.join()
    for _ in range(4):  # the first took all, and looks around at every second beat
        crowd.round()
    crowd.check()
    assert Counter(len(x.tokens) for x in crowd.beating)[16 // count + 1] == 16 % count


@pytest.mark.parametrize("seed", range(6))
def test_joins_leaves_and_deaths_move_what_they_must(engine: Engine, seed: int) -> None:
    """A join ends in balance two beats after it, a leave with the next, a death with the first after its lease."""
    crowd = Crowd(engine, crowd_shards := (16, 17, 64, 5, 31, 16)[seed], seed)
    rng = crowd.rng
    crowd.join()
    crowd.round()
    for _ in range(25):
        before, many = crowd.check(), len(crowd.beating)
        what = rng.choice(["join", "join", "leave", "die", "pause"]) if many > 1 else "join"
        if what == "join" and many < 64:
            crowd.join()
            for _ in range(4 if many == 1 else 3):  # a lone one looks around at every second beat
                crowd.round()
            after = crowd.check()
            assert len(moved(before, after)) == Counter(after.values())[_newest(crowd)]
            continue
        one = rng.choice(crowd.beating)
        if what == "leave":
            one.leave()
            crowd.beating.remove(one)
        else:
            crowd.fall(one)
            crowd.round()
            assert crowd.owners() == before  # a lease that runs is respected
            crowd.lapse()
        lost = [s for s, owner in before.items() if owner == one.name]
        for _ in range(2 if many == 2 else 1):
            crowd.round()
        assert moved(before, crowd.check()) == lost
        if what == "pause":
            crowd.wake(one)
            for _ in range(4 if many == 2 else 3):
                crowd.round()
    assert crowd.shards == crowd_shards


def _newest(crowd: Crowd) -> str:
    return max((x.name for x in crowd.beating), key=lambda n: int(n.split(":")[1]))


def test_half_of_sixty_four_die_at_once(engine: Engine) -> None:
    """The rest deals out what is free: nobody reaches for another's, nobody takes more than its share."""
    crowd = Crowd(engine, 256, 1)
    for _ in range(64):
        crowd.join()
    for _ in range(4):
        crowd.round()
    before = crowd.check()
    for one in crowd.beating[::2]:
        crowd.fall(one)
    crowd.lapse()
    fences = sum(r["fence"] for r in crowd.store.shard.overview())
    crowd.round()
    after = crowd.check()
    dead = {x.name for x in crowd.stopped}
    assert moved(before, after) == [s for s, owner in before.items() if owner in dead]
    assert sum(r["fence"] for r in crowd.store.shard.overview()) - fences == 128  # one take-over a shard
    for _ in range(12):  # with reconciliations
        crowd.round()
    assert crowd.check() == after


def test_a_balanced_crowd_writes_nothing_but_its_beats(engine: Engine) -> None:
    crowd = Crowd(engine, 16, 3)
    for _ in range(5):
        crowd.join()
    for _ in range(4):
        crowd.round()
    fences = [r["fence"] for r in crowd.store.shard.overview()]
    before = crowd.check()
    for _ in range(25):
        crowd.round()
    assert crowd.check() == before
    assert [r["fence"] for r in crowd.store.shard.overview()] == fences


# ---------------------------------------------------------------- what is said


def test_the_log_names_both_fences(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one, two = engine.scheduler.ownership, Ownership(engine.store, "two")
    one.beat()
    fall_silent(engine, "one")
    two.beat()
    assert "shard 0 acquired, fence 2 after one, which is gone" in caplog.text
    with pytest.raises(Fenced) as refused:
        engine.store.shard.ready(0, one.tokens[0])
    one.deposed(0, refused.value)
    assert "shard 0 lost, fence 1: refused, one:1 is not the owner; two:2 is" in caplog.text
    (row,) = [s for s in engine.client.shards() if s["shard"] == 0]
    assert (row["owner"], row["fence"], row["refused_writes"]) == ("two", 2, 1)
    assert 0 < row["expires_in"] <= engine.settings.lease_ms / 1000


# ---------------------------------------------------------------- what it costs


def test_a_lone_beat_costs_under_four_commands(new_server: Callable[..., Server]) -> None:
    """Those inside scripts are counted. Idle, it beats twice in a lease of 3 s, so that is under 2.7 commands a second."""
    server = new_server()
    engine = Engine(Settings(redis=server.url, shards=16))
    one = engine.scheduler.ownership
    for _ in range(10):
        one.beat()
    assert len(one.tokens) == 16

    def said() -> int:
        return int(engine.store.client.info("stats")["total_commands_processed"])

    before = said()
    for _ in range(100):
        time.sleep(
            0.002
        )  # because a lease that was renewed in this very millisecond looks like one that is not there
        one.beat()
    assert (said() - before - 1) / 100 < 4
    engine.close()
