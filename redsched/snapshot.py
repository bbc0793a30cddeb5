"""What `explain` needs to know of a run, as plain data, and how it is read: in about five pipelined round trips.

Each part of the reading is a generator that yields commands and gets their replies; parts that run side by side send
theirs in one round trip. Nothing read here is without a bound: of long lines it is the place, of many holders a sample.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redsched.edit import Graph
from redsched.keys import AttemptId
from redsched.store import codec
from redsched.store.pool import DEFAULT_POOL, DEFAULT_SLOTS, GROUP, SHARE_MINUTES

if TYPE_CHECKING:
    from redsched.client import Client
    from redsched.store import Store

LIVE: Final = frozenset({"ready", "queued", "running"})
SHOWN: Final = 5  # holders that are named
SAMPLE: Final = 64  # holders that are looked at
GROUPS: Final = 10
LINE: Final = 500  # of a line or a stream, what is read at once
RANKS: Final = (
    200  # places that are asked for one by one; if more tasks wait, the first of the line are read instead
)
RANK_LINE: Final = 5000


# ---- what is known


@dataclass(frozen=True, slots=True)
class Place:
    """What a pool keeps of an attempt. state: W waits, Q on the stream, R granted, S granted and no longer wanted.

    `since`: when it began to wait; `lease`: ms that are left of its grant, below 0 if that is over.
    """

    state: str
    slots: int
    group: str
    worker: str = ""
    since: int | None = None
    lease: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """`slots` is None if there is no such pool. `groups`: those that wait and how many in each, the next one first.

    `holders` is a sample of who holds slots; `delivered`: attempt -> (consumer, ms ago), read but not granted yet.
    """

    name: str
    slots: int | None
    used: int = 0
    holders: Mapping[str, Place] = field(default_factory=dict)
    groups: tuple[tuple[str, int], ...] = ()
    group_count: int = 0
    first: str = ""
    first_slots: int = 0
    stream: tuple[str, ...] = ()
    has_group: bool = True
    delivered: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    given: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Live:
    """A task that is ready, queued or running, of this run or of another one of its DAG."""

    id: str
    run: str
    task: str
    state: str
    pool: str
    slots: int


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on active tasks. kind: dag_limit, task_limit or concurrency_key; `most` is 0 while the DAG is paused.

    `line`: the first `run/index` that are parked at it, in their order; `here`: those that were asked about.
    """

    kind: str
    most: int
    busy: int = 0
    parked: int = 0
    holders: tuple[Live, ...] = ()
    line: tuple[str, ...] = ()
    here: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Worker:
    name: str
    pools: tuple[str, ...]
    concurrency: int
    running: int
    state: str = "running"


