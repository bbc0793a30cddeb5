"""Where the time of a run went: its critical path, what was not on it, what-if replays, and when it will end.

Pure but for `of_client`, which gathers the records. Times are whole milliseconds since the run began.
Slack and replays know only this run: waits that it does not explain by itself (other runs, busy workers) stay as they
were, except in pools whose slots are changed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from redsched.edit import CLASS, Graph
from redsched.errors import DefinitionError, NotFound
from redsched.replay import Job, Span, replay
from redsched.rules import decide
from redsched.states import ENDED, SETTLED
from redsched.store.codec import RunRecord, TaskRecord, decode_record

if TYPE_CHECKING:
    from redsched.client import Client

DRAWS: Final = 1000
# Steps of an estimate over all draws, about two seconds; a graph too big for 1000 draws gets fewer, at least 20.
DRAW_STEPS: Final = 5_000_000
MIN_DRAWS: Final = 20
SEED: Final = 20260102
# An estimate reads at most so many past runs, and so many of their tasks (about a second).
HISTORY: Final = 30
HISTORY_TASKS: Final = 200_000
# How far back runs of the same graph are looked for, and how many are read at a time.
SCAN: Final = 1000
PAGE: Final = 20
# Early rules take the first upstream of their kind; an estimate takes the first of all.
FIRST: Final = frozenset({"one_success", "one_failed", "one_done"})


Spans = Sequence[Span | None]


@dataclass(frozen=True, slots=True)
class Step:
    """A task on the path; `waiting` counts from the end of the step before, so that all steps add up to the path."""

    task: int
    waiting: int
    slot: int
    retrying: int
    running: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """`total` is from the run's begin to the end of the last step; `slack` is of every other task that has settled."""

    steps: tuple[Step, ...]
    total: int
    slack: dict[int, int]

    @property
    def path(self) -> tuple[int, ...]:
        return tuple(s.task for s in self.steps)


# ---- what happened


def spans_of(graph: Graph, record: RunRecord, now: int) -> tuple[list[Span | None], int]:
    """(by task what happened, None if nothing yet; when the run began, ms since the epoch). `now`: ms since the epoch."""
    tasks = [decode_record(record.tasks.get(i)) for i in range(len(graph.names))]
    horizon = max(0, (now if record.ended is None else record.ended) - record.created)
    begin = horizon if record.started is None else record.started - record.created
    # Because a run that was cleared starts again, its first tasks may be older than its start.
    begin = max(0, min([begin, *(t.ready for t in tasks if t.ready is not None)]))
    spans: list[Span | None] = [None] * len(tasks)
    for i in graph.order:
        task = tasks[i]
        if task.state != "none":
            asked = max(
                (s.ended for u in graph.needs[i] if (s := spans[u]) and s.state in SETTLED), default=0
            )
            spans[i] = _span(record, i, task, horizon - begin, begin, asked)
    return spans, record.created + begin


def _span(record: RunRecord, index: int, task: TaskRecord, horizon: int, begin: int, asked: int) -> Span:
    """`asked`: when its last upstream settled, which stands for the first `ready` where a retry has overwritten it."""

    def since(ms: int | None) -> int | None:
        return None if ms is None else max(0, ms - begin)

    over = task.state in SETTLED
    state = task.state if over or record.state != "cancelled" else "cancelled"
    ended = _first(since(task.ended) if over else None, horizon)
    if task.attempt == 0 or record.marked(index):
        return Span(state, ended, ended, ended, ran=False)
    begun = task.state == "running" or over
    started = min(_first(since(task.started) if begun else None, ended), ended)
    # A cut of milliseconds may put the start a little before `ready`; `queued` is noted late and not used at all.
    again = ended if task.state == "retrying" else min(_first(since(task.ready), started), ended)
    started = max(started, again)
    ran = begun or state != "cancelled"
    before = int(record.tries.get(f"last{index}", "0"))
    if task.attempt == before + 1 and task.state != "retrying":
        return Span(state, again, started, ended, ran=ran)
    first = record.attempt(index, before + 1)
    first_start = since(first.started) if first else None
    # After a clear nobody knows any more when the first attempt became ready.
    ready = min(again, asked if not before else _first(first_start, again))
    if first_start is not None:
        ready = min(ready, first_start)
    return Span(state, ready, started, ended, again - min(again, _first(first_start, ready)), ran)


def _first(value: int | None, other: int) -> int:
    return other if value is None else value


