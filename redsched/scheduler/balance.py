"""Who should own how many shards, and which free ones are whose. Pure: the same lists give everybody the same answer.

The first names in order take what is over, so sizes differ by at most one; who joins takes only its own share from the
others, and what a leaver leaves goes only to those below theirs: no shard moves from one to another of those who stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping


def holder(token: str) -> str:
    """The scheduler in a token `scheduler:fence`."""
    return token.rpartition(":")[0]


def fair_share(shards: int, live: Collection[str], name: str) -> int:
    """How many of the shards are `name`'s, one of the live schedulers."""
    each, over = divmod(shards, len(live))
    return each + (sorted(live).index(name) < over)


def to_take(shards: int, owners: Mapping[int, str], live: Collection[str], name: str) -> list[int]:
    """The free shards that are `name`'s to take: dealt out to everybody below its share, so that no two reach for one.

    `owners`: the token of each shard's owner; a shard is free if its owner is not alive.
    """
    held = Counter(holder(owners.get(s, "")) for s in range(shards))
    free = [s for s in range(shards) if holder(owners.get(s, "")) not in live]
    for one in sorted(live):
        wanted = max(0, fair_share(shards, live, one) - held[one])
        if one == name:
            return free[:wanted]
        free = free[wanted:]
    return []
