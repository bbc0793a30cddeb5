"""Pools as workers, schedulers and people reach them: one typed method a script, with the same name.

A stream entry is only a hint; `start` makes it a grant. Knows nothing of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redsched.errors import NotFound
from redsched.store.connect import stream_entries, translate

if TYPE_CHECKING:
    from redsched.store import Store
    from redsched.store.cluster import Reads
    from redsched.store.scripts import Call

GROUP = "workers"
DEFAULT_POOL = "default"
DEFAULT_SLOTS = 128
SHARE_MINUTES = 5


class Hint(NamedTuple):
    """A stream entry that a worker has read. payload: `version,logical_ms,kind,flags,digest`."""

    pool: str
    entry: str
    attempt_id: str
    payload: str


class Offer(NamedTuple):
    """A ready task, as the shard hands it to its pool. terms: `slots,priority,group,weight;payload`."""

    attempt_id: str
    pool: str
    terms: str
    created_ms: str = "0"  # of its run: older ones go first


class PoolStore:
    """All pools of one installation."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _key(self, pool: str) -> tuple[str]:
        return (self._store.keys.pool(pool),)

    def _call(self, name: str, pool: str, *args: str | int | bytes) -> Any:
        return self._store.scripts.call(f"pool/{name}", self._key(pool), *args)

    # ---- workers

    def read(
        self, consumer: str, pools: Sequence[str], count: int, block_ms: int, history: bool = False
    ) -> list[Hint]:
        """New hints, or with `history` those delivered to this consumer before and never granted.

        A stream or group that vanished is made again, with everything that the pool's own records say belongs there.
        """
        from redis.exceptions import ResponseError

        streams = {self._key(p)[0] + "stream": "0" if history else ">" for p in pools}
        names = dict(zip(streams, pools, strict=True))
        block = None if history else block_ms or None

        def ask() -> Any:
            if reads := self._store.clients.reads:
                return _read_apart(reads, consumer, streams, count, block or 0)
            wait = ("BLOCK", block) if block else ()
            words = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, *wait, "STREAMS")
            return self._store.reader.execute_command(*words, *streams, *streams.values())

        with translate():
            try:
                reply = ask()
            except ResponseError as error:
                if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                    raise
                for pool in pools:
                    self._call("revive", pool)
                reply = ask()
        hints: list[Hint] = []
        for key, entries in stream_entries(reply):
            for entry, fields in entries:
                # An entry that was deleted after its delivery comes back without fields: nothing to run, only to acknowledge.
                attempt, payload = fields.get(b"id", b"-/-/0/0"), fields.get(b"payload", b"")
                hints.append(Hint(names[key.decode()], entry.decode(), attempt.decode(), payload.decode()))
        return hints[: max(count, 0)] if len(pools) == 1 else hints

    def start(self, worker: str, nonce: str, hints: Sequence[Hint]) -> list[bool]:
        """Turn hints into grants; False: not wanted (any more). The same nonce gives the same answer."""
        granted: dict[tuple[str, str], bool] = {}
        lease = self._store.settings.worker_lease_ms
        for pool, some in _by_pool(hints).items():
            args = [x for h in some for x in (h.entry, h.attempt_id)]
            letters = self._call("start", pool, worker, nonce, lease, *args).decode()
            granted.update({(h.entry, h.attempt_id): c == "G" for h, c in zip(some, letters, strict=True)})
        return [granted[h.entry, h.attempt_id] for h in hints]

    def give_back(self, worker: str, nonce: str, hints: Sequence[Hint]) -> None:
        """What was not begun goes on the stream again. Only this nonce's grants, or hints nobody was granted."""
        for pool, some in _by_pool(hints).items():
            self._call("give_back", pool, nonce, *(x for h in some for x in (h.entry, h.attempt_id)))

    def release(self, nonce: str, granted: Sequence[Hint]) -> None:
        """The attempts have been reported: their slots go to those who wait."""
        for pool, some in _by_pool(granted).items():
            self._call("release", pool, nonce, *(h.attempt_id for h in some))

    def heartbeat(self, worker: str, pool: str, attempt_ids: Sequence[str]) -> list[str]:
        """Renew the leases; the answer names attempts that this worker should stop (and then release)."""
        if not attempt_ids:
            return []
        reply = self._call("heartbeat", pool, worker, self._store.settings.worker_lease_ms, *attempt_ids)
        return [x.decode() for x in reply]

    def leave(self, consumer: str, pools: Sequence[str]) -> bool:
        """Remove the consumer from the groups where nothing is pending for it."""
        left = [self._call("leave", pool, consumer) for pool in pools]
        return all(left)

    # ---- schedulers

    def offer(self, pool: str, shard: int, fence: int, cursor: str, offers: Sequence[Offer]) -> str | None:
        """One letter an offer: T taken, B behind, W wider than the pool; None: no such pool. Raises Fenced."""
        name, keys, args = self.offer_call(pool, shard, fence, cursor, offers)
        return self.offer_answer(self._store.scripts.call(name, keys, *args))

    def offer_call(self, pool: str, shard: int, fence: int, cursor: str, offers: Sequence[Offer]) -> Call:
        new = DEFAULT_SLOTS if pool == DEFAULT_POOL and offers else ""
        flat = [x for id, _, terms, created in offers for x in (id, terms, created)]
        return (
            "pool/offer",
            self._key(pool),
            (f"shard{shard}", fence, cursor.partition("-")[0], new, *flat),
        )

    @staticmethod
    def offer_answer(reply: Any) -> str | None:
        return None if reply[0] == b"NOPOOL" else str(reply[1].decode())

    def revoke(self, pool: str, attempt_ids: Sequence[str]) -> int:
        """These are not wanted any more; returns how many a worker has to stop."""
        return int(self._call("revoke", pool, *attempt_ids))

    def reap(
        self, pool: str, fence: int, *, rested: bool = False, limit: int = 500
    ) -> tuple[int, dict[str, str]]:
        """(attempts under a lease, those whose worker fell silent with its name; they stay listed until `reaped`).

        `rested`: Redis was away, so nobody could renew: one more lease of time before anything is taken back.
        """
        lease = self._store.settings.worker_lease_ms
        flat = self._call("reap", pool, fence, lease, limit, "1" if rested else "")
        return flat[0], {flat[i].decode(): flat[i + 1].decode() for i in range(1, len(flat), 2)}

    def tidy(self, pool: str, fence: int, idle_ms: int) -> int:
        """Take out consumers that have nothing pending and have not asked for so long."""
        return int(self._call("tidy", pool, fence, idle_ms))

    def reaped(self, pool: str, attempt_ids: Sequence[str]) -> None:
        self._call("reaped", pool, *attempt_ids)

    def _since(self, key: str, firsts: dict[str, list[bytes]]) -> dict[str, int]:
        """Since when (ms) the first of each group has waited."""
        listed = [(group, ids[0]) for group, ids in firsts.items() if ids]
        found = self._store.client.hmget(key + "entries", [i for _, i in listed]) if listed else []
        times = {g: _waiting_since(e) for (g, _), e in zip(listed, found, strict=True)}
        return {g: ms for g, ms in times.items() if ms is not None}

    # ---- people

    def configure(self, pool: str, slots: int, *, only_new: bool = False) -> bool:
        """Make a pool or change its slots; True if it is new."""
        with self._store.translate():
            self._store.client.sadd(self._store.keys.control + "pools", pool)
        return bool(self._call("configure", pool, slots, "1" if only_new else "")[0])

    def delete(self, pool: str) -> int:
        """Delete an empty pool: 0, or the number of entries that keep it. Then `forget` it. Raises NotFound."""
        return int(self._call("delete", pool)[1])

    def forget(self, pool: str) -> None:
        """Take its name off the list of pools."""
        with self._store.translate():
            self._store.client.srem(self._store.keys.control + "pools", pool)

    def names(self) -> list[str]:
        with self._store.translate():
            found = self._store.client.smembers(self._store.keys.control + "pools")
        return sorted(x.decode() for x in found)

    def show(self, pool: str) -> dict[str, Any]:
        """`{"pool", "slots", "used", "waiting", "running", "groups"}`. Raises NotFound.

        Of each group: who waits, since when its first has waited, what it was given in the last minutes, and its share.
        """
        key = self._key(pool)[0]
        client = self._store.client
        with self._store.translate():
            pipe = client.pipeline(transaction=False)
            pipe.hget(key + "meta", "slots")
            pipe.scard(key + "held")
            pipe.zcard(key + "lease")
            pipe.zrange(key + "groups", 0, -1)
            pipe.time()
            slots, used, running, groups, (now, _) = pipe.execute()
            if slots is None:
                raise NotFound(
                    f"pool {pool!r} does not exist; make it with: redsched pool set {pool} --slots N"
                )
            pipe = client.pipeline(transaction=False)
            for group in groups:
                pipe.zcard(key + "wait:" + group.decode())
                pipe.zrange(key + "wait:" + group.decode(), 0, 0)
            for minute in range(now // 60, now // 60 - SHARE_MINUTES, -1):
                pipe.hgetall(f"{key}shares:{minute}")
            replies = pipe.execute()
            names = [g.decode() for g in groups]
            waiting = dict(zip(names, replies[0 : 2 * len(names) : 2], strict=True))
            since = self._since(key, dict(zip(names, replies[1 : 2 * len(names) : 2], strict=True)))
            given = _shares(replies[2 * len(names) :])
        return {
            "pool": pool,
            "slots": int(slots),
            "used": used,
            "waiting": sum(waiting.values()),
            "running": running,
            "groups": {
                name: {
                    "waiting": waiting.get(name, 0),
                    "waiting_s": round(now - since[name] / 1000, 1) if name in since else None,
                    "given": given.get(name, 0),
                    "share": round(given.get(name, 0) / sum(given.values()), 3) if given else 0.0,
                }
                for name in sorted({*waiting, *given})
            },
        }


def _read_apart(
    reads: Reads, consumer: str, streams: dict[str, str], count: int, block: int
) -> list[tuple[bytes, Any]]:
    """In a cluster: one read a pool. With several, what is there is asked for first, because to end a wait costs connections."""

    def words(key: str, mark: str | bytes, *wait: str | int) -> tuple[str | bytes | int, ...]:
        return ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", count, *wait, "STREAMS", key, mark)

    found: dict[str, Any] = {}
    if len(streams) > 1 or not block:
        found = reads.every({key: words(key, mark) for key, mark in streams.items()})
    if not found and block:
        wanted = {key: words(key, mark, "BLOCK", block) for key, mark in streams.items()}
        found, withdrawn = reads.take(wanted, block / 1000)
        unheard = {key: words(key, reads.heard.get((consumer, key), b"0")) for key in withdrawn}
        found |= reads.every(unheard)
    refused = [reply for reply in found.values() if isinstance(reply, Exception)]
    if refused and len(refused) == len(found):
        raise refused[0]
    # Else what was taken goes first: the next read is refused again.
    given = [
        pair for reply in found.values() if not isinstance(reply, Exception) for pair in stream_entries(reply)
    ]
    reads.heard.update({(consumer, key.decode()): entries[-1][0] for key, entries in given if entries})
    return given


def _waiting_since(entry: bytes | None) -> int | None:
    """A waiting entry keeps, in place of a grant's nonce, the time since when it waits."""
    state, _, rest = (entry or b"").partition(b",")
    return int(rest.partition(b",")[0]) if state == b"W" else None


def _shares(minutes: Sequence[Any]) -> dict[str, int]:
    """Slots given to each group over these minutes."""
    given: dict[str, int] = {}
    for found in minutes:
        for group, slots in found.items():
            given[group.decode()] = given.get(group.decode(), 0) + int(slots)
    return given


def _by_pool(hints: Sequence[Hint]) -> dict[str, list[Hint]]:
    pools: dict[str, list[Hint]] = {}
    for hint in hints:
        pools.setdefault(hint.pool, []).append(hint)
    return pools
