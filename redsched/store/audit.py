"""What an audit reads and how it repairs: looks that are atomic in their cell, and fenced scripts that look once more.

Knows nothing of what is right; that is `redsched/audit`. Requests of people to owners stand in the control cell.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redsched.keys import AttemptId
from redsched.store import codec

if TYPE_CHECKING:
    from redsched.store import Store

STREAM_PAGE = 1000
PLACES = (
    *("active", "queue", "queued_runs", "running_runs", "outbox", "ended"),
    *("runs", "dates", "packed", "expire", "deadline"),
)


class Inbox(NamedTuple):
    """How far a shard's inbox was applied, and its last entry, at the instant of a look."""

    cursor: str
    last: str

    @staticmethod
    def order(entry: str) -> tuple[int, int]:
        ms, _, seq = entry.partition("-")
        return int(ms), int(seq or 0)


class AuditStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def _shard(self, name: str, shard: int, names: str, *args: Any) -> Any:
        keys = self._store.shard.keys(shard, *names.split())
        return self._store.scripts.call(f"shard/{name}", keys, *args)

    def _pool(self, name: str, pool: str, *args: Any) -> Any:
        return self._store.scripts.call(f"pool/{name}", (self._store.keys.pool(pool),), *args)

    # ---- shards

    def names(
        self, shard: int, offset: int, limit: int
    ) -> tuple[list[tuple[str, str]], list[str], list[str]]:
        """A page of (dag, run) by the lists of live runs; stops of attempts that are wanted; timers of no kind."""
        names, stops, timers = self._shard("audit_names", shard, "prefix", offset, limit)
        pairs = (x.decode().split("/") for x in names)
        return (
            [(dag.partition("~")[0], run) for dag, run in pairs],
            [x.decode() for x in stops],
            [x.decode() for x in timers],
        )

    def runs(self, shard: int, runs: Sequence[tuple[str, str, int]]) -> tuple[Inbox, list[Any]]:
        """Raw looks at the first of these runs, as many as one call bears (lua/shard/audit.lua)."""
        cursor, last, looks = self._shard("audit", shard, "prefix inbox meta", *(x for r in runs for x in r))
        return Inbox(cursor.decode(), last.decode()), looks

    def inbox(self, shard: int) -> Inbox:
        return self.runs(shard, ())[0]

    def dags(self, shard: int, dags: Sequence[tuple[str, Sequence[str]]]) -> tuple[Inbox, list[Any]]:
        """Raw looks at DAGs, each with the names of its further limits (lua/shard/audit_dags.lua)."""
        flat = [x for dag, limits in dags for x in (dag, "|".join(limits))]
        cursor, last, looks = self._shard("audit_dags", shard, "prefix inbox meta", *flat)
        return Inbox(cursor.decode(), last.decode()), looks

    def fix_shard(self, shard: int, token: str, repairs: Sequence[tuple[str, ...]]) -> list[bool]:
        """Which of these were done; the others have changed meanwhile. Raises Fenced."""
        flat = [x for repair in repairs for x in repair]
        return [
            bool(x) for x in self._shard("audit_fix", shard, "owner meta inbox timers prefix", token, *flat)
        ]

    def lose(self, attempt_ids: Sequence[str]) -> None:
        """Their pools know nothing of them: as after a worker's loss, a new attempt follows. Fenced by the attempt's number."""
        self._store.shard.lost(dict.fromkeys(attempt_ids, ""), "lost: its pool had no trace of it (audit)")

    def scan(self) -> tuple[set[tuple[str, str]], dict[str, set[str]]]:
        """All live runs (dag, run), and all limits of each DAG, by their keys: what no list names is found, too."""
        runs: set[tuple[str, str]] = set()
        limits: dict[str, set[str]] = defaultdict(set)
        base = f"{{{self._store.keys.namespace}:s:*}}:"
        with self._store.translate():
            for key in self._store.client.scan_iter(match=f"{base}run:*", count=1000):
                _, dag, run = key.decode().partition("}:")[2].split(":", 2)
                runs.add((dag, run))
            for kind in ("busy", "parked"):
                for key in self._store.client.scan_iter(match=f"{base}{kind}:*", count=1000):
                    name = key.decode().partition("}:")[2].partition(":")[2]
                    limits[name.partition(":")[0]].add(name)
        return runs, limits

    def some_dags(self, shard: int, cursor: int, count: int) -> tuple[int, list[str]]:
        """A page of the shard's DAGs, and where the next one begins: 0 at the end."""
        with self._store.translate():
            following, found = self._store.client.sscan(
                self._store.shard.keys(shard, "dags")[0], cursor, count=count
            )
        return int(following), [x.decode() for x in found]

    def indexed(self, dag: str, offset: int, limit: int) -> list[tuple[str, str]]:
        """A page of the runs that the DAG's own list names."""
        with self._store.translate():
            found = self._store.client.zrange(
                f"{self._store.shard.prefix(dag)}runs:{dag}", offset, offset + limit - 1
            )
        return [(dag, x.decode()) for x in found]

    # ---- pools

    def entries(
        self, pool: str, cursor: str, ids: Sequence[str] = (), *, count: int = 100, hints: bool = False
    ) -> tuple[bool, str, list[Any]]:
        """(whether there is such a pool, the next cursor, raw looks): a page, or certain attempts (lua/pool/audit.lua)."""
        slots, following, looks = self._pool("audit", pool, cursor, count, "1" if hints else "", *ids)
        return slots != b"", following.decode(), looks

    def lists(self, pool: str, cursor: str, count: int = 200) -> list[Any]:
        """Places of the pool that nobody stands behind (lua/pool/audit_lists.lua), after the next cursor."""
        return list(self._pool("audit_lists", pool, cursor, count))

    def hinted(self, pool: str) -> set[str]:
        """The attempts on the pool's stream, read in pages."""
        key, found, start = self._store.keys.pool(pool) + "stream", set(), "-"
        with self._store.translate():
            while page := self._store.client.xrange(key, start, "+", count=STREAM_PAGE):
                found |= {fields.get(b"id", b"").decode() for _, fields in page}
                start = "(" + page[-1][0].decode()
        return found

    def unwanted(self, pool: str, attempt_ids: Sequence[str]) -> dict[str, str]:
        """Those that their shards do not want, and are not about to have stopped: attempt id -> what it is there."""
        known = {i: AttemptId.parse(i) for i in attempt_ids}
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            for a in known.values():
                prefix = self._store.shard.prefix(a.dag)
                pipe.hget(f"{prefix}dag:{a.dag}", "generation")
                pipe.hget(f"{prefix}run:{a.dag}:{a.run}", str(a.task))
            replies = pipe.execute()
        found: dict[str, str] = {}
        for (i, a), generation, value in zip(known.items(), replies[::2], replies[1::2], strict=True):
            record = codec.decode_record(value.decode() if value else None)
            current = generation is not None and int(generation) == a.generation
            if (
                not current
                or record.attempt != a.attempt
                or record.state not in ("ready", "queued", "running")
            ):
                found[i] = f"attempt {record.attempt}, {record.state}" if current and value else "gone"
        # After the records: whoever changed one had put it among the stops by then.
        shards = {self._store.shard.of(known[i].dag) for i in found}
        stops = {s for shard in shards for s in self._store.shard.stops(shard)}
        return {i: what for i, what in found.items() if f"{pool}/{i}" not in stops}

    def fix_pool(self, pool: str, fence: int, repairs: Sequence[tuple[str, ...]]) -> list[bool]:
        """Which of these were done. Raises Fenced."""
        lease = self._store.settings.worker_lease_ms
        flat = [x for repair in repairs for x in repair]
        return [bool(x) for x in self._pool("audit_fix", pool, fence, lease, *flat)]

    def losses(self, attempt_ids: Sequence[str]) -> dict[str, int]:
        """How often in a row each of these was lost before, as far as it is the current one."""
        known = {i: AttemptId.parse(i) for i in attempt_ids}
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            for a in known.values():
                pipe.hget(f"{self._store.shard.prefix(a.dag)}run:{a.dag}:{a.run}", str(a.task))
            replies = pipe.execute()
        records = {
            i: codec.decode_record(x.decode() if x else None) for i, x in zip(known, replies, strict=True)
        }
        return {i: r.losses for i, r in records.items() if r.attempt == known[i].attempt}

    # ---- requests: a person asks the owners

    @property
    def _requests(self) -> str:
        return self._store.keys.control + "audit"

    def request(self, cells: dict[str, dict[str, Any]]) -> None:
        """Ask the owners (the leader, for pools) of `s:<shard>` and `p:<pool>` to look at what is named, and to repair it."""
        with self._store.translate():
            self._store.client.hset(self._requests, mapping={c: json.dumps(v) for c, v in cells.items()})

    def wake(self, shard: int) -> None:
        """Something happens in the shard: its owner looks for requests, too."""
        fields = {"kind": "wake", "id": "-", "outcome": "", "ms": "0"}
        with self._store.translate():
            self._store.client.xadd(self._store.shard.keys(shard, "inbox")[0], fields)

    def requests(self) -> dict[str, str]:
        """Cell -> what was asked, as it stands there."""
        with self._store.translate():
            return codec.text_map(self._store.client.hgetall(self._requests))

    def served(self, cell: str) -> None:
        with self._store.translate():
            self._store.client.hdel(self._requests, cell)
