"""Shards as schedulers, workers and clients reach them: one typed method a script, with the same name.

Scheduler calls carry a token (`scheduler:fence`) and raise Fenced when it is not the owner's any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from redsched.errors import Conflict, NotFound
from redsched.keys import shard_of
from redsched.store import codec
from redsched.store.pool import Offer

if TYPE_CHECKING:
    from redsched.store import Store
    from redsched.store.cluster import Reads
    from redsched.store.scripts import Arg, Call

REASON_LIMIT = 500
REPORTS_A_CALL = 500
# Tasks that one script edits; more are staged and carried out in slices (`lua/lib/edit.lua`).
EDIT_AT_ONCE = 500


class Ended(NamedTuple):
    """A run that has just ended: `dag/run`, its state, and how long it took."""

    run: str
    state: str
    ms: int


class Due(NamedTuple):
    """A DAG whose next slot is due. `schedule` is the JSON that `register` was given."""

    dag: str
    slot: int
    schedule: str
    queued: int
    active: int


class DueBackfill(NamedTuple):
    """A backfill that may go on, with how many runs it may have more, and its hash."""

    dag: str
    id: str
    room: int
    fields: dict[str, str]


class Firing(NamedTuple):
    """What becomes of a DAG's due slots: runs (ms, run id) and records (ms, reason), and where it goes on."""

    dag: str
    slot: int
    following: int | None
    look: int
    overlap: str
    runs: list[tuple[int, str]]
    skips: list[tuple[int, str]]


class Advance(NamedTuple):
    """What one call of `advance` did and found. Times are ms since the epoch, 0 for none; `next_backfill` -1 for none."""

    applied: int
    more: bool
    next_timer: int
    outbox: int
    offers: list[Offer]
    ended: list[Ended]
    stops: list[str]
    next_slot: int
    next_backfill: int
    next_hook: int


class Report(NamedTuple):
    """What became of an attempt. `result` is JSON text; `skip` are the direct downstream tasks (indexes) not chosen."""

    attempt_id: str
    outcome: Literal["success", "failed", "skipped"]
    ms: int
    reason: str = ""
    result: str | None = None
    final: bool = False
    retry_ms: int | None = None
    skip: tuple[int, ...] = ()


