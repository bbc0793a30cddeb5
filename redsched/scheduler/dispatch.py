"""The main path of a scheduler: inbox → advance → offers → pools, for all of its shards in two round trips.

Every step may be said again: what a lost reply leaves in doubt is found in the outbox and offered once more.
"""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from redsched.errors import Fenced
from redsched.scheduler.backfill import Backfills
from redsched.scheduler.calendar import Calendar
from redsched.scheduler.hooks import Hooks
from redsched.scheduler.ownership import Ownership, fence
from redsched.store import Store
from redsched.store.pool import DEFAULT_POOL, Offer, PoolStore
from redsched.store.shard import Advance, Ended, ShardStore

log = logging.getLogger("redsched.scheduler")

# Entries a call: enough that a call's fixed cost disappears, few enough that Redis is held for some 5 ms at most.
SLICE = 200
# Offers and acknowledgements a call; Lua's unpack ends at 8000 values.
CHUNK = 500
# Pools of a shard that its scripts hand work over to by themselves, on one server: those that were offered something lately.
HANDED = 4
# Runs with ready tasks that no pool takes (it is missing, or too small) are offered again, so many pages of 100 at a time.
PAGES = 5


@dataclass(slots=True)
class ShardState:
    """What the owner remembers of a shard between two turns; all of it can be found again in Redis."""

    taken: list[str] = field(default_factory=list)  # attempts that their pools took as they became ready
    answered: list[str] = field(default_factory=list)  # what else became of offers
    next_timer: int = 0
    outbox: int = 0
    more: bool = False
    recover: bool = True
    next_slot: int = 0
    pools: tuple[str, ...] = (DEFAULT_POOL,)
    page: str = ""  # where the slow re-offering of what pools did not take goes on

    next_backfill: int = -1
    next_hook: int = 0

    def is_due(self, redis_now: int) -> bool:
        if 0 <= self.next_backfill <= redis_now:
            return True
        return any(0 < t <= redis_now for t in (self.next_timer, self.next_slot, self.next_hook))


