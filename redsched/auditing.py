"""Rounds of an audit: look, look again, and only then speak of a difference, or repair it.

A difference counts when it is seen twice, with the run unchanged and all that stood in the inbox at the first look
applied in between. So nothing that is under way is taken for an error. A round is a generator of small steps.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from redsched.audit import (
    DagLook,
    Difference,
    EntryLook,
    LimitLook,
    ListsLook,
    RunLook,
    Shape,
    TaskLook,
    audit_dag,
    audit_entry,
    audit_lists,
    audit_run,
    audit_shadow,
    forgotten,
    lost_attempt,
    stray,
)
from redsched.edit import Graph
from redsched.errors import NotFound
from redsched.store.audit import PLACES, Inbox
from redsched.store.codec import decode_record, offered_of, text_map
from redsched.store.pool import DEFAULT_POOL

if TYPE_CHECKING:
    from redsched.store import Store

RUNS_A_LOOK = 20
DAGS_A_LOOK = 20
NAMES_A_LOOK = 500
ENTRIES_A_LOOK = 100
REPAIRS_A_CALL = 50
CONFIRM_S = 0.5
# How long the inbox may take to be applied, and how often a run that changes is looked at again.
PATIENCE_S = 10.0
LOOKS = 6
# A repair can show what it hid (a counter, then a decision): a round repairs in so many steps at most.
DEPTH = 5
SHAPES = 500
WINDOW = 500

Run = tuple[str, str]
# A run, and the task at which a look begins: 0 for all of it (lua/shard/audit.lua).
Spot = tuple[str, str, int]
T = TypeVar("T")
Steps = Generator[float, None, T]


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


@dataclass(slots=True)
class Findings:
    """What a round came to: differences that were seen twice; of these, what was repaired; runs that could not be judged."""

    looked: int = 0
    differences: list[Difference] = field(default_factory=list)
    repaired: list[Difference] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)

    @property
    def left(self) -> list[Difference]:
        return [d for d in self.differences if d not in self.repaired]


@dataclass(slots=True)
class Scope:
    """What a round of a shard looks at: runs, DAGs with the names of their further limits, and what stands nowhere else."""

    runs: Iterable[Run] = ()
    dags: dict[str, set[str]] = field(default_factory=dict)
    strays: bool = True


class Shapes:
    """The shapes of DAG versions, kept as far as SHAPES."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._kept: dict[tuple[str, str], Shape] = {}

    def of(self, dag: str, digest: str) -> Shape:
        """Raises NotFound."""
        kept = self._kept.get((dag, digest))
        if kept is None:
            if len(self._kept) >= SHAPES:
                self._kept.clear()
            kept = self._kept[dag, digest] = shape_of(*self.store.shard.plan(dag, digest))
        return kept


def shape_of(spec: dict[str, Any], names: Sequence[str]) -> Shape:
    tasks = [spec["tasks"][n] for n in names]
    return Shape(
        Graph.of(spec, names),
        tuple(t.get("pool", DEFAULT_POOL) for t in tasks),
        tuple(bool(t.get("allow_failure")) for t in tasks),
        tuple(i for i, t in enumerate(tasks) if t.get("max_active") and "concurrency_key" not in t),
    )


# ---- shards