class ShardStore:
    """All shards of one installation."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, dag: str) -> int:
        return shard_of(dag, self._store.shards)

    def prefix(self, dag: str) -> str:
        return self._store.keys.shard(self.of(dag))

    def keys(self, shard: int, *names: str) -> tuple[str, ...]:
        """Keys of a shard by name; `prefix` is the cell's own prefix."""
        base = self._store.keys.shard(shard)
        return tuple(base if n == "prefix" else base + n for n in names)

    def _call(self, name: str, shard: int, names: str, *args: str | int | bytes) -> Any:
        return self._store.scripts.call(f"shard/{name}", self.keys(shard, *names.split()), *args)

    def _all(self, calls: Sequence[Call]) -> list[Any]:
        """In one round trip. Raises the first refusal."""
        replies = self._store.scripts.many(calls) if calls else []
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    # ---- owners

    def acquire(self, shard: int, scheduler: str, expected: str) -> tuple[bool, str]:
        """(True, our token) or (False, the owner's)."""
        word, token = self._call("acquire", shard, "owner fence", scheduler, expected)
        return word == b"OK", token.decode()

    def release(self, shard: int, token: str) -> bool:
        return bool(self._call("release", shard, "owner", token))

    def close(self, shard: int, token: str, word: str) -> None:
        """Only the owner may write from now on; `word` tells others why. "" opens the cell again."""
        self._call("close", shard, "owner meta closed", token, word)

    def adopt_call(self, shard: int, token: str, things: Sequence[tuple[Arg, Arg, Arg, Arg]]) -> Call:
        flat = [x for thing in things for x in thing]
        return "shard/adopt", self.keys(shard, "owner", "meta", "prefix"), (token, *flat)

    def shed_call(self, shard: int, token: str, things: Sequence[tuple[Arg, Arg, Arg]]) -> Call:
        flat = [x for thing in things for x in thing]
        return "shard/shed", self.keys(shard, "owner", "meta", "prefix"), (token, *flat)

    def advance(
        self, shard: int, token: str, limit: int, taken: Sequence[str] = (), answered: Sequence[str] = ()
    ) -> Advance:
        """taken: attempts whose pools took what became ready. answered: `q<attempt id>` if one took what was in doubt,
        `r<attempt id>` if one did not take what became ready.
        """
        name, keys, args = self.advance_call(shard, token, limit, taken, answered)
        return self.advance_answer(self._store.scripts.call(name, keys, *args))

    def advance_call(
        self,
        shard: int,
        token: str,
        limit: int,
        taken: Sequence[str],
        answered: Sequence[str],
        pools: Iterable[str] = (),
    ) -> Call:
        """pools: those on the same server, to which what becomes ready is handed over at once."""
        keys = self._owner_keys(shard, pools)
        return "shard/advance", keys, (token, limit, len(taken), *taken, *answered)

    def _owner_keys(self, shard: int, pools: Iterable[str]) -> tuple[str, ...]:
        """Of an owner's script that may hand over to these pools (lua/lib/hand.lua)."""
        handed = (self._store.keys.pool(name) for name in pools)
        return (*self.keys(shard, "owner", "meta", "inbox", "prefix"), *handed)

    @staticmethod
    def advance_answer(reply: Any) -> Advance:
        applied, more, timer, outbox, offers, ended, stops, slot, backfill, hook = reply
        return Advance(
            applied,
            bool(more),
            int(float(timer)),
            outbox,
            offers_of(offers),
            ended_of(ended),
            [x.decode() for x in stops],
            int(float(slot)),
            int(float(backfill)),
            int(float(hook)),
        )

    def due(self, shard: int, token: str, limit: int) -> tuple[int, int, list[Due]]:
        """(Redis' time, when to look next or 0, DAGs whose next slot is due)."""
        now, following, *flat = self._call("due", shard, "owner meta prefix", token, limit)
        text = [x.decode() if isinstance(x, bytes) else x for x in flat]
        found = [
            Due(text[i], int(text[i + 1]), text[i + 2], int(text[i + 3]), int(text[i + 4]))
            for i in range(0, len(text), 5)
        ]
        return int(now), int(float(following)), found

    def fire(
        self, shard: int, token: str, firings: Sequence[Firing], pools: Iterable[str] = ()
    ) -> tuple[int, list[Offer], list[Ended], int]:
        """(runs created, offers, runs that ended by it, when to look next or 0)."""
        args: list[str | int] = []
        for f in firings:
            actions = [f"skip:{ms}:{reason}" for ms, reason in f.skips]
            actions += [f"run:{ms}:{run}" for ms, run in f.runs]
            following = "" if f.following is None else f.following
            args += [f.dag, f.slot, following, f.look, f.overlap, "|".join(actions)]
        keys = self._owner_keys(shard, pools)
        created, offers, ended, look = self._store.scripts.call("shard/fire", keys, token, *args)
        return created, offers_of(offers), ended_of(ended), int(float(look))

    def hooks_due(self, shard: int, now: int, limit: int) -> list[tuple[str, int]]:
        """(`dag/run/event/ms`, how often its delivery has failed) of what is to be told now."""
        key, tries = self.keys(shard, "hooks", "hook_tries")
        with self._store.translate():
            found = self._store.client.zrangebyscore(key, "-inf", now, start=0, num=limit)
            failed = self._store.client.hmget(tries, found) if found else []
        return [(x.decode(), int(n or 0)) for x, n in zip(found, failed, strict=True)]

    def hook_done(self, shard: int, member: str) -> None:
        """It was told, or will never be."""
        key, tries = self.keys(shard, "hooks", "hook_tries")
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            pipe.zrem(key, member)
            pipe.hdel(tries, member)
            pipe.execute()

    def hook_again(self, shard: int, member: str, at: int) -> None:
        """It could not be told: once more, then."""
        key, tries = self.keys(shard, "hooks", "hook_tries")
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            pipe.hincrby(tries, member, 1)
            pipe.zadd(key, {member: at}, xx=True)
            pipe.execute()

    def backfill_due(self, shard: int, token: str, limit: int) -> list[DueBackfill]:
        flat = self._call("backfill_due", shard, "owner meta prefix", token, limit)
        return [
            DueBackfill(flat[i].decode(), flat[i + 1].decode(), int(flat[i + 2]), codec.text_map(flat[i + 3]))
            for i in range(0, len(flat), 4)
        ]

    def backfill_step(
        self,
        shard: int,
        token: str,
        due: DueBackfill,
        cursor: int | None,
        look: int,
        runs: Sequence[tuple[int, str]],
        pools: Iterable[str] = (),
    ) -> tuple[bool, list[Offer], list[tuple[int, str, str]]]:
        """(whether it was done, offers, dates that had a run: (ms, run id, its state))."""
        flat = [x for ms, run in runs for x in (ms, run)]
        args = (due.dag, due.id, due.fields.get("cursor", ""), "" if cursor is None else cursor, look, *flat)
        keys = self._owner_keys(shard, pools)
        word, offers, existing = self._store.scripts.call("shard/backfill_step", keys, token, *args)
        text = [x.decode() for x in existing]
        found = [(int(text[i]), text[i + 1], text[i + 2]) for i in range(0, len(text), 3)]
        return word == b"OK", offers_of(offers), found

    def backfill_adopt(
        self, shard: int, token: str, due: DueBackfill, run: str, *, wanted: bool = True
    ) -> bool:
        """An existing run becomes one of the backfill's, or is let go; returns whether it is to run again for it."""
        args = (token, due.dag, due.id, run, int(wanted))
        return bool(self._call("backfill_adopt", shard, "owner meta prefix", *args))

    def ready(
        self, shard: int, token: str, after: str = "", limit: int = 100
    ) -> tuple[str, list[Offer], str]:
        """A page of the outbox: (where the next page begins or '', offers, inbox cursor)."""
        last, offers, cursor = self._call("ready", shard, "owner meta inbox prefix", token, after, limit)
        return last.decode(), offers_of(offers), cursor.decode()

    def stopped(self, shard: int, stops: Sequence[str]) -> None:
        """The pools have been told."""
        with self._store.translate():
            self._store.client.srem(self.keys(shard, "stops")[0], *stops)

    def stops(self, shard: int) -> list[str]:
        with self._store.translate():
            found = self._store.client.smembers(self.keys(shard, "stops")[0])
        return [x.decode() for x in found]

    def to_pack(self, shard: int, limit: int) -> list[tuple[str, str]]:
        """(dag, run) of finished runs that are not packed yet, the oldest first."""
        with self._store.translate():
            found = self._store.client.zrange(self.keys(shard, "ended")[0], 0, limit - 1)
        pairs = [x.decode().split("/") for x in found]
        return [(dag.partition("~")[0], run) for dag, run in pairs]

    def pack(self, shard: int, token: str, runs: Sequence[tuple[str, str]]) -> int:
        """Pack finished runs: read, compress here, replace there if nobody changed them meanwhile."""
        prefix = self._store.keys.shard(shard)
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            for dag, run in runs:
                pipe.hgetall(f"{prefix}run:{dag}:{run}")
                pipe.hgetall(f"{prefix}tries:{dag}:{run}")
            replies = pipe.execute()
        args: list[str | bytes] = []
        for (dag, run), raw, tries in zip(runs, replies[::2], replies[1::2], strict=True):
            fields = codec.text_map(raw)
            packed = codec.pack(fields, codec.text_map(tries)) if fields else b""
            args += [dag, run, packed, f"{fields.get('ended', '')}/{len(fields)}/{fields.get('edits', '')}"]
        return int(self._call("pack", shard, "owner meta prefix", token, *args))

    def wait(self, shards: Sequence[int], ms: int, reading: Callable[[bool], None]) -> list[int]:
        """Shards whose inbox holds something, waiting up to `ms` for the first. `reading` is told when it may be cut off."""
        from redsched.store.connect import stream_names

        names = {self.keys(s, "inbox")[0]: s for s in shards}
        with self._store.translate():
            reading(True)
            try:
                if reads := self._store.clients.reads:
                    return [names[key] for key in self._wait_apart(reads, list(names), ms)]
                wait = ("BLOCK", ms) if ms else ()
                words = ("XREAD", "COUNT", 1, *wait, "STREAMS", *names, *["0"] * len(names))
                reply = self._store.reader.execute_command(*words)
            finally:
                reading(False)
        return [names[key.decode()] for key in stream_names(reply)]

    def _wait_apart(self, reads: Reads, inboxes: list[str], ms: int) -> list[str]:
        """In a cluster: each inbox has a read of its own, which stands until something comes, over many calls of this."""
        if ms:
            block = self._store.clients.block_ms
            wanted = {k: ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", k, "0") for k in inboxes}
            return list(reads.first(wanted, ms, block / 1000))
        pipe = self._store.client.pipeline(transaction=False)
        for key in inboxes:
            pipe.xlen(key)
        return [key for key, length in zip(inboxes, pipe.execute(), strict=True) if length]

    def all_dags(self) -> list[str]:
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            for shard in range(self._store.shards):
                pipe.smembers(self.keys(shard, "dags")[0])
            return sorted(x.decode() for some in pipe.execute() for x in some)

    def expired(self, dag: str, now: int, limit: int) -> list[str]:
        """Runs of the DAG beyond its retention (its own, else the settings') by age and by count, the oldest first."""
        settings, prefix = self._store.settings, self.prefix(dag)
        key = f"{prefix}runs:{dag}"
        with self._store.translate():
            info = self._store.client.hget(f"{prefix}dag:{dag}", "info")
            own = json.loads(info).get("retention", {}) if info else {}
            oldest = now - own.get("age", settings.retention_age_ms)
            pipe = self._store.client.pipeline(transaction=False)
            pipe.zrange(key, "-inf", str(oldest), byscore=True, offset=0, num=limit)
            pipe.zcard(key)
            old, count = pipe.execute()
            beyond = min(limit, count - own.get("runs", settings.retention_runs))
            more = self._store.client.zrange(key, 0, beyond - 1) if beyond > 0 else []
        return [x.decode() for x in dict.fromkeys([*old, *more])]

    # ---- clients

    def stage_plan(self, dag: str, digest: str, fields: dict[str, str]) -> None:
        """Write a plan, content-addressed, with an expiry that `register` takes off."""
        key = f"{self.prefix(dag)}plan:{dag}:{digest}"
        items = list(fields.items())
        with self._store.translate():
            if self._store.client.hlen(key) == len(items):
                self._store.client.expire(key, 3600, nx=False, gt=True)
                return
        flat = [x for item in items for x in item]
        self._stage(key, 3600, [("", flat[i : i + 1000]) for i in range(0, len(flat), 1000)])

    def _stage(self, key: str, seconds: int, parts: Sequence[tuple[str | int, list[str]]]) -> None:
        """Each part with its expiry in one step: whoever dies between two leaves nothing that stays."""
        calls: list[Call] = [("shard/stage", (key,), (seconds, offset, *part)) for offset, part in parts]
        self._all(calls)

    def register(
        self,
        dag: str,
        digest: str,
        *,
        paused: str,
        path: str,
        team: str,
        max_active_runs: int,
        max_active_tasks: int,
        info: str,
        schedule: str = "",
        slot: int | None = None,
        look: int = 0,
        created: int | None = None,
    ) -> tuple[int, bool]:
        """(version, whether it is new). Raises NotFound if the staged plan has expired.

        `schedule`, `slot`, `look`, `created`: see lua/shard/register.lua; a schedule that has not changed goes on where it is.
        """
        first = "" if slot is None else slot
        args = (
            *(dag, digest, paused, path, team, max_active_runs, max_active_tasks, info),
            *(schedule, first, look, "" if created is None else created),
        )
        version, new = self._call("register", self.of(dag), "prefix inbox", *args)
        return int(version), bool(new)

    def create_run(
        self,
        dag: str,
        run: str,
        kind: str,
        logical_ms: int | None,
        params: str,
        nonce: str,
        keys: dict[int, str] | None = None,
    ) -> tuple[bool, str, str]:
        """(whether it was created by this nonce, its state, its id). `keys`: concurrency keys by task index."""
        name, where, args = self._create_call(dag, run, kind, logical_ms, params, nonce, keys)
        word, state, found = self._store.scripts.call(name, where, *args)
        return word == b"CREATED", state.decode(), found.decode()

    def _create_call(
        self,
        dag: str,
        run: str,
        kind: str,
        logical_ms: int | None,
        params: str,
        nonce: str,
        keys: dict[int, str] | None,
    ) -> Call:
        logical = "" if logical_ms is None else str(logical_ms)
        args = (dag, run, kind, logical, params, nonce, json.dumps(keys) if keys else "")
        return "shard/create_run", self.keys(self.of(dag), "prefix", "inbox"), args

    def create_runs(
        self, dag: str, runs: Sequence[tuple[str, str, dict[int, str], str]]
    ) -> list[tuple[str, str]]:
        """(run id, state) of manual runs, each given as (run id, params, concurrency keys, nonce), in one round trip."""
        made = []
        for reply in self._all([self._create_call(dag, r, "manual", None, p, n, k) for r, p, k, n in runs]):
            word, state, found = reply
            if word != b"CREATED":
                raise Conflict(f"DAG {dag!r} has a run {found.decode()!r} already")
            made.append((found.decode(), state.decode()))
        return made

    def pause(self, dag: str, paused: bool) -> bool:
        return bool(self._call("pause", self.of(dag), "prefix inbox", dag, "1" if paused else "0"))

    def cancel_run(self, dag: str, run: str) -> tuple[bool, str, int]:
        """(whether that changed it, its state, attempts to be stopped)."""
        word, state, count = self._call("cancel_run", self.of(dag), "prefix inbox", dag, run)
        return word == b"OK", state.decode(), int(count)

    def edit_run(
        self, dag: str, run: str, seen: str, nonce: str, changes: dict[int, str]
    ) -> tuple[str, str, int]:
        """(OK, new run state, attempts to be stopped); (STAGED, '', 0): the owner carries it out in slices;
        (CHANGED | PACKED, '', 0): nothing has happened.
        """
        flat = [x for i, change in changes.items() for x in (str(i), change)]
        if len(changes) > EDIT_AT_ONCE:
            key = f"{self.prefix(dag)}edit:{dag}:{run}:{nonce}"
            self._stage(key, 600, [(i, flat[i : i + 1000]) for i in range(0, len(flat), 1000)])
            flat = []
        reply = self._call("edit_run", self.of(dag), "prefix inbox", dag, run, seen, nonce, *flat)
        if reply[0] != b"OK":
            return reply[0].decode(), "", 0
        return "OK", reply[1].decode(), int(reply[2])

    def frozen(self, dag: str, run: str) -> tuple[bool, str]:
        """(whether an edit is under way, the run's state)."""
        with self._store.translate():
            key = f"{self.prefix(dag)}run:{dag}:{run}"
            frozen, state = self._store.client.hmget(key, ["frozen", "state"])
        return frozen is not None, state.decode() if state else ""

    def unpack_run(self, dag: str, run: str) -> None:
        """A packed run becomes live again; nothing happens if it is."""
        with self._store.translate():
            packed = self._store.client.hget(f"{self.prefix(dag)}packed:{dag}", run)
        if packed is None:
            return
        fields, tries = codec.unpack(packed)
        flat = [x for pair in (*fields.items(), *tries.items()) for x in pair]
        self._call("unpack_run", self.of(dag), "prefix", dag, run, packed, len(fields) * 2, *flat)

    def room(self, dag: str) -> bool:
        """Whether one more run of the DAG would start at once."""
        prefix = self.prefix(dag)
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            pipe.hmget(f"{prefix}dag:{dag}", ["paused", "max_active_runs"])
            pipe.scard(f"{prefix}active:{dag}")
            (paused, limit), active = pipe.execute()
        return bool(paused != b"1" and active < int(limit or 0))

    def forget_run(self, dag: str, run: str, *, force: bool = False) -> bool:
        return bool(self._call("forget_run", self.of(dag), "prefix", dag, run, "1" if force else ""))

    def delete_dag(self, dag: str, step: str, *, force: bool = False) -> tuple[str, int]:
        word, count = self._call("delete_dag", self.of(dag), "prefix", dag, step, "1" if force else "")
        return word.decode(), int(count)

    def revoke_stops(self, shard: int) -> int:
        """Tell the pools which attempts are not wanted any more, then take these off the list."""
        stops = self.stops(shard)
        pools: dict[str, list[str]] = {}
        for stop in stops:
            pool, _, attempt = stop.partition("/")
            pools.setdefault(pool, []).append(attempt)
        count = sum(self._store.pool.revoke(pool, ids) for pool, ids in pools.items())
        if stops:
            self.stopped(shard, stops)
        return count

    # ---- workers

    def report(self, worker_no: int, reports: Sequence[Report]) -> None:
        """Store results, then append `finished` to the inboxes. Said twice, the second is found stale."""
        rows: dict[int, list[tuple[str, str, str]]] = {}
        for r in reports:
            extra: dict[str, Any] = {}
            if r.final:
                extra["final"] = True
            if r.retry_ms is not None:
                extra["retry_ms"] = r.retry_ms
            if r.skip:
                extra["skip"] = list(r.skip)
            said = f"finished,{r.outcome},{r.ms}"
            if r.reason or extra:
                reason = r.reason.replace("\0", " ")[:REASON_LIMIT]
                said += f"\t{json.dumps(extra) if extra else ''}\t{reason}"
            rows.setdefault(self._shard_of_attempt(r.attempt_id), []).append(
                (r.attempt_id, said, r.result or "")
            )
        self._report(worker_no, rows)

    def running(self, worker_no: int, items: Sequence[tuple[str, int]]) -> None:
        """(attempt id, ms since it began): shown as `running`."""
        rows: dict[int, list[tuple[str, str, str]]] = {}
        for attempt_id, ms in items:
            row = rows.setdefault(self._shard_of_attempt(attempt_id), [])
            row.append((attempt_id, f"running,,{ms}", ""))
        self._report(worker_no, rows)

    def lost(self, items: dict[str, str], reason: str = "lost: worker {} fell silent") -> None:
        """Attempt id -> the worker that fell silent."""
        rows: dict[int, list[tuple[str, str, str]]] = {}
        for attempt_id, worker in items.items():
            row = rows.setdefault(self._shard_of_attempt(attempt_id), [])
            row.append((attempt_id, f"lost,,0\t\t{reason.format(worker)}", ""))
        self._report("", rows)

    def _shard_of_attempt(self, attempt_id: str) -> int:
        return self.of(attempt_id.partition("/")[0].partition("~")[0])

    def _report(self, worker_no: int | str, rows: dict[int, list[tuple[str, str, str]]]) -> None:
        """Attempt ids, what is said of them (lua/lib/inbox.lua) and their results, by shard."""
        parts: list[tuple[list[str], list[str | int]]] = [
            ([*self.keys(s, "prefix", "inbox")], [len(part), *chain.from_iterable(part)])
            for s, row in rows.items()
            for part in (row[i : i + REPORTS_A_CALL] for i in range(0, len(row), REPORTS_A_CALL))
        ]
        if self._store.clients.reads is None and 1 < len(parts) == len(rows):  # on one server, in one call
            keys, args = zip(*parts, strict=True)
            parts = [(list(chain.from_iterable(keys)), list(chain.from_iterable(args)))]
        self._all([("shard/report", tuple(keys), (worker_no, *args)) for keys, args in parts])

    def spec(self, dag: str, digest: str) -> dict[str, Any]:
        """The canonical DAG with that digest as a dict, with `_names`: task ids in the order of their indexes."""
        with self._store.translate():
            spec, names = self._store.client.hmget(
                f"{self.prefix(dag)}plan:{dag}:{digest}", ["spec", "names"]
            )
        if spec is None or names is None:
            raise NotFound(f"the definition {digest} of DAG {dag!r} is gone")
        return {**json.loads(spec), "_names": json.loads(names)}

    def header(self, dag: str, run: str) -> dict[str, Any]:
        """`{"logical_ms", "created_ms", "kind", "params", "version"}` of a live run."""
        prefix = self.prefix(dag)
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            pipe.hget(f"{prefix}run:{dag}:{run}", "head")
            pipe.get(f"{prefix}params:{dag}:{run}")
            head, params = pipe.execute()
        if head is None:
            raise NotFound(f"run {run} of DAG {dag} does not exist")
        version, _, kind, logical, created, _ = head.decode().split(",")
        return {
            "logical_ms": codec.number(logical),
            "created_ms": int(created),
            "kind": kind,
            "params": json.loads(params) if params else {},
            "version": int(version),
        }

    def inputs(self, dag: str, run: str, names: dict[str, int]) -> dict[str, Any]:
        """Results of settled upstream tasks by name; None where there is none."""
        if not names:
            return {}
        reply = self._call("inputs", self.of(dag), "prefix", dag, run, *map(str, names.values()))
        return {n: json.loads(text) if text else None for n, text in zip(names, reply, strict=True)}

    def once(self, attempt_id: str, name: str, nonce: str) -> bool:
        """Claim a named step for all attempts at this task. Raises NotFound if the attempt is not current."""
        shard = self._shard_of_attempt(attempt_id)
        return bool(self._call("once", shard, "prefix", attempt_id, name, nonce, ""))

    def once_undo(self, attempt_id: str, name: str, nonce: str) -> None:
        self._call("once", self._shard_of_attempt(attempt_id), "prefix", attempt_id, name, nonce, "1")

    def log_write(self, attempt_id: str, offset: int, data: bytes) -> None:
        """A piece of the attempt's log at its absolute offset. Idempotent; head and tail are kept."""
        half = self._store.settings.log_limit // 2
        shard = self._shard_of_attempt(attempt_id)
        self._call("log_write", shard, "prefix", attempt_id, offset, half, half, data)

    # ---- readers

    def log_read(
        self, dag: str, run: str, index: int, attempt: int, start: int = 0
    ) -> tuple[bytes, int] | None:
        """(what is kept from byte `start` on, a cut marked; bytes ever written), or None if there is no log."""
        prefix, name = self.prefix(dag), f"{index}.{attempt}"
        key, half = f"{prefix}log:{dag}:{run}:{name}", self._store.settings.log_limit // 2
        with self._store.translate():
            found = self._store.client.hget(f"{prefix}logs:{dag}:{run}", name)
            if found is None:
                return None
            size = int(found)
            spans = log_spans(start, size, half, half)
            pipe = self._store.client.pipeline(transaction=False)
            for first, last in spans:
                pipe.getrange(key, first, last)
            parts = pipe.execute() if spans else []
        cut = max(half, start) < size - half
        if cut:
            mark = f"\n... {size - half - max(half, start)} bytes cut ...\n".encode()
            at = 1 if start < half else 0
            parts = [*parts[:at], mark, *parts[at:]]
        return b"".join(parts), size

    def dag_hash(self, dag: str) -> dict[str, str]:
        """The DAG's record: version, digest, paused, path, info …; `v<N>` = digest,ms,path. Raises NotFound."""
        with self._store.translate():
            found = codec.text_map(self._store.client.hgetall(f"{self.prefix(dag)}dag:{dag}"))
        if not found or "deleted" in found:
            raise NotFound(f"DAG {dag!r} does not exist")
        return found

    def dag_hashes(self, dags: Sequence[str]) -> list[tuple[dict[str, str], int]]:
        """(record, number of active runs) of each DAG, in one round trip."""
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            for dag in dags:
                prefix = self.prefix(dag)
                pipe.hgetall(f"{prefix}dag:{dag}")
                pipe.scard(f"{prefix}active:{dag}")
                pipe.zcard(f"{prefix}queue:{dag}")
            replies = pipe.execute() if dags else []
        return [
            (codec.text_map(replies[i]), replies[i + 1] + replies[i + 2]) for i in range(0, len(replies), 3)
        ]

    def plan(self, dag: str, digest: str) -> tuple[dict[str, Any], list[str]]:
        """(canonical definition, task ids by index) of one version. Raises NotFound."""
        with self._store.translate():
            key = f"{self.prefix(dag)}plan:{dag}:{digest}"
            spec, names = self._store.client.hmget(key, ["spec", "names"])
        if spec is None or names is None:
            raise NotFound(f"the plan {digest} of DAG {dag!r} is gone")
        return json.loads(spec), json.loads(names)

    def params(self, dag: str, run: str) -> dict[str, Any]:
        with self._store.translate():
            found = self._store.client.get(f"{self.prefix(dag)}params:{dag}:{run}")
        return json.loads(found) if found else {}

    def result(self, dag: str, run: str, index: int, attempt: int) -> Any:
        with self._store.translate():
            key = f"{self.prefix(dag)}results:{dag}:{run}"
            found = self._store.client.hget(key, f"{index}.{attempt}")
        return json.loads(found) if found else None

    def run_ids(self, dag: str, offset: int, limit: int) -> list[str]:
        """The DAG's runs, the newest first."""
        with self._store.translate():
            key = f"{self.prefix(dag)}runs:{dag}"
            found = self._store.client.zrevrange(key, offset, offset + limit - 1)
        return [x.decode() for x in found]

    def backfill_start(
        self, dag: str, ident: str, first: int, last: int, fields: dict[str, str]
    ) -> tuple[bool, str]:
        """(True, its id) or (False, the id of an active one whose range overlaps)."""
        flat = [x for pair in fields.items() for x in pair]
        word, found = self._call(
            "backfill_start", self.of(dag), "prefix inbox", dag, ident, first, last, *flat
        )
        return word == b"OK", found.decode()

    def backfill_state(self, dag: str, ident: str, state: str) -> tuple[bool, str]:
        """(whether that changed it, its state)."""
        word, now = self._call("backfill_state", self.of(dag), "prefix inbox", dag, ident, state)
        return word == b"OK", now.decode()

    def backfill(self, dag: str, ident: str) -> tuple[dict[str, str], list[str]]:
        """Its hash and its active runs. Raises NotFound."""
        prefix = self.prefix(dag)
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            pipe.hgetall(f"{prefix}backfill:{dag}:{ident}")
            pipe.smembers(f"{prefix}backfill_runs:{dag}:{ident}")
            fields, runs = pipe.execute()
        if not fields:
            raise NotFound(f"backfill {ident!r} does not exist")
        return codec.text_map(fields), sorted(r.decode() for r in runs)

    def skips(self, dag: str, limit: int) -> list[tuple[int, str]]:
        """(slot in ms, reason) of slots that became no run, the newest first."""
        with self._store.translate():
            found = self._store.client.zrevrange(f"{self.prefix(dag)}skips:{dag}", 0, limit - 1)
        pairs = [x.decode().partition(":") for x in found]
        return [(int(ms), reason) for ms, _, reason in pairs]

    def dated_runs(self, dag: str, first_ms: int, last_ms: int) -> list[tuple[int, str]]:
        """(logical date, run) in the range, inclusive."""
        with self._store.translate():
            key = f"{self.prefix(dag)}dates:{dag}"
            found = self._store.client.zrangebyscore(key, first_ms, last_ms, withscores=True)
        return [(int(score), run.decode()) for run, score in found]

    def runs_between(self, dag: str, first_ms: int, last_ms: int) -> list[str]:
        """Runs by logical date, inclusive, the oldest first."""
        with self._store.translate():
            key = f"{self.prefix(dag)}dates:{dag}"
            found = self._store.client.zrangebyscore(key, first_ms, last_ms)
        return [x.decode() for x in found]

    def recent_runs(self, name: str, limit: int) -> list[tuple[str, str]]:
        """(dag, run) over all shards from `recent`, `queued_runs` or `running_runs`, the newest first."""
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            for shard in range(self._store.shards):
                pipe.zrevrange(self.keys(shard, name)[0], 0, limit - 1, withscores=True)
            replies = pipe.execute()
        merged = sorted((x for some in replies for x in some), key=lambda x: (-x[1], x[0]))[:limit]
        pairs = [member.decode().split("/") for member, _ in merged]
        return [(dag, run) for dag, run in pairs]

    def overview(self) -> list[dict[str, Any]]:
        """Of each shard: owner token, inbox length, runs with ready tasks, refused writes, runs queued and running."""
        names = ("queued_runs", "running_runs", "outbox")
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            for shard in range(self._store.shards):
                base = self._store.keys.shard(shard)
                pipe.get(base + "owner")
                pipe.get(base + "fence")
                pipe.xlen(base + "inbox")
                pipe.hmget(base + "meta", ["refused", "stale"])
                pipe.zrange(base + "outbox", 0, 0, withscores=True)
                pipe.scard(base + "dags")
                for name in names:
                    pipe.zcard(base + name)
            replies = pipe.execute()
        rows = []
        for shard in range(self._store.shards):
            owner, fence, inbox, (refused, stale), oldest, dags, queued, running, ready = replies[
                shard * 9 : shard * 9 + 9
            ]
            rows.append(
                {
                    "shard": shard,
                    "token": owner.decode() if owner else "",
                    "fence": int(fence or 0),
                    "inbox": inbox,
                    "refused": int(refused or 0),
                    "stale": int(stale or 0),
                    "oldest_ready": int(oldest[0][1]) if oldest else None,
                    "dags": dags,
                    "queued": queued,
                    "running": running,
                    "ready": ready,
                }
            )
        return rows

    def record(self, dag: str, run: str) -> codec.RunRecord:
        """The run, live or packed. Raises NotFound."""
        (found,) = self.records([(dag, run)])
        if found is None:
            raise NotFound(f"run {run!r} of DAG {dag!r} does not exist")
        return found

    def records(self, runs: Sequence[tuple[str, str]]) -> list[codec.RunRecord | None]:
        """Runs, live or packed, in two round trips at most."""
        with self._store.translate():
            pipe = self._store.client.pipeline(transaction=False)
            for dag, run in runs:
                prefix = self.prefix(dag)
                pipe.hget(f"{prefix}packed:{dag}", run)
                pipe.hgetall(f"{prefix}run:{dag}:{run}")
                pipe.hgetall(f"{prefix}tries:{dag}:{run}")
            replies = pipe.execute()
        found: list[codec.RunRecord | None] = []
        for i in range(0, len(replies), 3):
            packed, fields, tries = replies[i : i + 3]
            if fields:
                found.append(codec.run_from_hash(codec.text_map(fields), codec.text_map(tries)))
            elif packed:
                found.append(codec.run_from_packed(packed))
            else:
                found.append(None)
        return found


def ended_of(flat: list[bytes]) -> list[Ended]:
    text = [x.decode() for x in flat]
    return [Ended(text[i], text[i + 1], int(text[i + 2])) for i in range(0, len(text), 3)]


def offers_of(flat: list[bytes]) -> list[Offer]:
    text = [x.decode() for x in flat]
    return [Offer(*text[i : i + 4]) for i in range(0, len(text), 4)]


def log_spans(start: int, size: int, head: int, ring: int) -> list[tuple[int, int]]:
    """Where bytes `start`…`size` of a log lie in its value, as inclusive ranges: the head, then the ring in order."""
    spans = []
    if start < min(head, size):
        spans.append((start, min(head, size) - 1))
    at = max(start, head, size - ring)
    while at < size:
        place = (at - head) % ring
        length = min(size - at, ring - place)
        spans.append((head + place, head + place + length - 1))
        at += length
    return spans
