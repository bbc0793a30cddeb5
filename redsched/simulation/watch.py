"""What each single answer of Redis must be, told from all answers before it: who owns, who was granted what (I1, I4, I6)."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

from redsched.simulation.server import Words
from redsched.simulation.world import Actor, Broken, World, cell
from redsched.store.scripts import all_scripts


@cache
def owned() -> frozenset[str]:
    """Scripts that only a shard's owner may run: their first argument is the token that they compare."""
    found = (
        s for s in all_scripts().values() if s.args[:1] == ("token",) and {"owner", "meta"} <= set(s.keys)
    )
    return frozenset(s.name.removeprefix("shard/") for s in found)


class Watch:
    """`sizes`: told the slots that pools are given."""

    def __init__(self, world: World, sizes: dict[str, int]) -> None:
        self.world, self.sizes = world, sizes
        self.owners: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self.shown: dict[tuple[str, str], int] = {}
        self.grants: dict[str, str] = {}
        self.reported: dict[str, set[int]] = {}  # when each attempt was said to have finished
        self.refused = 0

    def forget(self) -> None:
        """Redis lost writes: go on from what it says."""
        self.grants.clear()
        self.shown.clear()
        self.fences.clear()
        for shard in list(self.owners):
            (owner,) = self.world.server.raw([("GET", shard + ":owner")])
            self.owners[shard] = owner.decode() if owner else ""

    def reply(self, actor: Actor, words: Words, reply: Any) -> None:
        where, _, name = words[1].removeprefix("redsched_").rpartition("_")[0].partition("_")
        args = words[3 + int(words[2]) :]
        if where == "shard":
            self._shard(actor, name, cell(words[3]), args, reply)
        elif where == "pool":
            self._pool(actor, name, cell(words[3]), args, reply)

    def _shard(self, actor: Actor, name: str, shard: str, args: Words, reply: Any) -> None:
        owner = self.owners.get(shard, "")
        if name in owned():
            fenced = isinstance(reply, Exception) and str(reply).startswith("FENCED")
            self.refused += fenced
            if fenced == (args[0] == owner):
                told = "was refused" if fenced else "was let through"
                raise Broken(
                    f"{actor.name}: {name} in {shard} with {args[0]} {told}; its owner is {owner or 'nobody'}"
                )
        elif name == "acquire" and reply[0] == b"OK":
            token = reply[1].decode()
            number = int(token.rpartition(":")[2])
            if token != owner and number <= self.fences.get(shard, 0):
                raise Broken(f"{shard}: fence {number} was given out again, after {self.fences[shard]}")
            self.owners[shard], self.fences[shard] = token, max(number, self.fences.get(shard, 0))
        elif name == "release" and reply == 1:
            self.owners[shard] = ""
        elif name == "report":
            for attempt, said in pairwise(map(str, args)):
                if said.startswith("finished,"):
                    self.reported.setdefault(attempt, set()).add(self.world.now)

    def _pool(self, actor: Actor, name: str, pool: str, args: Words, reply: Any) -> None:
        if name == "offer":
            self._offer(pool, args, reply)
        elif name == "configure":
            known = pool.rpartition(":")[2].rstrip("}")
            self.sizes[known] = max(self.sizes.get(known, 0), int(args[0]))
        elif name == "start":
            nonce, ids = args[1], args[4::2]
            for attempt, letter in zip(ids, reply.decode(), strict=True):
                if letter == "G" and self.grants.setdefault(attempt, nonce) != nonce:
                    raise Broken(f"{attempt} was granted to {self.grants[attempt]}, and to {nonce}")
        elif name == "give_back":
            for attempt in args[2::2]:
                if self.grants.get(attempt) == args[0]:
                    del self.grants[attempt]

    def _offer(self, pool: str, args: Words, reply: Any) -> None:
        key, fence = (pool, args[0]), int(args[1])
        seen = self.shown.get(key, 0)
        if isinstance(reply, Exception):
            return
        if reply[0] == b"OK":
            if fence < seen:
                raise Broken(f"{pool} took offers of {args[0]} with fence {fence}, after it had seen {seen}")
            self.shown[key] = fence
