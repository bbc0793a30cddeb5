"""A run counted again, and the limits, lines and calendar of a DAG: what is kept beside them against what they say.

The run's task records are the truth; counters, sets, lists and timers are only ways to find things quickly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from redsched.audit.difference import Difference
from redsched.edit import CLASS, UNIT, Graph
from redsched.rules import decide
from redsched.states import ENDED, SETTLED

LIVE: Final = frozenset({"ready", "queued", "running"})
AT_POOL: Final = frozenset({"queued", "running"})
VERDICT: Final = {"run": "r", "skipped": "k", "upstream_failed": "u", "wait": ""}


@dataclass(frozen=True, slots=True)
class Shape:
    """What an audit needs of a DAG version: its graph, of each task its pool and whether it may fail, and which have a limit."""

    graph: Graph
    pools: tuple[str, ...]
    may_fail: tuple[bool, ...]
    limited: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskLook:
    """Where a live task stands: how many limits it has, in how many busy sets it is, how often parked; its timer."""

    limits: int
    busy: int
    parked: int
    timer: bool
    needs_timer: bool


@dataclass(frozen=True, slots=True)
class RunLook:
    """A run at one instant. `states` are those of tasks with a record, `places` the lists that name the run.

    `crc` stands for all that was seen: two looks with the same one saw the same run. A look that begins at a later
    task than the first (`start`) saw where some tasks of a big run stand, and nothing else.
    """

    shard: int
    dag: str
    name: str  # of the DAG with its generation, as in attempt ids
    run: str
    fields: Mapping[str, str]
    states: Mapping[int, tuple[str, int]]
    ready: frozenset[int]
    places: frozenset[str]
    plan_timers: frozenset[str]
    branches: Mapping[int, frozenset[int]]
    tasks: Mapping[int, TaskLook]
    editing: int
    crc: int
    start: int = 0

    @property
    def state(self) -> str:
        return self.fields.get("state", "")

    @property
    def digest(self) -> str:
        return self.fields["head"].split(",")[1]

    def seen(self, index: int | None = None) -> str:
        names = ("state", "left", "edits", "pending", "" if index is None else str(index))
        return "/".join(self.fields.get(n, "") for n in names)

    def attempt_id(self, index: int) -> str:
        return f"{self.name}/{self.run}/{index}/{self.states[index][1]}"


def audit_run(look: RunLook, shape: Shape | None) -> list[Difference]:
    """Everything about the run that is not as its own records say. `shape` is None if the run is gone."""
    if look.start:
        return (
            list(_tasks(look, shape))
            if shape and look.state == "running" and "frozen" not in look.fields
            else []
        )
    if shape is None:
        return list(_gone(look))
    found = list(_places(look))
    if "frozen" in look.fields:
        return [
            *found,
            _run(
                look,
                "run",
                f"frozen, {look.editing} steps of an edit left",
                "edited",
                "a big clear or mark stopped half-way: nothing of the run goes on",
                "edit",
            ),
        ]
    if look.state != "running":
        return [*found, *_counters(look, shape)]
    found += _tasks(look, shape)
    if int(look.fields.get("pending", "0")) > 0:
        what = f"{look.fields['pending']} under way"
        return [
            *found,
            _run(
                look,
                "run",
                what,
                "none",
                "what follows from ended tasks was lost half-way",
                "count",
                _count(look, shape),
            ),
        ]
    if "reopen" in look.fields:
        return [
            *found,
            _run(
                look,
                "run",
                f"tasks {look.fields['reopen']} to be opened",
                "opened",
                "cleared tasks do not run again",
                "reopen",
            ),
        ]
    return [*found, *_counters(look, shape), *_decisions(look, shape)]


def forgotten(look: RunLook, shape: Shape) -> dict[str, list[int]]:
    """Pool -> the tasks that it should have an attempt of, because it took it."""
    pools: dict[str, list[int]] = {}
    if look.state == "running" and "frozen" not in look.fields:
        for i, (state, _) in look.states.items():
            if state in AT_POOL:
                pools.setdefault(shape.pools[i], []).append(i)
    return pools


def lost_attempt(look: RunLook, shape: Shape, index: int, left_lately: bool) -> Difference:
    """The pool has no trace of the attempt, or only that it left; its report is not in the inbox either."""
    state, attempt = look.states[index]
    there = "it left the pool" if left_lately else "nothing"
    means = "its report was lost" if left_lately else "its pool has forgotten it"
    return Difference(
        f"pool {shape.pools[index]}",
        "entries",
        there,
        f"attempt {attempt}, which its shard calls {state}",
        f"{means}: the task would stay {state} for ever; it is taken as lost and tried again",
        ("lost", look.attempt_id(index)),
        look.dag,
        look.run,
        shape.graph.names[index],
        attempt,
    )


def _run(
    look: RunLook, key: str, there: str, should: str, means: str, what: str, value: str = ""
) -> Difference:
    repair = (what, look.dag, look.run, "", value, look.seen() if look.state else "")
    return Difference(
        f"shard {look.shard}",
        f"{key}:{look.dag}:{look.run}" if key == "run" else key,
        there,
        should,
        means,
        repair,
        look.dag,
        look.run,
    )


def _task(
    look: RunLook,
    shape: Shape,
    index: int,
    key: str,
    there: str,
    should: str,
    means: str,
    what: str,
    value: str = "",
) -> Difference:
    attempt = look.states[index][1] if index in look.states else 0
    repair = (what, look.dag, look.run, str(index), value, look.seen(index))
    return Difference(
        f"shard {look.shard}",
        key,
        there,
        should,
        means,
        repair,
        look.dag,
        look.run,
        shape.graph.names[index],
        attempt,
    )


# ---- lists that name a run

MEANS: Final = {
    "active": "max_active_runs counts wrongly",
    "queue": "it would start never, or twice",
    "queued_runs": "`run list` is wrong",
    "running_runs": "`run list` is wrong",
    "outbox": "what is ready in it is not offered",
    "ended": "it is not packed, and what follows it does not start",
    "runs": "`run list --dag` and retention do not see it",
    "dates": "its logical date could get a second run",
    "expire": "its run_timeout never comes",
    "deadline": "nobody hears that it is late",
}


def _places(look: RunLook) -> Iterator[Difference]:
    running, queued = look.state == "running", look.state == "queued"
    wanted = {
        "active": running,
        "running_runs": running,
        "queue": queued,
        "queued_runs": queued,
        "ended": look.state in ENDED,
        "outbox": running and bool(look.ready),
        "runs": True,
        "dates": look.fields["head"].split(",")[3] != "",
    }
    for place, should in wanted.items():
        if should != (place in look.places):
            yield _place(look, place, should)
    late = (
        "late" in look.fields or "cleared" in look.fields or look.fields["head"].split(",")[2] == "backfill"
    )
    for timer, should in (("expire", running), ("deadline", (running or queued) and not late)):
        if should and timer in look.plan_timers and timer not in look.places:
            yield _place(look, timer, True)


def _place(look: RunLook, place: str, should: bool) -> Difference:
    state = look.state or ("packed" if "packed" in look.places else "gone")
    key = f"{place}:{look.dag}" if place in ("active", "queue", "runs", "dates") else place
    if place in ("expire", "deadline"):
        key = "timers"
    words = ("not in it", "in it")
    there, wanted = words[place in look.places], f"{words[should]}: the run is {state}"
    if not look.state:
        return _run(look, key, there, wanted, MEANS[place], "gone")
    return _run(look, key, there, wanted, MEANS[place], "run")


def _gone(look: RunLook) -> Iterator[Difference]:
    """There is no hash of the run: it is packed, or forgotten, and only lists still name it."""
    packed = "packed" in look.places
    for place in ("active", "queue", "queued_runs", "running_runs", "outbox", "ended"):
        if place in look.places:
            yield _place(look, place, False)
    if packed and "runs" not in look.places:
        yield _place(look, "runs", True)
    for place in ("runs", "dates"):
        if not packed and place in look.places:
            yield _place(look, place, False)


# ---- counters and decisions


def _settled(look: RunLook, shape: Shape) -> tuple[int, int]:
    left = len(shape.graph.names) - sum(state in SETTLED for state, _ in look.states.values())
    failed = sum(state == "failed" and not shape.may_fail[i] for i, (state, _) in look.states.items())
    return left, failed


def _count(look: RunLook, shape: Shape) -> str:
    return "{},{}".format(*_settled(look, shape))


def _counters(look: RunLook, shape: Shape) -> Iterator[Difference]:
    left, failed = _settled(look, shape)
    there = int(look.fields.get("left", "0")), int(look.fields.get("failed", "0"))
    count = partial(_run, look, "run", what="count", value=f"{left},{failed}")
    if there != (left, failed):
        means = "the run would end too early, never, or in the wrong state"
        yield count(f"left {there[0]}, failed {there[1]}", f"left {left}, failed {failed}", means)
    elif left == 0 and look.state == "running":
        yield count("running", "ended: all of its tasks have", "the run never ends")


def _decisions(look: RunLook, shape: Shape) -> Iterator[Difference]:
    """Tasks without a record: what their upstreams amount to, and whether that decides."""
    graph = shape.graph
    for i in range(len(graph.names)):
        if i in look.states:
            continue
        counts, verdict = _verdict(look, graph, i)
        packed = sum(n * unit for n, unit in zip(counts, UNIT, strict=True))
        text = look.fields.get(str(i), "0")
        should = "{} succeeded, {} failed, {} skipped".format(*counts)
        if verdict:
            word = next(w for w, letter in VERDICT.items() if letter == verdict).replace("run", "ready")
            yield _task(
                look,
                shape,
                i,
                f"run:{look.dag}:{look.run}",
                "waiting for its upstreams",
                f"{word}: of {len(graph.needs[i])} {should}",
                "the task would wait for ever",
                "decide",
                f"{packed}:{verdict}",
            )
        elif text != str(packed):
            yield _task(
                look,
                shape,
                i,
                f"run:{look.dag}:{look.run}",
                f"counters {_counts(text)}",
                should,
                "the task would start too early or never",
                "decide",
                f"{packed}:",
            )


def _verdict(look: RunLook, graph: Graph, index: int) -> tuple[list[int], str]:
    counts, chosen = [0, 0, 0], True
    for up in graph.needs[index]:
        state = look.states.get(up, ("none", 0))[0]
        if state in SETTLED:
            counts[CLASS[state]] += 1
            chosen &= index not in look.branches.get(up, ()) or state != "success"
    if not chosen:
        return counts, "k"
    return counts, VERDICT[decide(graph.rules[index], len(graph.needs[index]), *counts)]


def _counts(text: str) -> str:
    if not text.isdecimal():
        return repr(text)
    packed = int(text)
    return f"{packed % UNIT[1]} succeeded, {packed // UNIT[1] % UNIT[1]} failed, {packed // UNIT[2]} skipped"


# ---- tasks in their sets


def _tasks(look: RunLook, shape: Shape) -> Iterator[Difference]:
    for i in look.ready:
        state = look.states.get(i, ("none", 0))[0]
        if state != "ready" and i < len(shape.graph.names):
            yield _task(
                look,
                shape,
                i,
                f"ready:{look.dag}:{look.run}",
                "in it",
                f"not in it: it is {state}",
                "it keeps the run in the outbox",
                "place",
            )
    for i, task in look.tasks.items():
        yield from _standing(look, shape, i, task)


def _standing(look: RunLook, shape: Shape, i: int, task: TaskLook) -> Iterator[Difference]:
    state = look.states[i][0]
    one = partial(_task, look, shape, i)
    if state == "ready":
        offered = i in look.ready and task.busy == task.limits and not task.parked
        parked = i not in look.ready and not task.busy and task.parked == 1
        if not offered and not parked:
            yield one(
                f"ready:{look.dag}:{look.run}",
                _where(i in look.ready, task),
                "offered, or parked at one limit",
                "the task is never offered, or a limit counts wrongly",
                "place",
            )
    elif state in AT_POOL and (task.busy != task.limits or task.parked):
        yield one(
            f"busy:{look.dag}",
            _where(False, task),
            f"busy under each of its limits: it is {state}",
            "a limit lets too many run",
            "place",
        )
    elif state == "retrying" and (task.busy or task.parked):
        yield one(
            f"busy:{look.dag}",
            _where(False, task),
            "nowhere: it waits for its retry",
            "a limit lets too few run",
            "place",
        )
    if task.needs_timer and not task.timer:
        means = (
            "it never tries again" if state == "retrying" else "a worker that can't stop it is not noticed"
        )
        yield one("timers", "no timer", f"one, as the task is {state}", means, "timer")


def _where(ready: bool, task: TaskLook) -> str:
    return (
        f"{'in' if ready else 'not in'} the ready set, busy under {task.busy} of {task.limits} limits, "
        f"parked at {task.parked}"
    )


# ---- DAGs


@dataclass(frozen=True, slots=True)
class LimitLook:
    """A limit: who is first in line, and those members that no live task stands behind. max -1: not known."""

    name: str
    max: int
    busy: int
    parked: int
    first: str
    not_busy: tuple[str, ...]
    not_parked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DagLook:
    """A DAG at one instant. `waits`: a queued run for which there is room."""

    shard: int
    dag: str
    paused: bool
    waits: str
    listed: bool
    slot: str
    slot_listed: bool
    limits: tuple[LimitLook, ...]
    not_active: tuple[str, ...]
    not_queued: tuple[str, ...]
    backfills: tuple[tuple[str, bool, tuple[str, ...]], ...]


def audit_dag(look: DagLook) -> list[Difference]:
    """What is kept about the DAG itself."""
    return [*_dag(look), *(d for limit in look.limits for d in _limit(look, limit)), *_backfills(look)]


def _of_dag(
    look: DagLook, key: str, there: str, should: str, means: str, what: str, *more: str, run: str = ""
) -> Difference:
    name, index, value = (*more, "", "", "")[:3]
    repair = (what, look.dag, name, index, value, "")
    return Difference(f"shard {look.shard}", key, there, should, means, repair, look.dag, run)


def _dag(look: DagLook) -> Iterator[Difference]:
    one = partial(_of_dag, look)
    if not look.listed:
        yield one("dags", "not in it", "in it", "`dag list` and retention do not see it", "listed")
    if look.slot and not look.paused and not look.slot_listed:
        yield one(
            "slots", "not in it", f"in it, for its slot {look.slot}", "its schedule stands still", "slot"
        )
    if look.waits:
        yield one(
            f"queue:{look.dag}", f"{look.waits} waits", "running: there is room", "it never starts", "next"
        )
    for run in look.not_active:
        yield one(
            f"active:{look.dag}",
            f"{run} in it",
            "not in it: it does not run",
            MEANS["active"],
            "inactive",
            run,
            run=run,
        )
    for run in look.not_queued:
        yield one(
            f"queue:{look.dag}",
            f"{run} in it",
            "not in it: it is not queued",
            MEANS["queue"],
            "not_queued",
            run,
            run=run,
        )


def _limit(look: DagLook, limit: LimitLook) -> Iterator[Difference]:
    one = partial(_of_dag, look)
    most = str(limit.max)
    for kind, members in (("busy", limit.not_busy), ("parked", limit.not_parked)):
        for member in members:
            yield one(
                f"{kind}:{limit.name}",
                f"{member} in it",
                f"not in it: it is not {kind.replace('busy', 'live')}",
                "a limit counts wrongly",
                f"not_{kind}",
                limit.name,
                member,
                most,
                run=member.rpartition("/")[0],
            )
    if limit.parked and 0 <= limit.busy < limit.max:
        yield one(
            f"parked:{limit.name}",
            f"{limit.first} is parked",
            f"offered: {limit.busy} of {limit.max} are busy",
            "it is never offered",
            "unpark",
            limit.name,
            "",
            most,
            run=limit.first.rpartition("/")[0],
        )


def _backfills(look: DagLook) -> Iterator[Difference]:
    for ident, unseen, runs in look.backfills:
        if unseen:
            yield _of_dag(
                look,
                "backfill_look",
                f"{ident} not in it",
                "in it: it is running",
                "the backfill stands still",
                "backfill",
                ident,
            )
        for run in runs:
            yield _of_dag(
                look,
                f"backfill_runs:{look.dag}:{ident}",
                f"{run} in it",
                "not in it: it is not active",
                "the backfill makes fewer runs, or never ends",
                "backfill",
                ident,
                run,
                run=run,
            )


def stray(shard: int, stops: Iterable[str], timers: Iterable[str]) -> list[Difference]:
    """Stops of attempts that are wanted, and timers that nothing can come of."""
    cell = f"shard {shard}"
    found = [
        Difference(
            cell,
            "stops",
            s,
            "not in it: the attempt is wanted",
            "it would be stopped",
            ("stop", "", "", s, "", ""),
        )
        for s in stops
    ]
    return found + [
        Difference(
            cell,
            "timers",
            t,
            "retry, timeout, expire or deadline",
            "the shard's owner can't read it",
            ("timer", "", "", t, "", ""),
        )
        for t in timers
    ]
