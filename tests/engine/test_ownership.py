"""Who owns which shard, when somebody's belief is out of date."""

from __future__ import annotations

import pytest

from redsched.scheduler.loop import Scheduler

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