def causes_of(graph: Graph, spans: Spans) -> list[tuple[int, ...]]:
    """By task the upstreams whose settling decided it: all of them, or the one that a rule did not wait beyond."""
    return [() if (s := spans[i]) is None else _causes(graph, i, s, spans) for i in range(len(graph.names))]


def _causes(graph: Graph, index: int, span: Span, spans: Spans) -> tuple[int, ...]:
    rule, needs = graph.rules[index], graph.needs[index]
    # What settled later did not decide: a rule went before it, or it was cleared and ran again.
    found = [
        (s.ended, u, s.state)
        for u in needs
        if (s := spans[u]) and s.state in SETTLED and s.ended <= span.ready
    ]
    if rule == "always":
        return ()
    everything = tuple(u for _, u, _ in found)
    if rule == "all_success" and span.ran:
        return everything
    counts = [0, 0, 0]
    for at, (_, up, state) in enumerate(sorted(found), start=1):
        counts[CLASS[state]] += 1
        if at < len(needs) and decide(rule, len(needs), *counts) != "wait":
            return (up,)
    return everything


def analyse(graph: Graph, spans: Spans, holders: Iterable[tuple[int, int]] = ()) -> Analysis:
    """The path that led to the last end, and how much longer each other task could have taken without moving it.

    A wait for a slot counts as it was, but a task has no slack against one whose slot it held (`holders_of`).
    """
    known = {i: s for i, s in enumerate(spans) if s is not None}
    causes = causes_of(graph, spans)
    ran = {i: s for i, s in known.items() if s.ran}
    if not ran:
        return Analysis((), 0, dict.fromkeys(known, 0))
    end = max(s.ended for s in ran.values())
    last = max(ran, key=lambda i: (ran[i].ended, ran[i].state == "running", ran[i].ended - ran[i].ready, -i))
    steps = _steps(known, causes, last)
    slack = _slack(graph, known, causes, holders, end)
    for step in steps:
        slack.pop(step.task)
    return Analysis(steps, end, slack)


def _slack(
    graph: Graph,
    known: Mapping[int, Span],
    causes: Sequence[tuple[int, ...]],
    holders: Iterable[tuple[int, int]],
    end: int,
) -> dict[int, int]:
    held: dict[int, list[int]] = {}
    for holder, i in holders:
        held.setdefault(i, []).append(holder)
    place = {i: at for at, i in enumerate(graph.order)}
    slack = {i: max(0, end - s.ended) for i, s in known.items()}
    for i in sorted(known, key=lambda i: (known[i].ended, known[i].started, place[i]), reverse=True):
        base = max((known[u].ended for u in causes[i]), default=0)
        for up in causes[i]:
            slack[up] = min(slack[up], base - known[up].ended + slack[i])
        for up in held.get(i, ()):
            slack[up] = min(slack[up], known[i].started - known[up].ended + slack[i])
    return slack


def holders_of(
    spans: Spans, jobs: Sequence[Job], pools: Mapping[str, int], limit: int | None = None
) -> list[tuple[int, int]]:
    """Pairs (a, b): b waited in a pool, or under the limit, that this run alone had filled, and got the place of a."""
    ran = [i for i, s in enumerate(spans) if s is not None and s.ran and s.running]
    found: list[tuple[int, int]] = []
    for pool, size in pools.items():
        found += _holders(spans, {i: jobs[i].slots for i in ran if jobs[i].pool == pool}, size)
    if limit is not None:
        found += _holders(spans, dict.fromkeys(ran, 1), limit)
    return found


def _holders(spans: Spans, slots: Mapping[int, int], size: int) -> Iterator[tuple[int, int]]:
    """Places go round like a pile of plates: who starts takes those that became free last."""
    known = {i: s for i in slots if (s := spans[i])}
    events = [(s.ended, 0, i) for i, s in known.items()] + [(s.started, 1, i) for i, s in known.items()]
    used, pile = 0, list[tuple[int, int]]()
    for _, starts, i in sorted(events):
        if not starts:
            pile += [(i, used)] * slots[i]
            used -= slots[i]
            continue
        taken = {pile.pop() for _ in range(min(slots[i], len(pile)))}
        used += slots[i]
        asked = known[i].started - known[i].slot
        for holder, before in taken:
            if known[holder].ended > asked and before + slots[i] > size:
                yield holder, i


