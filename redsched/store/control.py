"""The control cell: who is alive, who leads, which pools there are, how many shards. Small, and read rarely."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from redsched.errors import Resharded
from redsched.store.scripts import resharded

if TYPE_CHECKING:
    from redsched.store import Store

WORKER_TTL_MS = 15_000
WORKER_BEAT = "control/worker_beat"


class Beat(NamedTuple):
    """The answer to a scheduler's heartbeat: Redis' time; if it looked around, who leads, who lives, and until when the
    first of the others lives for certain (0 if there is none).
    """

    now: int
    leader: str = ""
    live: tuple[str, ...] = ()
    others_until: int = 0


class ControlStore:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._prefix = store.keys.control
        self._told: dict[str, tuple[str, int]] = {}  # what a worker said of itself, and its number

    def _keys(self, *names: str) -> tuple[str, ...]:
        return tuple(self._prefix + n for n in names)

    def shards(self, wanted: int) -> int:
        """The number of shards, fixed by whoever came first. Raises Resharded while it is being changed."""
        found, target = self.resizing()
        if target:
            raise Resharded(resharded(target=str(target)))
        if not found:
            key = self._prefix + "settings"
            with self._store.translate():
                self._store.client.hsetnx(key, "shards", wanted)
                found = int(self._store.client.hget(key, "shards") or 0)
        return found or wanted

    def resizing(self) -> tuple[int, int]:
        """(the number of shards, 0 if nobody has fixed it; what it is being changed to, else 0)."""
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            pipe.hmget(self._prefix + "settings", ["shards", "resizing"])
            ((shards, target),) = pipe.execute()
        return int(shards or 0), int(target or 0)

    def resize(self, resizer: str, target: int, lease_ms: int) -> list[str]:
        """[OK, shards now], [ALIVE, name, …], [BUSY, who, ms left] or [OTHER, what it is being changed to]."""
        keys = self._keys("settings", "schedulers", "workers")
        reply = self._store.scripts.call("control/resize", keys, resizer, target, lease_ms)
        return [x.decode() if isinstance(x, bytes) else str(x) for x in reply]

    def resized(self, resizer: str, target: int) -> bool:
        """From now on there are so many shards; False if that is another's to say."""
        reply = self._store.scripts.call("control/resized", self._keys("settings", "owners"), resizer, target)
        return bool(reply[0] == b"OK")

    def now(self) -> int:
        """Redis' time in ms."""
        with self._store.translate():
            seconds, micros = self._store.client.time()
        return int(seconds * 1000 + micros // 1000)

    # ---- DAGs that start after others

    def set_after(self, dag: str, upstream: str | None) -> None:
        """Runs of `dag` start when a run of `upstream` has succeeded; None: not any more."""
        key = self._prefix + "after"
        with self._store.translate():
            if upstream is None:
                self._store.client.hdel(key, dag)
            else:
                self._store.client.hset(key, dag, upstream)

    def after(self) -> dict[str, list[str]]:
        """Upstream DAG -> the DAGs that start after it."""
        with self._store.translate():
            found = self._store.client.hgetall(self._prefix + "after")
        followers: dict[str, list[str]] = {}
        for dag, upstream in found.items():
            followers.setdefault(upstream.decode(), []).append(dag.decode())
        return followers

    # ---- backfills

    def new_backfill(self, dag: str) -> str:
        """A fresh id, noted with the DAG that it belongs to."""
        with self._store.translate():
            ident = f"bf{self._store.client.incr(self._prefix + 'backfill_seq')}"
            self._store.client.hset(self._prefix + "backfills", ident, dag)
        return ident

    def backfills(self) -> dict[str, str]:
        """Backfill id -> DAG."""
        with self._store.translate():
            found = self._store.client.hgetall(self._prefix + "backfills")
        return {k.decode(): v.decode() for k, v in found.items()}

    def forget_backfills(self, idents: list[str]) -> None:
        with self._store.translate():
            self._store.client.hdel(self._prefix + "backfills", *idents)

    # ---- schedulers

    def beat(self, scheduler: str, lease_ms: int, *, look: bool = True, known: str = "") -> Beat:
        """Renew; `known` is the leader believed in, or "" to ask. Raises Resharded if the shards are not what they were."""
        keys = self._keys("schedulers", "leader", "leader_fence", "settings")
        args = (scheduler, lease_ms, self._store.shards, "1" if look else "", known)
        asked = time.monotonic()
        reply = self._store.scripts.call("control/beat", keys, *args)
        self._store.trust_shards(asked)  # because nobody can change it while a scheduler lives
        if not look:
            return Beat(int(reply[0]))
        live = tuple(sorted(x.decode() for x in reply[3:]))
        return Beat(int(reply[0]), reply[1].decode(), live, int(reply[2]))

    def leave(self, scheduler: str) -> None:
        self._store.scripts.call("control/leave", self._keys("schedulers", "leader"), scheduler)

    def resign(self, token: str) -> None:
        """Give up leading."""
        self._store.scripts.call("control/resign", self._keys("leader"), token)

    def owners(self) -> dict[int, str]:
        """Shard -> `scheduler:fence`, as last written by owners. Only a directory: the truth is in each shard."""
        with self._store.translate():
            found = self._store.client.hgetall(self._prefix + "owners")
        return {int(k): v.decode() for k, v in found.items()}

    def note_owner(self, shard: int, token: str) -> None:
        with self._store.translate():
            self._store.client.hset(self._prefix + "owners", str(shard), token)

    def schedulers(self) -> dict[str, int]:
        """Scheduler -> ms that are left of its lease (negative: over)."""
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            pipe.time()
            pipe.zrange(self._prefix + "schedulers", 0, -1, withscores=True)
            (seconds, micros), found = pipe.execute()
        now = seconds * 1000 + micros // 1000
        return {name.decode(): int(score) - now for name, score in found}

    def leader(self) -> str:
        with self._store.translate():
            found = self._store.client.get(self._prefix + "leader")
        return found.decode() if found else ""

    # ---- workers

    def worker_beat(self, name: str, info: dict[str, Any]) -> int:
        """Say that the worker lives; returns its number, stable for its name. What has not changed is not said again."""
        keys = self._keys("workers", "worker_info", "worker_numbers", "worker_names")
        text, (told, number) = json.dumps(info), self._told.get(name, ("", 0))
        if text == told and self._store.scripts.call(WORKER_BEAT, keys, name, WORKER_TTL_MS, "") == 0:
            return number
        number = int(self._store.scripts.call(WORKER_BEAT, keys, name, WORKER_TTL_MS, text))
        self._told[name] = (text, number)
        return number

    def worker_leave(self, name: str) -> None:
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            self._told.pop(name, None)
            pipe.zrem(self._prefix + "workers", name)
            pipe.hdel(self._prefix + "worker_info", name)
            pipe.execute()

    def fell_silent(self, within_ms: int) -> list[str]:
        """Workers whose time was over within the last so many ms, and that did not take leave."""
        now = self.now()
        with self._store.translate():
            found = self._store.client.zrange(self._prefix + "workers", now - within_ms, now, byscore=True)
        return [x.decode() for x in found]

    def workers(self) -> list[dict[str, Any]]:
        """Live workers: their info, with `worker`, `number` and `silent_ms`."""
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            pipe.time()
            pipe.zrange(self._prefix + "workers", 0, -1, withscores=True)
            pipe.hgetall(self._prefix + "worker_info")
            pipe.hgetall(self._prefix + "worker_numbers")
            (seconds, micros), alive, info, numbers = pipe.execute()
        now = seconds * 1000 + micros // 1000
        return [
            {
                **json.loads(info.get(name, b"{}")),
                "worker": name.decode(),
                "number": int(numbers.get(name, 0)),
                "silent_ms": max(0, now - (int(score) - WORKER_TTL_MS)),
            }
            for name, score in alive
            if score > now
        ]

    def worker_names(self, numbers: set[int]) -> dict[int, str]:
        if not numbers:
            return {}
        listed = sorted(numbers)
        with self._store.translate():
            found = self._store.client.hmget(self._prefix + "worker_names", [str(n) for n in listed])
        return {n: v.decode() for n, v in zip(listed, found, strict=True) if v is not None}