class Dispatch:
    """Moves the shards of one scheduler on."""

    def __init__(self, store: Store, ownership: Ownership) -> None:
        self.store = store
        self.ownership = ownership
        self.states: dict[int, ShardState] = {}
        self.calendar = Calendar(store)
        self.backfills = Backfills(store)
        self.hooks = Hooks(store)
        self._known_pools: set[str] = set()
        # One server holds all cells, so that a script may touch a shard's and a pool's.
        self.together = store.clients.reads is None

    def state(self, shard: int) -> ShardState:
        return self.states.setdefault(shard, ShardState())

    def sync(self) -> None:
        """Forget the shards that are not ours any more."""
        for shard in set(self.states) - set(self.ownership.tokens):
            del self.states[shard]
        self._known_pools.clear()  # the server may have lost its data, and the names of pools with it

    def doubt(self) -> None:
        """A reply was lost: look at everything that may have been in it."""
        for state in self.states.values():
            state.recover = True
            state.taken.clear()
            state.answered.clear()

    def busy(self, redis_now: int) -> list[int]:
        """Shards that have something to do without waiting for news."""
        return [
            s
            for s in self.ownership.tokens
            if (x := self.state(s)).more or x.recover or x.taken or x.answered or x.is_due(redis_now)
        ]

    def next_timer(self) -> int:
        """When the next timer or slot is due, 0 for none."""
        times = (
            t
            for s in self.states.values()
            for t in (s.next_timer, s.next_slot, s.next_backfill, s.next_hook)
            if t > 0
        )
        return min(times, default=0)

    def pump(self, shards: Iterable[int], redis_now: int = 0) -> list[Ended]:
        """One turn for these shards; returns the runs that ended. Raises Unavailable; then call `doubt`.

        Slots that are due by `redis_now` become runs, some DAGs a turn, so that everybody else is served in between.
        """
        ended: list[Ended] = []
        offers: dict[tuple[str, int], list[Offer]] = defaultdict(list)
        for shard, done in self._advance([s for s in shards if s in self.ownership.tokens]):
            ended += done.ended
            for offer in done.offers:
                offers[offer.pool, shard].append(offer)
            if done.stops:
                self.store.shard.revoke_stops(shard)
            if 0 < done.next_slot <= redis_now:
                ended += self._fire(shard, offers)
            if 0 <= done.next_backfill <= redis_now:
                self._backfill(shard, offers, redis_now)
            if 0 < done.next_hook <= redis_now:
                self.state(shard).next_hook = self.hooks.deliver(shard, redis_now)
        self._offer(offers, "")
        for shard in [s for s, x in self.states.items() if x.recover and not x.more]:
            self._recover(shard)
        return ended

    def _advance(self, shards: list[int]) -> list[tuple[int, Advance]]:
        calls = []
        for shard in shards:
            state = self.state(shard)
            taken, state.taken = state.taken[:CHUNK], state.taken[CHUNK:]
            answered, state.answered = state.answered[:CHUNK], state.answered[CHUNK:]
            token = self.ownership.tokens[shard]
            pools = self._pools(shard)
            calls.append(self.store.shard.advance_call(shard, token, SLICE, taken, answered, pools))
        done = []
        for shard, reply in zip(shards, self.store.scripts.many(calls) if calls else (), strict=True):
            if isinstance(reply, Fenced):
                self.deposed(shard, reply)
                continue
            if isinstance(reply, Exception):
                raise reply
            answer = ShardStore.advance_answer(reply)
            state = self.state(shard)
            state.more, state.next_timer, state.outbox = answer.more, answer.next_timer, answer.outbox
            state.next_slot, state.next_backfill = answer.next_slot, answer.next_backfill
            state.next_hook = answer.next_hook
            done.append((shard, answer))
        return done

    def _pools(self, shard: int) -> tuple[str, ...]:
        return self.state(shard).pools if self.together else ()

    def _offer(self, offers: dict[tuple[str, int], list[Offer]], cursor: str) -> None:
        calls, where = [], []
        for (pool, shard), some in offers.items():
            if shard not in self.ownership.tokens:
                continue  # lost since the offers were made: its next owner finds them in the outbox
            self._note_pool(pool)
            state = self.state(shard)
            if pool not in state.pools:
                state.pools = (pool, *state.pools)[:HANDED]
            number = fence(self.ownership.tokens[shard])
            for i in range(0, len(some), CHUNK):
                part = some[i : i + CHUNK]
                calls.append(self.store.pool.offer_call(pool, shard, number, cursor or NOW, part))
                where.append((shard, part))
        for (shard, part), reply in zip(where, self.store.scripts.many(calls) if calls else (), strict=True):
            if isinstance(reply, Fenced):
                self.ownership.outdated(shard, reply)
                self.states.pop(shard, None)
            elif isinstance(reply, Exception):
                raise reply
            else:
                letters = PoolStore.offer_answer(reply) or MISSING * len(part)
                self._note_answers(shard, part, letters, in_doubt=bool(cursor))

    def _note_answers(self, shard: int, part: list[Offer], letters: str, *, in_doubt: bool) -> None:
        if shard not in self.ownership.tokens:
            return
        state = self.state(shard)
        taken = [o.attempt_id for o, letter in zip(part, letters, strict=True) if letter == "T"]
        if in_doubt:
            state.answered += [f"q{attempt_id}" for attempt_id in taken]
            state.recover |= "B" in letters
        else:
            state.taken += taken
            if len(taken) < len(part):
                state.answered += [
                    f"r{o.attempt_id}" for o, letter in zip(part, letters, strict=True) if letter != "T"
                ]

    def _note_pool(self, pool: str) -> None:
        """The default pool is made at first use; its name is written before, so that the leader looks after it."""
        if pool == DEFAULT_POOL and pool not in self._known_pools:
            with self.store.translate():
                self.store.client.sadd(self.store.keys.control + "pools", pool)
            self._known_pools.add(pool)

    def _fire(self, shard: int, offers: dict[tuple[str, int], list[Offer]]) -> list[Ended]:
        try:
            made, ended, look = self.calendar.fire(shard, self.ownership.tokens[shard], self._pools(shard))
        except Fenced as refusal:
            self.deposed(shard, refusal)
            return []
        self.state(shard).next_slot = look
        for offer in made:
            offers[offer.pool, shard].append(offer)
        return ended

    def _backfill(self, shard: int, offers: dict[tuple[str, int], list[Offer]], now: int) -> None:
        if shard not in self.ownership.tokens:
            return
        try:
            made = self.backfills.step(shard, self.ownership.tokens[shard], now, self._pools(shard))
        except Fenced as refusal:
            self.deposed(shard, refusal)
            return
        for offer in made:
            offers[offer.pool, shard].append(offer)

    def deposed(self, shard: int, refusal: Fenced) -> None:
        self.ownership.deposed(shard, refusal)
        self.states.pop(shard, None)

    def _recover(self, shard: int) -> None:
        """As a new owner does: show the fence to every pool, then offer everything that the outbox holds."""
        token = self.ownership.tokens.get(shard)
        if token is None:
            return
        state = self.state(shard)
        try:
            if not self._show_fence(shard, token):
                return
            self.reoffer(shard, pages=None)
        except Fenced as refusal:
            self.deposed(shard, refusal)
            return
        state.recover = False

    def _show_fence(self, shard: int, token: str) -> bool:
        """To every pool, so that an earlier owner can't offer any more; False if one has seen a higher fence."""
        try:
            for pool in self.store.pool.names():
                self.store.pool.offer(pool, shard, fence(token), NOW, [])
        except Fenced as refusal:
            self.ownership.outdated(shard, refusal)
            self.states.pop(shard, None)
            return False
        return True

    def reoffer(self, shard: int, pages: int | None = PAGES) -> None:
        """Offer the outbox again: all of it as a new owner's recovery, else some pages of what pools did not take."""
        state = self.state(shard)
        after = state.page if pages else ""
        for _ in range(pages or sys.maxsize):
            after, offers, cursor = self.store.shard.ready(shard, self.ownership.tokens[shard], after)
            grouped: dict[tuple[str, int], list[Offer]] = defaultdict(list)
            for offer in offers:
                grouped[offer.pool, shard].append(offer)
            self._offer(grouped, cursor)
            if not after or shard not in self.ownership.tokens:
                break
        state.page = after


MISSING = "-"  # there is no such pool
# A fresh offer comes from the very call that made the task ready: no pool can have seen it, nor let it go.
NOW = "9007199254740991-0"