@dataclass(frozen=True, slots=True)
class Task:
    """What a definition says about a task, as far as it can make it wait."""

    pool: str
    slots: int
    retries: int
    allow_failure: bool
    max_active: int
    keyed: bool

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Task:
        keyed = "concurrency_key" in spec
        return cls(
            spec.get("pool", DEFAULT_POOL),
            spec.get("pool_slots", 1),
            spec.get("retries", 0),
            spec.get("allow_failure", False),
            spec.get("max_active") or int(keyed),
            keyed,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run and all that its tasks may wait for. Times are ms since the epoch; attempts go by their ids."""

    now: int
    dag: str
    run: str
    record: codec.RunRecord
    graph: Graph
    tasks: tuple[Task, ...]
    records: tuple[codec.TaskRecord, ...]
    generation: int = 0
    frozen: bool = False
    paused: bool = False
    max_runs: int = 1
    max_tasks: int = 1
    active: int = 0
    active_runs: tuple[str, ...] = ()
    place: int | None = None
    queue: int = 0
    ready: frozenset[int] = frozenset()
    keys: Mapping[int, str] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    timers: Mapping[int, int] = field(default_factory=dict)
    pools: Mapping[str, Pool] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    done: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    shard: int = 0
    owner: str = ""
    inbox: int = 0
    inbox_since: int | None = None
    schedulers: Mapping[str, int] = field(default_factory=dict)
    workers: tuple[Worker, ...] = ()
    worker_names: Mapping[int, str] = field(default_factory=dict)
    worker_lease_ms: int = 10_000

    def of(self, i: int) -> codec.TaskRecord:
        return self.records[i]

    def attempt(self, i: int) -> str:
        """The id of the task's current attempt."""
        return str(AttemptId(self.dag, self.run, i, self.of(i).attempt, self.generation))

    def live(self, i: int) -> Live:
        t = self.tasks[i]
        return Live(self.attempt(i), self.run, self.graph.names[i], self.of(i).state, t.pool, t.slots)

    def limit_keys(self, i: int) -> tuple[str, ...]:
        """The limits that the task stands under, in the order in which they are asked: its DAG's, then its own."""
        if not self.tasks[i].max_active:
            return (self.dag,)
        key = self.keys.get(i) if self.tasks[i].keyed else None
        return self.dag, f"{self.dag}:{i}" if key is None else f"{self.dag}:key:{key}"


# ---- how parts are read side by side

Command = tuple[str, tuple[Any, ...], dict[str, Any]]
T = TypeVar("T")
Part = Generator[list[Command], list[Any], T]


def ask(command: str, *args: Any, **named: Any) -> Command:
    return command, args, named


def together(parts: Iterable[Part[T]]) -> Part[list[T]]:
    """Several parts as one: what each asks in the same step goes out together."""
    todo = dict(enumerate(parts))
    results: dict[int, T] = {}
    replies: dict[int, Any] = dict.fromkeys(todo)
    while todo:
        wanted: dict[int, list[Command]] = {}
        for i, part in list(todo.items()):
            try:
                wanted[i] = part.send(replies[i])
            except StopIteration as end:
                results[i] = end.value
                del todo[i]
        if wanted:
            flat = iter((yield [c for commands in wanted.values() for c in commands]))
            replies = {i: [next(flat) for _ in commands] for i, commands in wanted.items()}
    return [results[i] for i in sorted(results)]


def carry_out(store: Store, part: Part[T]) -> T:
    """Read the part: a round trip for each of its steps."""
    replies: Any = None
    while True:
        try:
            commands = part.send(replies)
        except StopIteration as end:
            result: T = end.value
            return result
        replies = _round_trip(store, commands) if commands else []


def _round_trip(store: Store, commands: list[Command]) -> list[Any]:
    with store.translate():
        pipe = store.client.pipeline(transaction=False)
        for command, args, named in commands:
            getattr(pipe, command)(*args, **named)
        replies = pipe.execute(raise_on_error=False)
        for i, reply in enumerate(replies):
            if isinstance(reply, Exception):
                if "NOGROUP" not in str(reply):
                    raise reply
                replies[i] = None  # the group of a pool's stream is made at its first read
    return list(replies)


# ---- the parts


def gather(client: Client, dag: str, run: str) -> Snapshot:
    """What is known of the run and of what its tasks wait for. Raises NotFound."""
    s = carry_out(client.store, _run(client, dag, run))
    return carry_out(client.store, _waits(client, s))


def _run(client: Client, dag: str, run: str) -> Part[Snapshot]:
    base, tail = client.store.shard.prefix(dag), f"{dag}:{run}"
    first, alive = yield from together(
        [
            _plain(
                ask("hgetall", f"{base}dag:{dag}"),
                ask("hgetall", f"{base}run:{tail}"),
                ask("hgetall", f"{base}tries:{tail}"),
                ask("hget", f"{base}packed:{dag}", run),
                ask("smembers", f"{base}ready:{tail}"),
                ask("hgetall", f"{base}keys:{tail}"),
                ask("zrank", f"{base}queue:{dag}", run),
                ask("zcard", f"{base}queue:{dag}"),
                ask("scard", f"{base}active:{dag}"),
                ask("srandmember", f"{base}active:{dag}", SAMPLE),
            ),
            _alive(client.store, base),
        ]
    )
    known, fields, tries, packed, ready, keys, place, queue, active, active_runs = first
    info, fields = codec.text_map(known), codec.text_map(fields)
    if not info or "deleted" in info or not (fields or packed):
        client._record(dag, run)  # raises NotFound with what was perhaps meant
        client._dag_hash(dag)
    record = (
        codec.run_from_hash(fields, codec.text_map(tries)) if fields else codec.run_from_packed(packed or b"")
    )
    spec, names = client._plan(dag, record.digest)
    records, offered = [record.task(i) for i in range(len(names))], set()
    for i, attempt in codec.offered_of(ready):
        if i < len(records) and records[i].attempt == attempt and records[i].state in ("ready", "queued"):
            offered.add(i)
            records[i] = replace(records[i], state="ready")  # its pool does not have it yet
    return Snapshot(
        dag=dag,
        run=run,
        record=record,
        graph=Graph.of(spec, names),
        tasks=tuple(Task.of(spec["tasks"][n]) for n in names),
        records=tuple(records),
        generation=int(info.get("generation", "0")),
        frozen="frozen" in fields,
        paused=info.get("paused") == "1",
        max_runs=int(info["max_active_runs"]),
        max_tasks=int(info["max_active_tasks"]),
        active=active,
        active_runs=tuple(sorted(x.decode() for x in active_runs)),
        place=place,
        queue=queue,
        ready=frozenset(offered),
        keys={int(k): v for k, v in codec.text_map(keys).items()},
        shard=client.store.shard.of(dag),
        worker_lease_ms=client.settings.worker_lease_ms,
        **alive,
    )


def _plain(*commands: Command) -> Part[Any]:
    return (yield list(commands))


def _alive(store: Store, base: str) -> Part[Any]:
    """Redis' time, the shard's owner and inbox, and who lives."""
    control = store.keys.control
    (seconds, micros), owner, inbox, oldest, schedulers, workers, info = yield [
        ask("time"),
        ask("get", base + "owner"),
        ask("xlen", base + "inbox"),
        ask("xrange", base + "inbox", "-", "+", count=1),
        ask("zrange", control + "schedulers", 0, -1, withscores=True),
        ask("zrange", control + "workers", 0, -1, withscores=True),
        ask("hgetall", control + "worker_info"),
    ]
    now = seconds * 1000 + micros // 1000
    return {
        "now": now,
        "owner": owner.decode().rpartition(":")[0] if owner else "",
        "inbox": inbox,
        "inbox_since": int(oldest[0][0].partition(b"-")[0]) if oldest else None,
        "schedulers": {name.decode(): int(end) - now for name, end in schedulers},
        "workers": tuple(
            _worker(name.decode(), json.loads(info.get(name, b"{}"))) for name, end in workers if end > now
        ),
    }


def _worker(name: str, info: Mapping[str, Any]) -> Worker:
    pools, many = tuple(info.get("pools", ())), int(info.get("concurrency", 0))
    return Worker(name, pools, many, int(info.get("running", 0)), info.get("state", "running"))


def _waits(client: Client, s: Snapshot) -> Part[Snapshot]:
    live = [s.live(i) for i in range(len(s.tasks)) if s.of(i).state in LIVE]
    parts: list[Part[Any]] = [
        _timers(client.store, s),
        _worker_names(client.store, s),
        _limits(client, s),
        _pools(client.store, s, live),
    ]
    timers, names, (limits, held), found = yield from together(parts)
    held = [h for h in held if h.id not in found["places"]]
    if held:  # who holds a limit waits for pools, too
        more = yield from _pools(client.store, s, held)
        found = {name: {**more[name], **found[name]} for name in found}
    done = frozenset(found.pop("done"))
    return replace(s, timers=timers, worker_names=names, limits=limits, done=done, **found)


def _timers(store: Store, s: Snapshot) -> Part[dict[int, int]]:
    """When each task that waits for a retry will be ready."""
    waiting = [i for i in range(len(s.tasks)) if s.of(i).state == "retrying"]
    if not waiting:
        return {}
    key = store.shard.prefix(s.dag) + "timers"
    (due,) = yield [ask("zmscore", key, [f"retry/{s.attempt(i)}" for i in waiting])]
    return {i: int(ms) for i, ms in zip(waiting, due, strict=True) if ms is not None}


def _worker_names(store: Store, s: Snapshot) -> Part[dict[int, str]]:
    numbers = sorted({w for i in range(len(s.tasks)) if (w := s.of(i).worker) is not None})
    if not numbers:
        return {}
    (names,) = yield [ask("hmget", store.keys.control + "worker_names", numbers)]
    return {n: name.decode() for n, name in zip(numbers, names, strict=True) if name is not None}


# -- limits


def _limits(client: Client, s: Snapshot) -> Part[tuple[dict[str, Limit], list[Live]]]:
    """The limits at which a ready task may be parked, and who holds them."""
    asked: dict[str, tuple[str, int, set[str]]] = {}
    for i in range(len(s.tasks)):
        if s.of(i).state == "ready" and i not in s.ready:
            for key in s.limit_keys(i):
                kind = (
                    "dag_limit"
                    if key == s.dag
                    else "concurrency_key"
                    if i in s.keys and s.tasks[i].keyed
                    else "task_limit"
                )
                most = s.max_tasks if key == s.dag else s.tasks[i].max_active
                asked.setdefault(key, (kind, most, set()))[2].add(f"{s.run}/{i}")
    parts = [_limit(client, s, key, Limit(kind, most), sorted(m)) for key, (kind, most, m) in asked.items()]
    limits = dict(zip(asked, (yield from together(parts)), strict=True))
    return limits, [h for limit in limits.values() for h in limit.holders]


def _limit(client: Client, s: Snapshot, key: str, limit: Limit, members: list[str]) -> Part[Limit]:
    base = client.store.shard.prefix(s.dag)
    sample, line = yield [
        ask("srandmember", f"{base}busy:{key}", SAMPLE),
        ask("zrange", f"{base}parked:{key}", 0, LINE - 1),
    ]
    limit = replace(limit, line=tuple(m.decode() for m in line))
    busy, parked, at_it = len(sample), len(line), frozenset(members).intersection(limit.line)
    if busy == SAMPLE or parked == LINE:  # there may be more than was read
        busy, parked, scores = yield [
            ask("scard", f"{base}busy:{key}"),
            ask("zcard", f"{base}parked:{key}"),
            ask("zmscore", f"{base}parked:{key}", members),
        ]
        at_it = frozenset(m for m, score in zip(members, scores, strict=True) if score is not None)
    limit = replace(limit, busy=busy, parked=parked, here=at_it)
    if not at_it or not sample:
        return limit
    pairs = [(run, int(index)) for run, _, index in (m.decode().rpartition("/") for m in sorted(sample))]
    found = yield [ask("hmget", f"{base}run:{s.dag}:{run}", "head", str(index)) for run, index in pairs]
    holders = [_holder(client, s, *pair, *reply) for pair, reply in zip(pairs, found, strict=True)]
    return replace(limit, holders=tuple(h for h in holders if h is not None))


def _holder(
    client: Client, s: Snapshot, run: str, index: int, head: bytes | None, value: bytes | None
) -> Live | None:
    record = codec.decode_record(value.decode() if value else None)
    if head is None or record.state not in LIVE:
        return None  # it has ended meanwhile
    spec, names = client._plan(s.dag, head.decode().split(",")[1])
    task = Task.of(spec["tasks"][names[index]])
    attempt = AttemptId(s.dag, run, index, record.attempt, s.generation)
    return Live(str(attempt), run, names[index], record.state, task.pool, task.slots)


# -- pools


def _pools(store: Store, s: Snapshot, live: Sequence[Live]) -> Part[dict[str, Any]]:
    """The pools of these tasks, what each keeps of them, and the task ids of whom it names."""
    by_pool: dict[str, list[str]] = defaultdict(list)
    for task in live:
        by_pool[task.pool].append(task.id)
    parts: list[Part[Any]] = [_pool(store, name, s.now) for name in by_pool]
    parts += [_places(store, name, ids, s.now) for name, ids in by_pool.items()]
    replies = yield from together(parts)
    pools: dict[str, Pool] = dict(zip(by_pool, replies, strict=False))
    found: dict[str, Any] = {"pools": pools, "places": {}, "lost": {}, "done": {}, "labels": {}}
    for places, lost, done in replies[len(pools) :]:
        found["places"].update(places)
        found["lost"].update(lost)
        found["done"].update(dict.fromkeys(done))
    named = [id for p in pools.values() for id in [*sorted(p.holders)[:SHOWN], p.first] if id]
    found["labels"] = {x.id: x.task for x in live}
    found["labels"] |= yield from _labels(store, [id for id in named if id not in found["labels"]])
    return found


def _pool(store: Store, name: str, now: int) -> Part[Pool]:
    base = store.keys.pool(name)
    minutes = range(now // 60_000, now // 60_000 - SHARE_MINUTES, -1)
    slots, used, held, groups, count, stream, pending, *shares = yield [
        ask("hget", base + "meta", "slots"),
        ask("scard", base + "held"),
        ask("srandmember", base + "held", SAMPLE),
        ask("zrange", base + "groups", 0, GROUPS - 1),
        ask("zcard", base + "groups"),
        ask("xrange", base + "stream", "-", "+", count=LINE),
        ask("xpending_range", base + "stream", GROUP, "-", "+", LINE),
        *(ask("hgetall", f"{base}shares:{minute}") for minute in minutes),
    ]
    ids = sorted({h.decode().partition("#")[0] for h in held})
    waits = [f"{base}wait:{g.decode()}" for g in groups]
    first, entries, leases, *lengths = yield [
        ask("zrange", waits[0] if waits else base + "none", 0, 0),
        ask("hmget", base + "entries", ids or ["-"]),
        ask("zmscore", base + "lease", ids or ["-"]),
        *(ask("zcard", key) for key in waits),
    ]
    (head,) = yield [ask("hmget", base + "entries", [first[0] if first else "-"])]
    known = _decoded(ids, entries, leases, now)
    foremost = _decoded(["first"], head, [None], now).get("first")
    on_stream = {entry: fields.get(b"id", b"").decode() for entry, fields in stream}
    return Pool(
        name,
        int(slots) if slots is not None else DEFAULT_SLOTS if name == DEFAULT_POOL else None,
        used,
        known,
        tuple((g.decode(), n) for g, n in zip(groups, lengths, strict=True)),
        count,
        first[0].decode() if first and foremost else "",
        foremost.slots if foremost else 0,
        tuple(on_stream.values()),
        pending is not None,
        {
            on_stream[p["message_id"]]: (p["consumer"].decode(), p["time_since_delivered"])
            for p in pending or ()
            if p["message_id"] in on_stream
        },
        _sums(shares),
    )


def _places(
    store: Store, pool: str, ids: list[str], now: int
) -> Part[tuple[dict[str, Place], dict[str, str], list[str]]]:
    """(what the pool has of these attempts, those taken back from a silent worker, those that have left it)."""
    base = store.keys.pool(pool)
    entries, leases, lost, done, done_before = yield [
        ask("hmget", base + "entries", ids),
        ask("zmscore", base + "lease", ids),
        ask("hmget", base + "lost", ids),
        ask("smismember", base + "done", ids),
        ask("smismember", base + "done_before", ids),
    ]
    found = _decoded(ids, entries, leases, now)
    waiting = [i for i, place in found.items() if place.state == "W"]
    if waiting:
        ranks = yield from _ranks(base, found, waiting)
        found |= {i: replace(found[i], rank=ranks.get(i)) for i in waiting}
    taken = {i: w.decode() for i, w in zip(ids, lost, strict=True) if w is not None}
    return found, taken, [i for i, *left in zip(ids, done, done_before, strict=True) if any(left)]


def _ranks(base: str, places: Mapping[str, Place], waiting: Sequence[str]) -> Part[dict[str, int]]:
    """The place of each in its group's line; None beyond what is read of a long one."""
    if len(waiting) <= RANKS:
        found = yield [ask("zrank", f"{base}wait:{places[i].group}", i) for i in waiting]
        return {i: rank for i, rank in zip(waiting, found, strict=True) if rank is not None}
    groups = sorted({places[i].group for i in waiting})
    lines = yield [ask("zrange", f"{base}wait:{g}", 0, RANK_LINE - 1) for g in groups]
    return {i.decode(): rank for line in lines for rank, i in enumerate(line)}


def _decoded(ids: Sequence[str], entries: Sequence[Any], leases: Sequence[Any], now: int) -> dict[str, Place]:
    return {
        i: _place(entry.decode(), None if end is None else int(end) - now)
        for i, entry, end in zip(ids, entries, leases, strict=False)
        if entry is not None
    }


def _place(entry: str, lease: int | None) -> Place:
    state, nonce, worker, slots, _, group, _ = entry.partition(";")[0].split(",")
    since = int(nonce) if state == "W" and nonce.isdecimal() else None
    return Place(state, int(slots), group, worker, since, lease)


def _sums(minutes: Iterable[Mapping[bytes, bytes]]) -> dict[str, int]:
    given: dict[str, int] = defaultdict(int)
    for found in minutes:
        for group, slots in found.items():
            given[group.decode()] += int(slots)
    return dict(given)


def _labels(store: Store, ids: Iterable[str]) -> Part[dict[str, str]]:
    """The task ids of attempts of any DAG; those whose run is gone are left out."""
    attempts = {i: AttemptId.parse(i) for i in dict.fromkeys(ids)}
    if not attempts:
        return {}
    base = {a.dag: store.shard.prefix(a.dag) for a in attempts.values()}
    heads = yield [ask("hget", f"{base[a.dag]}run:{a.dag}:{a.run}", "head") for a in attempts.values()]
    digests = {
        i: (a.dag, head.decode().split(",")[1])
        for (i, a), head in zip(attempts.items(), heads, strict=True)
        if head is not None
    }
    plans = list(dict.fromkeys(digests.values()))
    texts = yield [ask("hget", f"{base[dag]}plan:{dag}:{digest}", "names") for dag, digest in plans]
    names = {plan: json.loads(text) for plan, text in zip(plans, texts, strict=True) if text is not None}
    return {i: names[plan][attempts[i].task] for i, plan in digests.items() if plan in names}
