"""What must be true of the state in Redis at every moment between two calls, recounted from the runs themselves.

Slow, and told by nobody: every counter, set, index and slot is compared with what the tasks' own records say (I3–I7, I12).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from redsched.edit import CLASS, UNIT, Graph
from redsched.rules import decide
from redsched.schedule import Schedule
from redsched.scheduler.calendar import read
from redsched.simulation.server import Server
from redsched.states import ENDED, SETTLED
from redsched.store.codec import RunRecord, TaskRecord, decode_record, offered_of, run_from_hash

READ: Final[dict[bytes, Callable[[bytes], tuple[Any, ...]]]] = {
    b"hash": lambda key: ("HGETALL", key),
    b"set": lambda key: ("SMEMBERS", key),
    b"zset": lambda key: ("ZRANGE", key, 0, -1, "WITHSCORES"),
    b"stream": lambda key: ("XRANGE", key, "-", "+"),
    b"list": lambda key: ("LRANGE", key, 0, -1),
    b"string": lambda key: ("GET", key),
}
ENDS: Final = ("finished", "lost")
LIVE: Final = ("ready", "queued", "running")
MOST_SLOTS: Final = 2000


@dataclass(frozen=True)
class Entry:
    """What a pool holds of an attempt: W waits, Q on the stream, R granted, S granted and not wanted."""

    state: str
    slots: int
    group: str

    @classmethod
    def of(cls, text: str) -> Entry:
        state, _, _, slots, _, group, _ = text.partition(";")[0].split(",")
        return cls(state, int(slots), group)


@dataclass(frozen=True)
class Graphs:
    """What is known of each plan, by digest: they never change."""

    graphs: dict[str, tuple[Graph, dict[str, Any]]]

    def of(self, plan: dict[str, str], digest: str) -> tuple[Graph, dict[str, Any]]:
        if digest not in self.graphs:
            import json

            spec = json.loads(plan["spec"])
            self.graphs[digest] = Graph.of(spec, json.loads(plan["names"])), spec
        return self.graphs[digest]


class Snapshot:
    """Everything in Redis, by key without its cell; values as text."""

    def __init__(self, server: Server, namespace: str) -> None:
        keys = sorted(server.raw([("KEYS", "{" + namespace + ":*")])[0])
        keys = [k for k in keys if b"}:plan:" not in k and b"}:log" not in k and b"}:results:" not in k]
        kinds = server.raw([("TYPE", key) for key in keys])
        values = server.raw([READ[kind](key) for key, kind in zip(keys, kinds, strict=True)])
        self.cells: dict[str, dict[str, Any]] = {}
        self.server = server
        for key, kind, value in zip(keys, kinds, values, strict=True):
            cell, _, name = key.decode().partition("}:")
            self.cells.setdefault(cell[1:].partition(":")[2], {})[name] = _text(kind, value)
        self.namespace = namespace

    def shards(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for name, keys in self.cells.items():
            if name.startswith("s:"):
                yield int(name[2:]), keys

    def pools(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, keys in self.cells.items():
            if name.startswith("p:"):
                yield name[2:], keys

    def plan(self, shard: int, dag: str, digest: str) -> dict[str, str]:
        key = f"{{{self.namespace}:s:{shard}}}:plan:{dag}:{digest}"
        (found,) = self.server.raw([("HGETALL", key)])
        return dict(_text(b"hash", found))


def _text(kind: bytes, value: Any) -> Any:
    if kind == b"hash":
        return {value[i].decode(): value[i + 1].decode(errors="replace") for i in range(0, len(value), 2)}
    if kind == b"zset":
        return {value[i].decode(): float(value[i + 1]) for i in range(0, len(value), 2)}
    if kind == b"set":
        return {x.decode() for x in value}
    if kind == b"stream":
        return [(entry, dict(_pairs(fields))) for entry, fields in value]
    if kind == b"list":
        return [x.decode() for x in value]
    return value.decode(errors="replace")


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    for i in range(0, len(flat), 2):
        yield flat[i].decode(), flat[i + 1].decode(errors="replace")


def _ready(keys: dict[str, Any], name: str) -> set[tuple[int, int]]:
    """(task index, attempt) of the ready set of a run, `dag/run`."""
    return set(offered_of(x.encode() for x in keys.get(f"ready:{name.replace('/', ':')}", ())))


class Audit:
    """Finds what is wrong; remembers what can't be seen in one look (which slots were there, what a pool gave out)."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server, self.namespace = server, namespace
        self.graphs = Graphs({})
        self.slots: dict[str, tuple[str, int]] = {}
        self.used: dict[str, int] = {}
        self.sizes: dict[str, int] = {}  # the most slots that each pool was given since the last look
        self.lossy = False
        self.wrong: list[str] = []

    def forget(self, lost: bool) -> None:
        """Redis has lost writes: what was seen may not have happened, and cells may disagree until they are audited."""
        self.lossy |= lost
        self.slots.clear()
        self.used.clear()
        self.sizes.clear()

    def look(self) -> list[str]:
        self.wrong = []
        snapshot = Snapshot(self.server, self.namespace)
        pools = dict(snapshot.pools())
        held = {a: e for p in pools.values() for a, e in self._pool(p).items()}
        lost = {a for p in pools.values() for a in p.get("lost", {})}
        for shard, keys in snapshot.shards():
            self._shard(snapshot, shard, keys, held, lost)
        for name, keys in pools.items():
            self._slots(name, keys)
        return self.wrong

    def expect(self, fine: bool, text: str) -> None:
        if not fine:
            self.wrong.append(text)

    def same(self, found: Any, wanted: Any, what: str) -> None:
        if found != wanted:
            self.wrong.append(f"{what}: is {found!r}, must be {wanted!r}")

    # ---- a shard

    def _shard(
        self, snapshot: Snapshot, shard: int, keys: dict[str, Any], held: dict[str, Entry], lost: set[str]
    ) -> None:
        coming = {
            attempt
            for _, f in keys.get("inbox", ())
            if "report" in f
            for attempt, said in f.items()
            if said.partition(",")[0] in ENDS
        }
        outbox, places = set(), Counter[str]()
        for name, fields in keys.items():
            if not name.startswith("run:"):
                continue
            dag, run = name.split(":")[1:]
            about = keys.get(f"dag:{dag}")
            if about is None:
                continue
            self.run(snapshot, shard, keys, dag, run, fields, held.keys() | coming | lost)
            if keys.get(f"ready:{dag}:{run}"):
                outbox.add(f"{dag}/{run}")
            places.update({dag: fields["state"] == "running"})
        self.same(set(keys.get("outbox", ())), outbox, f"shard {shard}: outbox")
        for name in keys:
            if name.startswith("dag:"):
                self._dag(keys, name[4:])

    def _dag(self, keys: dict[str, Any], dag: str) -> None:
        states = {n.split(":")[2]: f["state"] for n, f in keys.items() if n.startswith(f"run:{dag}:")}
        packed = keys.get(f"packed:{dag}", {})
        for kind, key, listed in (("running", "active", "running_runs"), ("queued", "queue", "queued_runs")):
            wanted = {run for run, state in states.items() if state == kind}
            self.same(set(keys.get(f"{key}:{dag}", ())), wanted, f"{dag}: {key}")
            there = {m.split("/")[1] for m in keys.get(listed, ()) if m.startswith(f"{dag}/")}
            self.same(there, wanted, f"{dag}: {listed}")
        self.same(set(keys.get(f"runs:{dag}", ())), {*states, *packed}, f"{dag}: runs")
        ended = {m.split("/")[1] for m in keys.get("ended", ()) if m.startswith(f"{dag}/")}
        for run, state in states.items():
            self.expect(
                state not in ENDED or run in ended, f"{dag}/{run}: has ended and will never be packed"
            )
        self._limits(keys, dag, states)
        self._calendar(keys, dag)

    def _limits(self, keys: dict[str, Any], dag: str, states: dict[str, str]) -> None:
        """Who occupies the DAG's limit, or is parked at one, is who is live."""
        busy, parked = set(keys.get(f"busy:{dag}", ())), set()
        for name, members in keys.items():
            if name == f"parked:{dag}" or name.startswith(f"parked:{dag}:"):
                for member in members:
                    self.expect(member not in parked, f"{dag}: {member} is parked twice")
                    parked.add(member)
        live = set()
        for run, state in states.items():
            if state != "running":
                continue
            ready = _ready(keys, f"{dag}/{run}")
            for index, task in _tasks(keys[f"run:{dag}:{run}"]):
                if task.state in LIVE:
                    live.add(f"{run}/{index}")
                    waits = task.state == "ready" and f"{run}/{index}" in parked
                    offered = task.state == "ready" and (index, task.attempt) in ready
                    if task.state == "ready":
                        self.expect(
                            waits != offered, f"{dag}/{run}/{index}: ready, parked {waits}, offered {offered}"
                        )
                    self.expect(
                        waits != (f"{run}/{index}" in busy) or self.lossy,
                        f"{dag}/{run}/{index}: {task.state}, place under its limit",
                    )
        self.expect(
            busy | parked <= live, f"{dag}: places of who is not live: {sorted((busy | parked) - live)}"
        )

    def _calendar(self, keys: dict[str, Any], dag: str) -> None:
        """No slot vanishes: each became a run or left a record."""
        about = keys[f"dag:{dag}"]
        if not about.get("schedule") or not about.get("slot"):
            self.slots.pop(dag, None)
            return
        text, following = about["schedule"], int(about["slot"])
        paused = about["paused"] == "1"
        self.expect(paused or dag in keys.get("slots", {}), f"{dag}: has a slot and nothing will look at it")
        known, first = self.slots.setdefault(dag, (text, following))
        if known != text:
            self.slots[dag] = text, following
            return
        schedule: Schedule = read(text)[0]
        runs = {int(ms) for ms in keys.get(f"dates:{dag}", {}).values()}
        skips = {int(m.partition(":")[0]) for m in keys.get(f"skips:{dag}", ())}
        for slot in islice(_slots(schedule, first, following), MOST_SLOTS):
            self.expect(slot in runs or slot in skips, f"{dag}: slot {slot} vanished")

    # ---- a run

    def run(
        self,
        snapshot: Snapshot,
        shard: int,
        keys: dict[str, Any],
        dag: str,
        run: str,
        fields: dict[str, str],
        somewhere: set[str],
    ) -> None:
        """Its counters, and each of its tasks: who waits can still wait, and who is with a pool is there or on its way back."""
        record = run_from_hash(fields, keys.get(f"tries:{dag}:{run}", {}))
        if record.digest not in self.graphs.graphs:
            self.graphs.of(snapshot.plan(shard, dag, record.digest), record.digest)
        graph, spec = self.graphs.graphs[record.digest]
        name, frozen = f"{dag}/{run}", "frozen" in fields or int(fields.get("pending", 0)) > 0
        tasks = [decode_record(record.tasks.get(i)) for i in range(len(graph.names))]
        unsettled = sum(t.state not in SETTLED for t in tasks)
        if not frozen:
            self.same(record.left, unsettled, f"{name}: left")
            bad = sum(t.state == "failed" and not _forgiven(graph, spec, i) for i, t in enumerate(tasks))
            self.same(record.failed, bad, f"{name}: failed")
        if record.state in ENDED:
            self.expect(
                record.state != "success" or unsettled == 0, f"{name}: success with {unsettled} tasks left"
            )
            self.expect(
                not keys.get(f"ready:{name.replace('/', ':')}"), f"{name}: ended, and has a ready set"
            )
            return
        if record.state == "running" and not frozen:
            self.expect(unsettled > 0, f"{name}: runs with nothing left to do")
            self._tasks(keys, name, graph, record, tasks, somewhere)

    def _tasks(
        self,
        keys: dict[str, Any],
        name: str,
        graph: Graph,
        record: RunRecord,
        tasks: list[TaskRecord],
        somewhere: set[str],
    ) -> None:
        reopen = "reopen" in keys[f"run:{name.replace('/', ':')}"]
        ready = _ready(keys, name)
        for i, task in enumerate(tasks):
            attempt = f"{name}/{i}/{task.attempt}"
            if task.state == "none" and not reopen:
                self._waits(f"{name}/{i}", graph, i, record, tasks)
            elif task.state in ("queued", "running"):
                there = attempt in somewhere or (i, task.attempt) in ready or self.lossy
                self.expect(there, f"{attempt} is {task.state}, and nobody has it: it will wait for ever")
            elif task.state == "retrying":
                self.expect(
                    f"retry/{attempt}" in keys.get("timers", {}), f"{attempt} retries without a timer"
                )

    def _waits(self, name: str, graph: Graph, i: int, record: RunRecord, tasks: list[TaskRecord]) -> None:
        counts = [0, 0, 0]
        for up in graph.needs[i]:
            if tasks[up].state in SETTLED:
                counts[CLASS[tasks[up].state]] += 1
        packed = sum(n * unit for n, unit in zip(counts, UNIT, strict=True))
        self.same(int(record.tasks.get(i) or 0), packed, f"{name}: counters of its upstreams")
        verdict = decide(graph.rules[i], len(graph.needs[i]), *counts)
        self.expect(verdict == "wait", f"{name}: waits, but its rule says {verdict}")

    # ---- a pool

    def _pool(self, keys: dict[str, Any]) -> dict[str, Entry]:
        return {attempt: Entry.of(text) for attempt, text in keys.get("entries", {}).items()}

    def _slots(self, name: str, keys: dict[str, Any]) -> None:
        entries = self._pool(keys)
        where = f"pool {name}"
        on = {a: e for a, e in entries.items() if e.state in "QRS"}
        places = {a if n == 1 else f"{a}#{n}" for a, e in on.items() for n in range(1, e.slots + 1)}
        self.same(set(keys.get("held", ())), places, f"{where}: held")
        self.same(
            set(keys.get("lease", ())), {a for a, e in on.items() if e.state in "RS"}, f"{where}: leases"
        )
        waiting = {a: e.group for a, e in entries.items() if e.state == "W"}
        groups = {n[5:]: set(keys[n]) for n in keys if n.startswith("wait:")}
        listed = {a: g for g, members in groups.items() for a in members}
        self.same(listed, waiting, f"{where}: who waits")
        self.same(set(keys.get("groups", ())), set(waiting.values()), f"{where}: groups")
        there = {f["id"] for _, f in keys.get("stream", ())}
        missing = {a for a, e in on.items() if e.state == "Q"} - there
        self.expect(not missing, f"{where}: queued and not on the stream: {sorted(missing)}")
        slots, used = int(keys.get("meta", {}).get("slots", 0)), len(places)
        if name in self.used:
            most = max(slots, self.used[name], self.sizes.get(name, 0))
            self.expect(used <= most, f"{where}: {used} of {slots} slots used")
        self.used[name], self.sizes[name] = used, slots
        narrow = all(e.slots == 1 for e in entries.values())
        self.expect(
            not (narrow and waiting and used < slots), f"{where}: {len(waiting)} wait beside free slots"
        )


def _tasks(fields: dict[str, str]) -> Iterator[tuple[int, TaskRecord]]:
    for index, value in fields.items():
        if index.isdecimal():
            yield int(index), decode_record(value)


def _forgiven(graph: Graph, spec: dict[str, Any], index: int) -> bool:
    return bool(spec["tasks"][graph.names[index]].get("allow_failure"))


def _slots(schedule: Schedule, first: int, following: int) -> Iterator[int]:
    at: int | None = first
    while at is not None and at < following:
        yield at
        at = schedule.next_after(at)