@dataclass
class ShardRound:
    """One shard. With a `token` it repairs what it finds, as the owner of the shard. Raises Fenced."""

    store: Store
    shard: int
    shapes: Shapes
    token: str = ""
    findings: Findings = field(default_factory=Findings)
    _runs: dict[Spot, tuple[int, set[Difference]]] = field(default_factory=dict)
    _dags: dict[str, tuple[set[str], set[Difference]]] = field(default_factory=dict)
    _stray: set[Difference] = field(default_factory=set)
    _until: str = "0-0"  # the inbox has to be applied as far as that before anything is judged

    def steps(self, scope: Scope) -> Steps[None]:
        """Each step is one or two calls; what it yields is how long to wait (s) before the next."""
        for _ in range(DEPTH):
            yield from self._first_looks(scope)
            found = yield from self._second_looks()
            self.findings.differences += [d for d in found if d not in self.findings.differences]
            if not found or not self.token or not (done := self._repair(found)):
                return
            self.findings.repaired += [d for d in done if d not in self.findings.repaired]
            runs = [(d.dag, d.run) for d in found if d.dag and d.run]
            scope = Scope(dict.fromkeys(runs), {d.dag: set() for d in found if d.dag}, strays=False)

    def _first_looks(self, scope: Scope) -> Steps[None]:
        if scope.strays:
            self._stray = set(stray(self.shard, *self.store.audit.names(self.shard, 0, 0)[1:]))
        limits = {dag: set(names) for dag, names in scope.dags.items()}
        for page in chunks(scope.runs, RUNS_A_LOOK):
            todo: list[Spot] = [(dag, run, 0) for dag, run in page]
            while todo:
                yield 0.0
                looks = self._look(todo)
                self.findings.looked += sum(not look.start for look in looks)
                self._suspect(self._judge(looks, limits))
                todo = todo[len(looks) :]
                todo += [(x.dag, x.run, i) for x in looks if not x.start for i in self._further(x)]
        for some in chunks(limits.items(), DAGS_A_LOOK):
            yield 0.0
            self._dags |= self._judge_dags(dict(some))

    def _note(self, inbox: Inbox) -> None:
        self._until = max(self._until, inbox.last, key=Inbox.order)

    def _look(self, spots: Sequence[Spot]) -> list[RunLook]:
        inbox, raw = self.store.audit.runs(self.shard, spots)
        self._note(inbox)
        return [run_look(self.shard, spot, look) for spot, look in zip(spots, raw, strict=False)]

    def _further(self, look: RunLook) -> Iterable[int]:
        """Where looks at the rest of a big run begin."""
        if len(look.fields) <= 2 * WINDOW or look.state != "running":
            return ()
        try:
            return range(WINDOW, len(self.shapes.of(look.dag, look.digest).pools), WINDOW)
        except NotFound:
            return ()  # its DAG is being deleted

    def _suspect(self, judged: dict[Spot, tuple[int, set[Difference]]]) -> None:
        self._runs |= {run: seen for run, seen in judged.items() if seen[1]}

    def _judge(
        self, looks: Sequence[RunLook], limits: dict[str, set[str]] | None = None
    ) -> dict[Spot, tuple[int, set[Difference]]]:
        found: dict[Spot, tuple[int, set[Difference]]] = {}
        shapes: dict[Run, Shape] = {}
        for look in looks:
            try:
                shape = self.shapes.of(look.dag, look.digest) if look.state else None
            except NotFound:
                continue  # its DAG is being deleted
            found[look.dag, look.run, look.start] = look.crc, set(audit_run(look, shape))
            if shape is not None and not look.start:
                shapes[look.dag, look.run] = shape
                if limits is not None:
                    names = {f"{look.dag}:{i}" for i in shape.limited}
                    limits.setdefault(look.dag, set()).update(names)
        for look, lost in self._forgotten(looks, shapes):
            found[look.dag, look.run, 0][1].add(lost)
        return found

    def _forgotten(
        self, looks: Sequence[RunLook], shapes: dict[Run, Shape]
    ) -> Iterator[tuple[RunLook, Difference]]:
        """Attempts that the shard believes to be at their pools, and that are not there.

        A worker reports before it releases: what left a pool in order has its report in the inbox by the time we look there.
        """
        pools: dict[str, dict[str, tuple[RunLook, int]]] = {}
        for look in looks:
            shape = None if look.start else shapes.get((look.dag, look.run))
            for pool, tasks in (forgotten(look, shape) if shape else {}).items():
                pools.setdefault(pool, {}).update({look.attempt_id(i): (look, i) for i in tasks})
        missing = False
        for pool, ids in pools.items():
            for some in chunks(ids, ENTRIES_A_LOOK):
                for entry in entry_looks(pool, self.store.audit.entries(pool, "", some)[2]):
                    if not entry.state and not entry.lost:
                        look, index = ids[entry.id]
                        missing = True
                        yield look, lost_attempt(look, shapes[look.dag, look.run], index, entry.gone)
        if missing:
            self._note(self.store.audit.inbox(self.shard))

    def _judge_dags(self, dags: dict[str, set[str]]) -> dict[str, tuple[set[str], set[Difference]]]:
        asked = [(dag, sorted(names - {dag})) for dag, names in dags.items()]
        inbox, raw = self.store.audit.dags(self.shard, asked)
        self._note(inbox)
        found: dict[str, tuple[set[str], set[Difference]]] = {}
        for (dag, names), look in zip(asked, raw, strict=True):
            seen = dag_look(self.shard, dag, look)
            if seen is not None and (wrong := set(audit_dag(seen))):
                found[dag] = set(names), wrong
        return found

    def _applied(self) -> Steps[bool]:
        """Until the inbox has been applied as far as it stood at the first looks; False if nobody does it."""
        end, until = time.monotonic() + PATIENCE_S, self._until
        while Inbox.order(self.store.audit.inbox(self.shard).cursor) < Inbox.order(until):
            if time.monotonic() > end:
                return False
            yield 0.1
        return True

    def _second_looks(self) -> Steps[list[Difference]]:
        confirmed: set[Difference] = set()
        for _ in range(LOOKS):
            if not self._runs and not self._dags and not self._stray:
                break
            yield CONFIRM_S
            if not (yield from self._applied()):
                self._give_up()
                break
            self._until = "0-0"
            confirmed |= self._again()
        self._give_up()
        return sorted(confirmed, key=str)

    def _give_up(self) -> None:
        self.findings.unsure |= {f"{dag}/{run}" for dag, run, _ in self._runs} | set(self._dags)
        self._runs, self._dags, self._stray = {}, {}, set()

    def _again(self) -> set[Difference]:
        """Second looks: what is confirmed. What has changed, and is wrong still, remains suspect for another one."""
        runs, dags, strays = self._runs, self._dags, self._stray
        self._runs, self._dags, self._stray = {}, {}, set()
        confirmed: set[Difference] = set()
        todo = list(runs)
        while todo:
            looks = self._look(todo[:RUNS_A_LOOK])
            for run, (crc, wrong) in self._judge(looks).items():
                before, suspected = runs[run]
                confirmed |= wrong & suspected if crc == before else set()
                if wrong and crc != before:
                    self._runs[run] = crc, wrong
            todo = todo[len(looks) :]
        for some in chunks(dags.items(), DAGS_A_LOOK):
            for dag, (names, wrong) in self._judge_dags({dag: names for dag, (names, _) in some}).items():
                confirmed |= wrong & dags[dag][1]
                if rest := wrong - dags[dag][1]:
                    self._dags[dag] = names, rest
        if strays:
            confirmed |= strays & set(stray(self.shard, *self.store.audit.names(self.shard, 0, 0)[1:]))
        return confirmed

    def _repair(self, found: Sequence[Difference]) -> list[Difference]:
        lost = [d for d in found if d.repair[:1] == ("lost",)]
        if lost:
            self.store.audit.lose([d.repair[1] for d in lost])
        done = set(lost)
        repairs = dict.fromkeys(d.repair for d in found if d.repair and d not in done)
        for some in chunks(repairs, REPAIRS_A_CALL):
            answers = self.store.audit.fix_shard(self.shard, self.token, some)
            well = {repair for repair, ok in zip(some, answers, strict=True) if ok}
            done |= {d for d in found if d.repair in well}
        return sorted(done, key=str)