def _steps(known: Mapping[int, Span], causes: Sequence[tuple[int, ...]], last: int) -> tuple[Step, ...]:
    path = [last]
    while ups := causes[path[-1]]:
        path.append(max(ups, key=lambda u: (known[u].ended, known[u].ran, known[u].running, -u)))
    steps, before = [], 0
    for i in reversed(path):
        span = known[i]
        if span.ran:
            steps.append(Step(i, span.ready - before, span.slot, span.retrying, span.running))
            before = span.ended
    return tuple(steps)


# ---- replay


def jobs_of(graph: Graph, spans: Spans) -> list[Job]:
    """The jobs whose replay without limits gives the same spans: all waits for a slot are kept as delays."""
    causes = causes_of(graph, spans)
    return [_job(graph, i, s, spans, causes[i]) for i, s in enumerate(spans)]


def _job(graph: Graph, index: int, span: Span | None, spans: Spans, causes: tuple[int, ...]) -> Job:
    if span is None:
        return Job(0, state="skipped", ran=False)
    base = max((s.ended for u in causes if (s := spans[u])), default=0)
    orphan = graph.needs[index] and not causes and graph.rules[index] != "always"
    lag = 0 if orphan else span.ready - base
    state = span.state if span.state in SETTLED else "success"
    return Job(span.running, lag, span.slot, span.retrying, state, span.ran)


def typical(graph: Graph, runs: Sequence[Spans]) -> list[Job]:
    """The median of each part of each task over several runs, the newest first; zero where most did not run it."""
    many = [jobs_of(graph, spans) for spans in runs]
    found = []
    for jobs in zip(*many, strict=True):
        lag, delay, retrying, running = (
            int(median(x)) for x in zip(*((j.lag, j.delay, j.retrying, j.running) for j in jobs), strict=True)
        )
        state = Counter(j.state for j in jobs).most_common(1)[0][0]
        ran = 2 * sum(j.ran for j in jobs) >= len(jobs)
        found.append(Job(running, lag, delay, retrying, state, ran))
    return found


def explained(graph: Graph, jobs: Sequence[Job], pools: Mapping[str, int], limit: int | None) -> list[Job]:
    """The jobs with only that part of their delays that the pools and limits of this run alone do not explain."""
    alone = replay(graph, [replace(j, delay=0) for j in jobs], pools, limit)
    return [replace(j, delay=max(0, j.delay - s.slot)) for j, s in zip(jobs, alone, strict=True)]


# ---- when will it end?


@dataclass(frozen=True, slots=True)
class Estimate:
    """`ends`: of every draw, in order. `spans`: the run as it would be if all that is left took its median time."""

    ends: tuple[int, ...]
    spans: tuple[Span, ...]
    overdue: tuple[int, ...]
    unknown: tuple[int, ...]

    def quantile(self, share: float) -> int:
        return self.ends[min(len(self.ends) - 1, int(share * len(self.ends)))]


@dataclass(frozen=True, slots=True)
class _Left:
    """A task that has not settled: `ends` are times at which it may end if it is `ready`, else how long it may take after
    `base` and its unsettled `ups` (the `first` of them, or all).
    """

    index: int
    ready: bool
    ends: tuple[int, ...]
    running: int
    ups: tuple[int, ...] = ()
    base: int | None = None
    first: bool = False

    def after(self, ended: Sequence[int]) -> int:
        """When it becomes ready, by the times at which its unsettled upstreams end."""
        times = [ended[u] for u in self.ups]
        if self.base is not None:
            times.append(self.base)
        return min(times) if self.first else max(times)


