"""Another number of shards, while nothing runs: `redsched shards resize N`.

Each member of each key is moved by itself: written at its new place, then taken off the old one. So whoever is killed on
the way leaves nothing half moved, and saying it again goes on. All writes carry the fence of their cell, as a scheduler's
do, so a resize that slept can't write over what came after; what anybody else says meanwhile is refused and said again.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from redsched.errors import Conflict, Fenced
from redsched.keys import shard_of

if TYPE_CHECKING:
    from redsched.store import Store

    Thing = tuple[str, str, Any, Any]

SLICE: Final = 200
KEYS_A_BATCH: Final = 200
THINGS_A_CALL: Final = 500
BYTES_A_CALL: Final = 1_000_000
SHOWN: Final = 3


def _first(member: str) -> str:
    return member.split("/", 1)[0]


def _second(member: str) -> str:
    return member.split("/", 2)[1]


# Keys of a shard that hold members of many DAGs, and where a member names its DAG. All others are `kind:<dag>[:…]`.
INDEXES: Final[Mapping[str, Callable[[str], str]]] = {
    **dict.fromkeys(("dags", "generations", "slots"), str),
    **dict.fromkeys(("outbox", "queued_runs", "running_runs", "recent", "ended"), _first),
    **dict.fromkeys(("hooks", "hook_tries", "backfill_look"), _first),
    **dict.fromkeys(("timers", "stops"), _second),
}
# What is the shard's own, and stays: a cell that is none any more keeps its fence, so that it never goes back.
OWN: Final = ("owner", "fence", "meta", "inbox", "closed")


@dataclass
class Resized:
    """What was moved, or would be. `dags` of all that there are have another shard."""

    shards_from: int
    shards_to: int
    dags: int
    dags_to_move: int
    keys: int = 0
    members: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        return {"from": found.pop("shards_from"), "to": found.pop("shards_to"), **found}


def plan(store: Store, target: int) -> Resized:
    """How many DAGs would move. Raises Conflict if this version does not know all that is there."""
    now, under_way = store.control.resizing()
    now = now or store.settings.shards
    if under_way and under_way != target:
        raise Conflict(_other(str(under_way)))
    for name, shard in _names(store):
        if ":" not in name and name not in INDEXES and name not in OWN:
            raise Conflict(
                f"shard {shard} holds {name!r}, which this version of redsched does not know; use the newest one"
            )
    cells = range(max(now, target))
    with store.translate():
        pipe = store.client.pipeline(transaction=False)
        for shard in cells:
            pipe.smembers(store.shard.keys(shard, "dags")[0])
        listed = [
            (shard, dag.decode()) for shard, some in zip(cells, pipe.execute(), strict=True) for dag in some
        ]
    dags = len({dag for _, dag in listed})
    return Resized(now, target, dags, sum(shard_of(dag, target) != shard for shard, dag in listed))


def check(store: Store) -> None:
    """Raises Conflict while anything runs that a resize would take the ground from under, with how to stop it."""
    alive = [f"scheduler {name}" for name, left in store.control.schedulers().items() if left > 0]
    _refuse(alive + [f"worker {w['worker']}" for w in store.control.workers()])
    _nothing_is_granted(store)


def resize(
    store: Store, target: int, *, forget_s: float | None = None, tell: Callable[[str], None] = print
) -> Resized:
    """Do it, or finish what was begun. Raises Conflict, and has changed nothing, if something is alive.

    forget_s: it lasts at least so long, after which nobody goes by the old number any more.
    """
    from redsched.store import TRUST_S

    begun = time.monotonic()
    found = plan(store, target)
    if found.shards_from == target and not store.control.resizing()[1]:
        return found
    check(store)
    mover = Mover(store, found, tell)
    mover.begin()
    mover.take()
    mover.drain()
    while mover.move():
        pass  # one more look, until a whole one finds nothing
    time.sleep(max(0.0, begun + (TRUST_S + 1 if forget_s is None else forget_s) - time.monotonic()))
    mover.end()
    store.forget_shards()
    found.seconds = round(time.monotonic() - begun, 1)
    return found


def _refuse(alive: list[str]) -> None:
    if alive:
        more = f" and {len(alive) - SHOWN} more" if len(alive) > SHOWN else ""
        raise Conflict(
            f"shards can be moved only while nothing runs, and {', '.join(alive[:SHOWN])}{more} "
            f"{'is' if len(alive) == 1 else 'are'} alive. Stop all schedulers and workers (SIGTERM, `systemctl stop`, Ctrl-C of "
            "`redsched up`); one that was killed counts as alive for its lease: a scheduler for 3 s, a worker for 15 s"
        )


def _nothing_is_granted(store: Store) -> None:
    for pool in store.pool.names():
        with store.translate():
            held = store.client.zrange(store.keys.pool(pool) + "lease", 0, SHOWN - 1)
        if held:
            raise Conflict(
                f"pool {pool!r} has attempts that a worker may still be running ({', '.join(x.decode() for x in held)}): its "
                "worker was killed. Run `redsched scheduler` until `redsched pool list` shows 0 used, which takes "
                f"{store.settings.worker_lease_ms / 1000:g} s after the worker's death, and stop it"
            )


def _other(target: str) -> str:
    return f"the number of shards is being changed to {target}; finish that first: redsched shards resize {target}"


def _names(store: Store) -> Iterator[tuple[str, int]]:
    """(name without prefix, shard) of every key of every shard, also of those that are none any more."""
    start = store.keys.shard(0).removesuffix("0}:")
    with store.translate():
        for key in store.client.scan_iter(match=f"{start}*", count=1000):
            shard, _, name = key.decode().removeprefix(start).partition("}:")
            yield name, int(shard)


@dataclass
class Mover:
    """Owns every shard, and moves what is not where it belongs."""

    store: Store
    found: Resized
    tell: Callable[[str], None]
    name: str = field(
        default_factory=lambda: f"resize:{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(2)}"
    )
    tokens: dict[int, str] = field(default_factory=dict)
    _renewed: float = 0.0
    _told: float = field(default_factory=time.monotonic)

    # ---- the right to do it

    def begin(self) -> None:
        """Wait for the lease of one that was killed; then nobody joins any more."""
        patience = time.monotonic() + 2 * self.store.settings.lease_ms / 1000
        while (answer := self._say())[0] == "BUSY" and time.monotonic() < patience:
            time.sleep(min(1.0, int(answer[2]) / 1000 + 0.01))
        self._check(answer)

    def _say(self) -> list[str]:
        self._renewed = time.monotonic()
        return self.store.control.resize(self.name, self.found.shards_to, self.store.settings.lease_ms)

    def _check(self, answer: list[str]) -> None:
        if answer[0] == "ALIVE":
            _refuse(answer[1:])
        if answer[0] == "OTHER":
            raise Conflict(_other(answer[1]))
        if answer[0] == "BUSY":
            raise Conflict(f"{answer[1]} is moving the shards already; wait for it")

    def _renew(self) -> None:
        if time.monotonic() > self._renewed + self.store.settings.lease_ms / 3000:
            self._check(self._say())

    def take(self) -> None:
        """Own and close every cell, and show the new fence to every pool, so that no earlier owner can write or offer."""
        pools = self.store.pool.names()
        cells = {shard for _, shard in _names(self.store)}
        cells |= set(range(max(self.found.shards_from, self.found.shards_to)))
        word = f"{self.found.shards_from} {self.found.shards_to}"
        for shard in sorted(cells):
            self._renew()
            self._own(shard)
            self.store.shard.close(shard, self.tokens[shard], word)
            for pool in pools:
                self._show(pool, shard)

    def _own(self, shard: int) -> None:
        mine, token = self.store.shard.acquire(shard, self.name, "")
        while not mine:  # those who hold it are not alive
            mine, token = self.store.shard.acquire(shard, self.name, token.rpartition(":")[0])
        self.tokens[shard] = token

    def _show(self, pool: str, shard: int) -> None:
        while True:
            try:
                self.store.pool.offer(pool, shard, int(self.tokens[shard].rpartition(":")[2]), "0-0", [])
                return
            except Fenced:  # a failover took fences back: ours has to grow past what the pool has seen
                self.store.shard.release(shard, self.tokens[shard])
                self._own(shard)

    def drain(self) -> None:
        """Apply what happened; the offers stay in the outbox. Stops are told now."""
        for shard, token in self.tokens.items():
            self._renew()
            while (done := self.store.shard.advance(shard, token, SLICE)).more or done.applied:
                pass
            while self.store.shard.stops(shard):
                self.store.shard.revoke_stops(shard)

    # ---- moving

    def move(self) -> int:
        """One look at everything; returns how many members went."""
        before, batch = self.found.members, []
        for name, shard in _names(self.store):
            if name in OWN or (":" in name and shard_of(name.split(":")[1], self.found.shards_to) == shard):
                continue
            batch.append((name, shard))
            if len(batch) == KEYS_A_BATCH:
                self._move(batch)
                batch = []
        self._move(batch)
        return self.found.members - before

    def _move(self, batch: list[tuple[str, int]]) -> None:
        going: dict[int, list[Thing]] = defaultdict(list)
        leaving: dict[int, list[tuple[str, str, Any]]] = defaultdict(list)
        moved = set()
        for (name, here), things in zip(batch, self._read(batch), strict=True):
            for thing in things:
                there = shard_of(self._dag_of(name, thing), self.found.shards_to)
                if there == here:
                    continue
                moved.add((name, here))
                going[there].append(thing)
                if thing[0] != "ttl":
                    leaving[here].append(_leaving(thing))
        self._write(going, self.store.shard.adopt_call)
        self._write(leaving, self.store.shard.shed_call)
        self.found.keys += len(moved)
        self.found.members += sum(map(len, leaving.values()))
        if moved and time.monotonic() > self._told + 1:
            self._told = time.monotonic()
            self.tell(f"{self.found.keys} keys moved")

    @staticmethod
    def _dag_of(name: str, thing: Thing) -> str:
        if ":" in name:
            return name.split(":")[1]
        kind, _, one, two = thing
        member = one if kind == "hash" else two
        return INDEXES[name](member.decode()).partition("~")[0]

    def _read(self, batch: list[tuple[str, int]]) -> list[list[Thing]]:
        self._renew()
        keys = [self.store.keys.shard(shard) + name for name, shard in batch]
        with self.store.translate():
            pipe = self.store.client.pipeline(transaction=False)
            for key in keys:
                pipe.type(key)
                pipe.ttl(key)
            heads = pipe.execute() if keys else []
            pipe = self.store.client.pipeline(transaction=False)
            kinds = [kind.decode() for kind in heads[::2]]
            for key, kind in zip(keys, kinds, strict=True):
                _ask(pipe, kind, key)
            values = pipe.execute() if keys else []
        return [
            _things(name, kind, value, ttl)
            for (name, _), kind, ttl, value in zip(batch, kinds, heads[1::2], values, strict=True)
        ]

    def _write(self, things: Mapping[int, list[Any]], call: Callable[..., Any]) -> None:
        for shard, some in things.items():
            for part in _parts(some):
                self._renew()
                self.store.scripts.call(*_flat(call(shard, self.tokens[shard], part)))

    # ---- the end

    def end(self) -> None:
        """Open the shards that there are from now on; the others stay closed. Killed here, it is said again."""
        target = self.found.shards_to
        for shard, token in self.tokens.items():
            self._renew()
            self.store.shard.close(shard, token, "" if shard < target else str(target))
        if not self.store.control.resized(self.name, target):
            raise Conflict("another resize has taken over; wait for it")
        for shard, token in self.tokens.items():
            self.store.shard.release(shard, token)


def _ask(pipe: Any, kind: str, key: str) -> None:
    if kind == "hash":
        pipe.hgetall(key)
    elif kind == "zset":
        pipe.zrange(key, 0, -1, withscores=True)
    elif kind == "set":
        pipe.smembers(key)
    elif kind == "list":
        pipe.lrange(key, 0, -1)
    else:
        pipe.get(key)  # nothing, if it is gone meanwhile


def _things(name: str, kind: str, value: Any, ttl: int) -> list[Thing]:
    if kind == "hash":
        found: list[Thing] = [(kind, name, field, item) for field, item in value.items()]
    elif kind == "zset":
        found = [(kind, name, _score(score), member) for member, score in value]
    elif kind == "set":
        found = [(kind, name, "", member) for member in value]
    elif kind == "list":
        found = [(kind, name, "", json.dumps([x.decode() for x in value]))] if value else []
    else:
        found = [] if value is None else [("string", name, "", value)]
    return [*found, ("ttl", name, "", ttl)] if found and ttl > 0 else found


def _score(score: float) -> str:
    return str(int(score)) if score == int(score) else repr(score)


def _leaving(thing: Thing) -> tuple[str, str, Any]:
    kind, name, one, two = thing
    if kind == "hash":
        return kind, name, one
    return (kind, name, two) if kind in ("zset", "set") else ("key", name, "")


def _parts(things: list[Any]) -> Iterator[list[Any]]:
    part: list[Any] = []
    size = 0
    for thing in things:
        part.append(thing)
        size += sum(map(len, map(_bytes, thing)))
        if len(part) == THINGS_A_CALL or size > BYTES_A_CALL:
            yield part
            part, size = [], 0
    if part:
        yield part


def _bytes(value: Any) -> Any:
    return value if isinstance(value, bytes | str) else str(value)


def _flat(call: Any) -> list[Any]:
    name, keys, args = call
    return [name, keys, *args]
