"""Which shards this scheduler owns, and how it comes by them and gives them up.

One heartbeat in the control cell is the lease under which all its shards stand. A shard whose owner's heartbeat is gone
is taken by compare-and-set, with a new fence. Being deposed is normal: the shard is dropped, everything else goes on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from redsched.errors import Fenced
from redsched.scheduler.balance import fair_share, holder, to_take
from redsched.store import Store
from redsched.store.control import Beat

log = logging.getLogger("redsched.scheduler")

# How often (in beats) to compare with what others believe: after a failover we may have forgotten shards, or been so.
RECONCILE_BEATS = 10


def fence(token: str) -> int:
    return int(token.rpartition(":")[2])


@dataclass(slots=True)
class Ownership:
    """`tokens` are the shards owned now, each with the token to show in every write."""

    store: Store
    name: str
    tokens: dict[int, str] = field(default_factory=dict)
    live: tuple[str, ...] = ()
    leader: str = ""
    look_at: int = 0  # when, by Redis' clock, the first of the others' leases ends if it is not renewed
    short: bool = True  # of its fair share: it is for others to give up, or for us to take
    _beats: int = 0
    _renewed: int = 0  # when, by Redis' clock
    _overslept: bool = (
        False  # the lease had run out before it was renewed: others may have taken what we call ours
    )
    _doubtful: set[int] = field(default_factory=set)  # asked for, and the reply was lost: perhaps ours

    def beat(self) -> Beat:
        """Renew the lease, look around and move towards the fair share of shards; alone, only at every second beat."""
        self._beats += 1
        look = self._beats % 2 == 1 or len(self.live) != 1 or self.short or not self.leader
        beat = self._say(look=look)
        self._overslept |= 0 < self._renewed < beat.now - self.store.settings.lease_ms
        self._renewed = beat.now
        if look:
            self._balance()
        return beat

    def _say(self, *, look: bool = True) -> Beat:
        """A leader that lives is still the leader, but for one that has slept, or has lost what it wrote."""
        certain = not self._overslept and self._beats % RECONCILE_BEATS != 1
        known = self.leader if certain else ""
        beat = self.store.control.beat(self.name, self.store.settings.lease_ms, look=look, known=known)
        if look:
            self._note(beat)
        return beat

    def _note(self, beat: Beat) -> None:
        gone, led = sorted(set(self.live) - set(beat.live)), self.leader
        if self.live and set(self.live) != set(beat.live):
            log.info("schedulers alive: %d%s", len(beat.live), "".join(f", {x} is gone" for x in gone))
        if beat.leader != self.leader and holder(beat.leader) == self.name:
            log.info("leader, fence %d", fence(beat.leader))
        self.live, self.leader, self.look_at = beat.live, beat.leader, beat.others_until
        if self.leads():
            self._tell_of(gone, led)

    def _tell_of(self, gone: list[str], led: str) -> None:
        """The leader tells who is gone without a word; who took leave has said so himself."""
        silent = self.store.control.schedulers() if gone else {}
        for name in set(gone) & set(silent):
            self._tell("scheduler_gone", f"scheduler {name} fell silent", scheduler=name)
        if led != self.leader:
            text = f"scheduler {self.name} leads, fence {fence(self.leader)}"
            self._tell("leader", f"{text}, after {led}" if led else text)

    def _tell(self, kind: str, text: str, **about: Any) -> None:
        self.store.events.add(kind, text, **{"scheduler": self.name, **about})

    def _balance(self) -> None:
        """Give up what is beyond the fair share, take what is free up to it."""
        if (self._overslept or self._beats % RECONCILE_BEATS == 1) and self._reconcile():
            return  # what is remembered of those shards has to go before they may be ours again
        for shard in sorted(self._doubtful):
            self._take(shard, "")
        share = self._share()
        for shard in sorted(self.tokens)[share:]:
            self.give_up(shard)
        if len(self.tokens) < share:
            self._take_free()
        self.short = len(self.tokens) < self._share()

    def _share(self) -> int:
        return fair_share(self.store.shards, {*self.live, self.name}, self.name)

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
            self._say()
        return name not in self.live

    def leads(self) -> bool:
        return holder(self.leader) == self.name

    def _take_free(self) -> None:
        owners = self.store.control.owners()
        if any(name and name not in self.live for name in map(holder, owners.values())):
            self._say()  # after the owners were read, because one that has just come is in no older list
        for shard in to_take(self.store.shards, owners, self.live, self.name):
            if len(self.tokens) < self._share():
                self._take(shard, holder(owners.get(shard, "")))

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
            text = f"shard {shard} acquired by {self.name}, fence {fence(token)}{after}"
            self._tell("shard_acquired", text, shard=shard, fence=fence(token))

    def give_up(self, shard: int) -> None:
        """The token goes last: a call that is cut off on the way is said again at the next beat."""
        token = self.tokens[shard]
        if self.store.shard.release(shard, token):
            log.info("shard %d released, fence %d", shard, fence(token))
            text = f"shard {shard} released by {self.name}, fence {fence(token)}"
            self._tell("shard_released", text, shard=shard, fence=fence(token))
        self.store.control.note_owner(shard, "")
        del self.tokens[shard]

    def deposed(self, shard: int, refusal: Fenced) -> None:
        token = self.tokens.pop(shard, None)
        if token is not None:
            self.short = True
            # Asked for at the next beat: perhaps nobody has it, and we gave it up in a call whose reply was lost.
            self._doubtful.add(shard)
            log.warning("shard %d lost, fence %d: refused, %s", shard, fence(token), refusal)
            self._tell_lost(shard, token, f"refused, {refusal}")

    def outdated(self, shard: int, refusal: Fenced) -> None:
        """A pool has seen a higher fence: there is a newer owner; or a failover took our fence back, and we need a new one."""
        if shard in self.tokens:
            held = fence(self.tokens[shard])
            log.warning("shard %d given up, fence %d: refused by a pool, %s", shard, held, refusal)
            self._tell_lost(shard, self.tokens[shard], f"refused by a pool, {refusal}")
            self.give_up(shard)
            self.short = True

    def _tell_lost(self, shard: int, token: str, why: str) -> None:
        text = f"shard {shard} lost by {self.name}, fence {fence(token)}: {why}"
        self._tell("shard_lost", text, shard=shard, fence=fence(token))

    def drop_all(self, why: str) -> None:
        """The shards themselves are not what they were: nothing of what we held is ours any more."""
        if self.tokens:
            log.warning("%d shards dropped: %s", len(self.tokens), why)
        self.tokens.clear()
        self._doubtful.clear()
        self.live, self.leader, self.look_at, self.short = (), "", 0, True

    def resign(self, refusal: Fenced) -> None:
        log.warning("leadership given up: %s", refusal)
        self._tell("leader_resigned", f"scheduler {self.name} leads no more: {refusal}")
        self.store.control.resign(self.leader)
        self.leader = ""

    def leave(self) -> None:
        """Hand everything over at once."""
        for shard in list(self.tokens):
            self.give_up(shard)
        self.store.control.leave(self.name)
