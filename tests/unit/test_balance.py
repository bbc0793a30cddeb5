"""Shares and deals, exhaustively for small numbers: everybody's answers fit together."""

from __future__ import annotations

import itertools
import random

import pytest

from redsched.scheduler.balance import fair_share, to_take

SHARDS = (1, 3, 4, 16, 17, 64)


def shares(shards: int, live: list[str]) -> dict[str, int]:
    return {name: fair_share(shards, live, name) for name in live}


def names(count: int) -> list[str]:
    made = [f"host{i}:{i * 7 % 13}:a" for i in range(count)]
    random.Random(count).shuffle(made)
    return made


@pytest.mark.parametrize("shards", SHARDS)
def test_shares_add_up_and_differ_by_at_most_one(shards: int) -> None:
    for count in range(1, 65):
        found = list(shares(shards, names(count)).values())
        assert sum(found) == shards and max(found) - min(found) <= 1, (count, found)


@pytest.mark.parametrize("shards", SHARDS)
def test_nobody_gains_when_one_joins_and_nobody_loses_when_one_leaves(shards: int) -> None:
    """So what moves is the newcomer's share, or what the leaver had, and nothing else."""
    for count in range(1, 24):
        many = names(count + 1)
        before = shares(shards, many)
        for left in many:
            after = shares(shards, [x for x in many if x != left])
            assert all(after[x] >= before[x] for x in after)


def test_the_order_of_the_list_does_not_matter() -> None:
    assert all(shares(16, list(p)) == shares(16, ["a", "b", "c"]) for p in itertools.permutations("abc"))


@pytest.mark.parametrize("seed", range(200))
def test_free_shards_are_dealt_out_once(seed: int) -> None:
    """Whatever is owned by whom: no shard is two's, none that is owned is taken, and nobody goes beyond its share."""
    rng = random.Random(seed)
    shards, live = rng.choice(SHARDS), names(rng.randint(1, 20))
    owners = {s: f"{rng.choice([*live, 'dead:1:x'])}:{s}" for s in range(shards) if rng.random() < 0.6}
    deals = {name: to_take(shards, owners, live, name) for name in live}
    dealt = [s for some in deals.values() for s in some]
    taken = {s for s, token in owners.items() if not token.startswith("dead")}
    assert len(dealt) == len(set(dealt)) and not taken & set(dealt)
    held = {name: sum(t.rpartition(":")[0] == name for t in owners.values()) for name in live}
    for name, some in deals.items():
        assert not some or held[name] + len(some) <= fair_share(shards, live, name)
    if all(held[x] <= fair_share(shards, live, x) for x in live):
        assert set(dealt) | taken == set(range(shards))