def live_runs(store: Store, shard: int) -> Iterator[Run]:
    """The runs of a shard that its own lists call live, in pages."""
    offset, seen = 0, set[Run]()
    while names := store.audit.names(shard, offset, NAMES_A_LOOK)[0]:
        for run in names:
            if run not in seen:
                seen.add(run)
                yield run
        offset += NAMES_A_LOOK


def everything(store: Store) -> dict[int, Scope]:
    """All runs and DAGs of the installation by shard: those that lists name, and those that are only keys."""
    scopes = {shard: Scope() for shard in range(store.shards)}
    runs, limits = store.audit.scan()
    by_shard: dict[int, set[Run]] = {shard: set(live_runs(store, shard)) for shard in scopes}
    for run in runs:
        by_shard[store.shard.of(run[0])].add(run)
    for dag in {*store.shard.all_dags(), *limits, *(dag for dag, _ in runs)}:
        scopes[store.shard.of(dag)].dags[dag] = limits.get(dag, set())
    for shard, scope in scopes.items():
        scope.runs = _all_runs(store, by_shard[shard], list(scope.dags))
    return scopes


def _all_runs(store: Store, live: set[Run], dags: Sequence[str]) -> Iterator[Run]:
    yield from sorted(live)
    for dag in dags:
        offset = 0
        while page := store.audit.indexed(dag, offset, NAMES_A_LOOK):
            yield from (run for run in page if run not in live)
            offset += NAMES_A_LOOK