def estimate(graph: Graph, spans: Spans, history: Sequence[Spans], now: int, draws: int = DRAWS) -> Estimate:
    """Draw what each unsettled task has left from what it took before, for itself; what is done stays as it is.

    A task that already takes longer than ever counts as ending now (`overdue`), one without a past as nothing (`unknown`).
    """
    samples = _samples(graph, history)
    left, overdue = [], []
    for i in graph.order:
        span = spans[i]
        if span is None or span.state not in SETTLED:
            found = _left(graph, i, spans, samples[i], now)
            left.append(found)
            late = span is not None and span.state == "running" and samples[i]
            if late and max(found.ends) <= now:
                overdue.append(i)
    done = max((s.ended for s in spans if s and s.state in SETTLED), default=0)
    size = len(left) + sum(len(x.ups) for x in left)
    draws = max(min(draws, MIN_DRAWS), min(draws, DRAW_STEPS // max(1, size)))
    drawn = _draw(left, [s.ended if s else 0 for s in spans], max(now, done), draws)
    unknown = tuple(x.index for x in left if not samples[x.index])
    return Estimate(drawn, _projected(left, spans), tuple(overdue), unknown)


def _samples(graph: Graph, history: Sequence[Spans]) -> list[list[tuple[int, int]]]:
    """By task (waited, ran) of past runs: what succeeded, and nothing at all where it was skipped."""
    samples: list[list[tuple[int, int]]] = [[] for _ in graph.names]
    for spans in history:
        for i, (span, job) in enumerate(zip(spans, jobs_of(graph, spans), strict=True)):
            if span is not None and span.ran and span.state == "success":
                samples[i].append((job.lag + job.delay + job.retrying, job.running))
            elif span is not None and span.state == "skipped":
                samples[i].append((0, 0))
    return samples


def _left(graph: Graph, index: int, spans: Spans, samples: Sequence[tuple[int, int]], now: int) -> _Left:
    span, usual = spans[index], int(median([ran for _, ran in samples] or [0]))
    if span is None:
        needs = () if graph.rules[index] == "always" else graph.needs[index]
        settled = [s.ended for u in needs if (s := spans[u]) and s.state in SETTLED]
        ups = tuple(u for u in needs if (s := spans[u]) is None or s.state not in SETTLED)
        ends = tuple(waited + ran for waited, ran in samples) or (0,)
        first = graph.rules[index] in FIRST and bool(ups)
        base = now if not ups else None if first else max(settled, default=None)
        return _Left(index, False, ends, usual, ups, base, first)
    if span.state == "running":
        times = [span.started + ran for _, ran in samples if span.started + ran > now]
    elif span.state == "retrying":
        times = [now + ran for _, ran in samples]
    else:
        times = [max(now, span.ready + waited) + ran for waited, ran in samples]
    return _Left(index, True, tuple(times) or (now,), usual)


def _draw(left: Sequence[_Left], ended: list[int], floor: int, draws: int) -> tuple[int, ...]:
    """`ended` holds the times of what has settled, and is written over for the rest in every draw."""
    pick = random.Random(SEED).random
    ends = []
    for _ in range(draws):
        last = floor
        for x in left:
            end = x.ends[int(pick() * len(x.ends))]
            if not x.ready:
                end += x.after(ended)
            ended[x.index] = end
            last = max(last, end)
        ends.append(last)
    return tuple(sorted(ends))


def _projected(left: Sequence[_Left], spans: Spans) -> tuple[Span, ...]:
    found = list(spans)
    ended = [s.ended if s else 0 for s in spans]
    for x in left:
        span, end = found[x.index], int(median(x.ends))
        if span is None:
            ready = x.after(ended)
            span = Span("success", ready, ready + max(0, end - x.running), ready + end)
        elif span.state == "running":
            span = replace(span, state="success", ended=end)
        else:
            started = max(span.ready + span.retrying, end - x.running)
            span = replace(span, state="success", started=started, ended=max(end, started))
        found[x.index], ended[x.index] = span, span.ended
    return tuple(s for s in found if s is not None)


# ---- from an installation


def of_client(
    client: Client,
    dag: str,
    run: str | None = None,
    last: int = 1,
    what_if: Mapping[str, Any] | None = None,
    pools: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The critical path of a run (the latest), or of the medians of the `last` successful runs of the same graph.

    `what_if` maps tasks to durations, `pools` pools to slots: the run is replayed with them. Raises NotFound for names
    that are not there, DefinitionError for values that can't be.
    """
    if last < 1:
        raise DefinitionError(f"last {last}: write a whole number of runs, at least 1")
    chosen = _chosen(client, dag, run, last)
    (name, record), (graph, spec) = chosen[0], _graph(client, dag, chosen[0][1])
    changes, slots = _changes(client, dag, graph, what_if or {}), _slots(graph, spec, pools or {})
    room, now = _room(client, graph, spec), _now(client)
    runs = [spans_of(graph, r, now) for _, r in chosen]
    spans, begin = runs[0]
    jobs = typical(graph, [s for s, _ in runs]) if last > 1 else jobs_of(graph, spans)
    if last > 1:
        spans = list(replay(graph, jobs))
    jobs = _placed(graph, spec, jobs)
    found = analyse(graph, spans, holders_of(spans, jobs, room.pools, room.limit))
    forecast, past = None, _history(client, dag, graph, now) if record.state not in ENDED else []
    if past:
        likely = estimate(graph, spans, past, max(0, now - begin))
        forecast = _forecast(graph, likely, begin, len(past))
        jobs = _placed(graph, spec, jobs_of(graph, likely.spans))
    return {
        "dag": dag,
        "run": name,
        "state": record.state,
        "version": record.version,
        "runs": [r for r, _ in chosen],
        **_shown(graph, found),
        "tasks": _tasks(graph, spans, found),
        "estimate": forecast,
        "what_if": _what_if(graph, jobs, room, changes, slots) if changes or slots else None,
    }


def _chosen(client: Client, dag: str, run: str | None, last: int) -> list[tuple[str, RunRecord]]:
    if last == 1:
        name = client._resolve(dag, run or "latest")
        return [(name, client._record(dag, name))]
    name = client._resolve(dag, run) if run else ""
    if name:
        client._record(dag, name)
    runs = _like(client, dag, None, _from(_records(client, dag), name), last)
    if not runs:
        raise NotFound(f"DAG {dag!r} has no successful run to take medians of; leave --last away")
    return runs


def _records(client: Client, dag: str, limit: int = SCAN) -> Iterator[tuple[str, RunRecord]]:
    """The DAG's runs, the newest first."""
    client._dag_hash(dag)
    shard = client.store.shard
    for offset in range(0, limit, PAGE):
        ids = client._say(shard.run_ids, dag, offset, PAGE)
        if not ids:
            return
        for name, record in zip(ids, client._say(shard.records, [(dag, r) for r in ids]), strict=True):
            if record is not None:
                yield name, record


def _from(runs: Iterable[tuple[str, RunRecord]], name: str) -> Iterator[tuple[str, RunRecord]]:
    """The runs from `name` on, or all."""
    seen = not name
    for run, record in runs:
        seen = seen or run == name
        if seen:
            yield run, record


def _like(
    client: Client, dag: str, graph: Graph | None, runs: Iterable[tuple[str, RunRecord]], count: int
) -> list[tuple[str, RunRecord]]:
    """The first `count` successful runs of this graph (None: that of the first), whatever their version."""
    same: dict[str, bool] = {}
    found: list[tuple[str, RunRecord]] = []
    for name, record in runs:
        if record.state != "success":
            continue
        if record.digest not in same:
            other = _graph(client, dag, record)[0]
            graph = graph or other
            same[record.digest] = other == graph
        if same[record.digest]:
            found.append((name, record))
        if len(found) == count:
            break
    return found


def _history(client: Client, dag: str, graph: Graph, now: int) -> list[list[Span | None]]:
    count = max(3, min(HISTORY, HISTORY_TASKS // len(graph.names)))
    runs = _like(client, dag, graph, _records(client, dag, 5 * count), count)
    return [spans_of(graph, r, now)[0] for _, r in runs]


def _graph(client: Client, dag: str, record: RunRecord) -> tuple[Graph, dict[str, Any]]:
    spec, names = client._plan(dag, record.digest)
    return Graph.of(spec, names), spec


def _now(client: Client) -> int:
    """By Redis' clock, which wrote all other times."""

    def ask() -> int:
        with client.store.translate():
            seconds, micros = client.store.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    return client._say(ask)


def _changes(client: Client, dag: str, graph: Graph, what_if: Mapping[str, Any]) -> dict[int, int]:
    from redsched.definition.values import parse_duration

    indexes = client._indexes(dag, graph.names, list(what_if))
    return {
        i: parse_duration(value, f"what-if {name}")
        for i, (name, value) in zip(indexes, what_if.items(), strict=True)
    }


def _slots(graph: Graph, spec: Mapping[str, Any], pools: Mapping[str, Any]) -> dict[str, int]:
    from redsched.definition.values import suggestion

    widest = _widest(graph, spec)
    found = {}
    for name, value in pools.items():
        if name not in widest:
            near = suggestion(name, widest) or f"; they use {', '.join(sorted(widest)[:10])}"
            raise NotFound(f"no task of DAG {spec['dag']!r} runs in a pool {name!r}{near}")
        text = str(value)
        if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 9:
            raise DefinitionError(f"pool {name}: {text!r} is no number of slots; write a whole number")
        found[name] = int(text)
        if found[name] < widest[name]:
            raise DefinitionError(f"pool {name}: {text} slots; its widest task needs {widest[name]}")
    return found


def _widest(graph: Graph, spec: Mapping[str, Any]) -> dict[str, int]:
    widest: dict[str, int] = {}
    for name in graph.names:
        task = spec["tasks"][name]
        pool = task.get("pool", "default")
        widest[pool] = max(widest.get(pool, 1), task.get("pool_slots", 1))
    return widest


@dataclass(frozen=True, slots=True)
class _Room:
    """Slots of the pools that the tasks use (one that is gone has no bound), and `max_active_tasks`."""

    pools: Mapping[str, int]
    limit: int


def _room(client: Client, graph: Graph, spec: Mapping[str, Any]) -> _Room:
    from redsched.definition.model import DagSpec

    pools = {}
    for name, widest in _widest(graph, spec).items():
        try:
            # Because it may have been closed or made smaller since then.
            pools[name] = max(widest, client.pool(name)["slots"])
        except NotFound:
            continue
    usual = DagSpec.model_fields["max_active_tasks"].default
    return _Room(pools, int(spec.get("max_active_tasks", usual)))


def _placed(graph: Graph, spec: Mapping[str, Any], jobs: Sequence[Job]) -> list[Job]:
    """The jobs with what they ask for by their definition."""
    found = []
    for job, name in zip(jobs, graph.names, strict=True):
        task = spec["tasks"][name]
        found.append(
            replace(
                job,
                pool=task.get("pool", "default"),
                slots=task.get("pool_slots", 1),
                priority=task.get("priority", 0),
                key=task.get("concurrency_key") or "",
                key_limit=task.get("max_active") or 0,
            )
        )
    return found


def _what_if(
    graph: Graph, jobs: Sequence[Job], room: _Room, changes: Mapping[int, int], slots: Mapping[str, int]
) -> dict[str, Any]:
    """The same run twice on the replay's clock: as it was, and with the changes."""
    for i in changes:
        if not jobs[i].ran:
            raise DefinitionError(
                f"what-if {graph.names[i]}: it did not run ({jobs[i].state}); name a task that did"
            )
    jobs = explained(graph, jobs, room.pools, room.limit)
    before = analyse(graph, replay(graph, jobs, room.pools, room.limit))
    jobs = [replace(j, delay=0) if j.pool in slots else j for j in jobs]
    for i, ms in changes.items():
        jobs[i] = replace(jobs[i], running=ms, retrying=0)
    pools = {**room.pools, **slots}
    spans = replay(graph, jobs, pools, room.limit)
    after = analyse(graph, spans, holders_of(spans, jobs, pools, room.limit))
    return {
        **_shown(graph, after),
        "before_seconds": before.total / 1000,
        "saved_seconds": (before.total - after.total) / 1000,
    }


def _shown(graph: Graph, found: Analysis) -> dict[str, Any]:
    """`path`, `seconds`, `slack` as promised; `steps` and their `totals` say where the time went."""
    names, parts = graph.names, ("waiting", "slot", "retrying", "running")
    return {
        "path": [names[i] for i in found.path],
        "seconds": found.total / 1000,
        "slack": {names[i]: ms / 1000 for i, ms in sorted(found.slack.items())},
        "steps": [{"task": names[s.task], **{p: getattr(s, p) / 1000 for p in parts}} for s in found.steps],
        "totals": {p: sum(getattr(s, p) for s in found.steps) / 1000 for p in parts},
    }


def _tasks(graph: Graph, spans: Spans, found: Analysis) -> dict[str, dict[str, Any]]:
    """Of each task that has come to something; `ready`, `started`, `ended` in seconds since the run began."""
    path = set(found.path)
    return {
        name: {
            "state": s.state,
            "critical": i in path,
            "ready": s.ready / 1000,
            "started": s.started / 1000 if s.ran else None,
            "ended": s.ended / 1000,
            "waiting": s.ready / 1000,
            "slot": s.slot / 1000,
            "retrying": s.retrying / 1000,
            "running": s.running / 1000,
        }
        for i, (name, s) in enumerate(zip(graph.names, spans, strict=True))
        if s is not None
    }


def _forecast(graph: Graph, found: Estimate, begin: int, runs: int) -> dict[str, Any]:
    from redsched.keys import iso

    likely = analyse(graph, found.spans)
    p50, p90 = found.quantile(0.5), found.quantile(0.9)
    return {
        "p50": iso(begin + p50),
        "p90": iso(begin + p90),
        "p50_seconds": p50 / 1000,
        "p90_seconds": p90 / 1000,
        "path": [graph.names[i] for i in likely.path],
        "runs": runs,
        "draws": len(found.ends),
        "overdue": [graph.names[i] for i in found.overdue],
        "unknown": [graph.names[i] for i in found.unknown],
    }
