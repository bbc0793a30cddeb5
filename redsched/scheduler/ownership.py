"""Which shards this scheduler owns, and how it comes by them and gives them up.

One heartbeat in the control cell is the lease under which all its shards stand. A shard whose owner's heartbeat is gone
is taken by compare-and-set, with a new fence. Being deposed is normal: the shard is dropped, everything else goes on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from math import ceil

from redsched.errors import Fenced
from redsched.keys import stable_hash
from redsched.store import Store
from redsched.store.control import Beat

log = logging.getLogger("redsched.scheduler")

# How often (in beats) to compare with what others believe: after a failover we may have forgotten shards, or been so.
RECONCILE_BEATS = 10


def holder(token: str) -> str:
    """The scheduler in a token `scheduler:fence`."""
    return token.rpartition(":")[0]


def fence(token: str) -> int:
    return int(token.rpartition(":")[2])


def fair_share(shards: int, live: int) -> int:
    return ceil(shards / max(1, live))


@dataclass(slots=True)
class Ownership:
    """`tokens` are the shards owned now, each with the token to show in every write."""

    store: Store
    name: str
    tokens: dict[int, str] = field(default_factory=dict)
    live: tuple[str, ...] = ()
    leader: str = ""
    _beats: int = 0
    _renewed: int = 0  # when, by Redis' clock
    _overslept: bool = (
        False  # the lease had run out before it was renewed: others may have taken what we call ours
    )
    _doubtful: set[int] = field(default_factory=set)  # asked for, and the reply was lost: perhaps ours

    def beat(self) -> Beat:
        """Renew the lease, look around and move towards the fair share of shards; alone, only at every second beat."""
        self._beats += 1
        look = self._beats % 2 == 1 or len(self.live) > 1 or not self.tokens
        beat = self.store.control.beat(self.name, self.store.settings.lease_ms, look=look)
        self._overslept |= 0 < self._renewed < beat.now - self.store.settings.lease_ms
        self._renewed = beat.now
        if look:
            self._note(beat)
            self._balance()
        return beat

    def _note(self, beat: Beat) -> None:
        gone = sorted(set(self.live) - set(beat.live))
        if self.live and set(self.live) != set(beat.live):
            log.info("schedulers alive: %d%s", len(beat.live), "".join(f", {x} is gone" for x in gone))
        if beat.leader != self.leader and holder(beat.leader) == self.name:
            log.info("leader, fence %d", fence(beat.leader))
        self.live, self.leader = beat.live, beat.leader

    def _balance(self) -> None:
        """Give up what is beyond the fair share, take what is free up to it."""
        if (self._overslept or self._beats % RECONCILE_BEATS == 1) and self._reconcile():
            return  # what is remembered of those shards has to go before they may be ours again
        for shard in sorted(self._doubtful):
            self._take(shard, "")
        share = fair_share(self.store.shards, len(self.live))
        for shard in sorted(self.tokens)[share:]:
            self.give_up(shard)
        if len(self.tokens) < share:
            self._take_free(share)

    def _reconcile(self) -> bool:
        """Ask, from the next beat on, for shards that others believe to be ours; and drop those that they don't: whoever
        believes to own what it does not takes nothing else, and if all do so, shards are nobody's. True if any was dropped.
        """
        owners = self.store.control.owners()
        self._overslept = False
        wrong = {s for s, t in self.tokens.items() if owners.get(s) != t}
        for shard in wrong:
            self.deposed(
                shard, Fenced(f"others believe it to be {holder(owners.get(shard, '')) or 'nobody'}'s")
            )
        self._doubtful |= wrong | {s for s, t in owners.items() if holder(t) == self.name} - set(self.tokens)
        return bool(wrong)

    def _gone(self, name: str) -> bool:
        """Whether a shard's owner has no lease; asked after it was seen there, because one that has just come is in no older list."""
        if name and name not in self.live:
            self._note(self.store.control.beat(self.name, self.store.settings.lease_ms))
        return name not in self.live

    def leads(self) -> bool:
        return holder(self.leader) == self.name

    def _take_free(self, share: int) -> None:
        owners = self.store.control.owners()
        count, start = self.store.shards, stable_hash(self.name)
        # Each begins at another place, so that schedulers that start together don't run into each other.
        for shard in ((start + i) % count for i in range(count)):
            if len(self.tokens) >= share:
                return
            there = holder(owners.get(shard, ""))
            if shard not in self.tokens and self._gone(there):
                self._take(shard, there)

    def _take(self, shard: int, expected: str) -> None:
        self._doubtful.add(shard)
        mine, token = self.store.shard.acquire(shard, self.name, expected)
        if not mine and self._gone(holder(token)):
            mine, token = self.store.shard.acquire(shard, self.name, holder(token))
        self._doubtful.discard(shard)
        if mine:
            self.tokens[shard] = token
        self.store.control.note_owner(shard, token)
        if mine:
            after = f" after {expected}, which is gone" if expected else ""
            log.info("shard %d acquired, fence %d%s", shard, fence(token), after)

    def give_up(self, shard: int) -> None:
        """The token goes last: a call that is cut off on the way is said again at the next beat."""
        token = self.tokens[shard]
        if self.store.shard.release(shard, token):
            log.info("shard %d released, fence %d", shard, fence(token))
        self.store.control.note_owner(shard, "")
        del self.tokens[shard]

    def deposed(self, shard: int, refusal: Fenced) -> None:
        token = self.tokens.pop(shard, None)
        if token is not None:
            log.warning("shard %d lost, fence %d: %s", shard, fence(token), refusal)

    def outdated(self, shard: int, refusal: Fenced) -> None:
        """A pool has seen a higher fence: there is a newer owner; or a failover took our fence back, and we need a new one."""
        log.warning("shard %d given up, a pool refused it: %s", shard, refusal)
        if shard in self.tokens:
            self.give_up(shard)

    def resign(self, refusal: Fenced) -> None:
        log.warning("leadership given up: %s", refusal)
        self.store.control.resign(self.leader)
        self.leader = ""

    def leave(self) -> None:
        """Hand everything over at once."""
        for shard in list(self.tokens):
            self.give_up(shard)
        self.store.control.leave(self.name)