def run_look(shard: int, spot: Spot, raw: Any) -> RunLook:
    """What lua/shard/audit.lua says of a run."""
    dag, run, start = spot
    flat, ready, places, branches, tasks, editing = raw
    fields = text_map(flat)
    where = {name for name, there in zip(PLACES, places, strict=False) if there != b""}
    timers = {name for name, ms in zip(("expire", "deadline"), places[11:13], strict=True) if ms != b""}
    if places[13] != b"":
        fields, where = {}, set()  # its DAG is being deleted: nothing is said about it
    records = {int(k): decode_record(v) for k, v in fields.items() if k.isdecimal() and v[:1].isalpha()}
    offered = dict(offered_of(ready))
    states = {i: (r.state, r.attempt) for i, r in records.items() if r.state != "none"}
    # What counts as queued and is in the ready set still: its pool may not have it yet.
    states |= {i: ("ready", n) for i, n in offered.items() if states.get(i) == ("queued", n)}
    return RunLook(
        shard,
        dag,
        places[14].decode(),
        run,
        fields,
        states,
        frozenset(offered),
        frozenset(where),
        frozenset(timers),
        {int(branches[i]): _indexes(branches[i + 1]) for i in range(0, len(branches), 2)},
        {int(t[0]): TaskLook(t[1], t[2], t[3], t[4] != b"", t[5] != b"") for t in tasks},
        editing,
        zlib.crc32(repr(raw).encode()),
        start,
    )


def _indexes(text: bytes) -> frozenset[int]:
    return frozenset(int(x) for x in text.split(b",") if x)


def dag_look(shard: int, dag: str, raw: Any) -> DagLook | None:
    """What lua/shard/audit_dags.lua says of a DAG; None if it is gone or being deleted."""
    if raw[0] == b"":
        return None
    _, paused, waits, listed, slot, slot_listed, limits, not_active, not_queued, backfills = raw
    return DagLook(
        shard,
        dag,
        paused != b"",
        waits.decode(),
        bool(listed),
        slot.decode(),
        slot_listed != b"",
        tuple(
            LimitLook(name.decode(), most, busy, parked, first.decode(), _texts(not_busy), _texts(not_parked))
            for name, most, busy, parked, first, not_busy, not_parked in limits
        ),
        _texts(not_active),
        _texts(not_queued),
        tuple(
            (backfills[i].decode(), backfills[i + 1] != b"", _texts(backfills[i + 2]))
            for i in range(0, len(backfills), 3)
        ),
    )


def _texts(raw: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(x.decode() for x in raw)


# ---- pools


@dataclass
class PoolRound:
    """One pool. With a `fence`, the leader's, it repairs what it finds. Raises Fenced."""

    store: Store
    pool: str
    fence: int = 0
    findings: Findings = field(default_factory=Findings)

    def steps(self) -> Steps[None]:
        for _ in range(DEPTH):
            suspects = yield from self._entries()
            lists = yield from self._lists()
            if not suspects and not lists:
                return
            yield CONFIRM_S
            found = yield from self._again(suspects)
            if lists:
                found |= lists & (yield from self._lists())
            self.findings.differences += [
                d for d in sorted(found, key=str) if d not in self.findings.differences
            ]
            if not found or not self.fence or not (done := self._repair(sorted(found, key=str))):
                return
            self.findings.repaired += [d for d in done if d not in self.findings.repaired]

    def _entries(self) -> Steps[dict[str, set[Difference]]]:
        """The first look at each entry. A queued one whose hint was not seen is suspect; the second look is exact."""
        suspects: dict[str, set[Difference]] = {}
        queued: set[str] = set()
        cursor = "0"
        while True:
            yield 0.0
            there, cursor, raw = self.store.audit.entries(self.pool, cursor, count=ENTRIES_A_LOOK)
            if not there:
                return {}
            looks = entry_looks(self.pool, raw)
            self.findings.looked += len(looks)
            queued |= {look.id for look in looks if look.state == "Q"}
            for id, wrong in self._judge(looks).items():
                suspects.setdefault(id, set()).update(wrong)
            if cursor == "0":
                break
        for id in queued - (self.store.audit.hinted(self.pool) if queued else set()):
            suspects.setdefault(id, set())
        return suspects

    def _judge(self, looks: Sequence[EntryLook]) -> dict[str, set[Difference]]:
        found = {look.id: set(audit_entry(look)) for look in looks}
        kept = {look.id: look for look in looks if look.state in ("W", "Q")}
        for id, known_as in (self.store.audit.unwanted(self.pool, list(kept)) if kept else {}).items():
            found[id].add(audit_shadow(kept[id], known_as))
        return {id: wrong for id, wrong in found.items() if wrong}

    def _again(self, suspects: dict[str, set[Difference]]) -> Steps[set[Difference]]:
        """Second looks. What a shard does not want has to be there still after its shard was asked."""
        found: set[Difference] = set()
        for some in chunks(suspects, ENTRIES_A_LOOK):
            yield 0.0
            looks = entry_looks(self.pool, self.store.audit.entries(self.pool, "", some, hints=True)[2])
            for look in looks:
                wrong = set(audit_entry(look))
                shadows = {d for d in suspects[look.id] if d.repair[0] == "drop" and look.state in ("W", "Q")}
                found |= {d for d in wrong if d in suspects[look.id] or d.repair[0] == "hint"} | shadows
        return found

    def _lists(self) -> Steps[set[Difference]]:
        found: set[Difference] = set()
        cursor = "0"
        while True:
            yield 0.0
            raw = self.store.audit.lists(self.pool, cursor)
            found |= set(audit_lists(lists_look(self.pool, raw)))
            cursor = raw[0].decode()
            if cursor == "0":
                return found

    def _repair(self, found: Sequence[Difference]) -> list[Difference]:
        done: list[Difference] = []
        for some in chunks(found, REPAIRS_A_CALL):
            answers = self.store.audit.fix_pool(self.pool, self.fence, [d.repair for d in some])
            done += [d for d, ok in zip(some, answers, strict=True) if ok]
        return done


def entry_looks(pool: str, raw: Sequence[Any]) -> list[EntryLook]:
    """What lua/pool/audit.lua says of entries."""
    return [
        EntryLook(
            pool,
            id.decode(),
            state.decode(),
            int(slots),
            group.decode(),
            int(held),
            lease != b"",
            place != b"",
            bool(served),
            bool(lost),
            bool(gone),
            None if hint == b"" else bool(hint),
        )
        for id, state, slots, group, held, lease, place, served, lost, gone, hint in raw
    ]


def lists_look(pool: str, raw: Sequence[Any]) -> ListsLook:
    """What lua/pool/audit_lists.lua says of a pool."""
    _, held, leases, waits, groups, hints, first = raw
    return ListsLook(
        pool,
        _texts(held),
        _texts(leases),
        _pairs(waits),
        _texts(groups),
        _pairs(hints),
        first.decode(),
    )


def _pairs(raw: Sequence[bytes]) -> tuple[tuple[str, str], ...]:
    texts = _texts(raw)
    return tuple(zip(texts[::2], texts[1::2], strict=True))
