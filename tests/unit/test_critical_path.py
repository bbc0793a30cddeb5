"""Where the time of a run went. Each test names the rule it holds; networkx is the oracle of the longest path."""

from __future__ import annotations

import time
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redsched.cli.critical_path import PLAIN, ROWS, gantt, shares
from redsched.critical_path import (
    Span,
    analyse,
    causes_of,
    estimate,
    explained,
    holders_of,
    jobs_of,
    spans_of,
    typical,
)
from redsched.edit import CLASS, Graph
from redsched.replay import Job, replay
from redsched.rules import decide
from redsched.states import TRIGGER_RULES
from redsched.store.codec import RunRecord

CREATED = 1_767_000_000_000


def graph_of(*needs: tuple[int, ...], rules: dict[int, str] | None = None) -> Graph:
    names = tuple(f"t{i}" for i in range(len(needs)))
    return Graph(names, needs, tuple((rules or {}).get(i, "all_success") for i in range(len(needs))))


def run_of(tasks: list[str], **more: object) -> RunRecord:
    known: dict[str, object] = {
        "state": "success",
        "version": 1,
        "digest": "d",
        "kind": "manual",
        "logical": None,
        "created": CREATED,
        "started": CREATED,
        "ended": CREATED + 10_000,
        "failed": 0,
        "tasks": {i: t for i, t in enumerate(tasks) if t},
    }
    return RunRecord(**{**known, **more})  # type: ignore[arg-type]


@st.composite
def graphs(draw: st.DrawFn, rules: tuple[str, ...] = ("all_success",), most: int = 10) -> Graph:
    n = draw(st.integers(1, most))
    needs = [tuple(sorted(draw(st.sets(st.integers(0, i - 1), max_size=4)))) if i else () for i in range(n)]
    return graph_of(*needs, rules={i: draw(st.sampled_from(rules)) for i in range(n)})


def durations(graph: Graph, least: int = 1) -> st.SearchStrategy[list[int]]:
    n = len(graph.names)
    return st.lists(st.integers(least, 50), min_size=n, max_size=n)


@st.composite
def plain(draw: st.DrawFn) -> tuple[Graph, list[int]]:
    graph = draw(graphs())
    return graph, draw(durations(graph))


@st.composite
def mixed(draw: st.DrawFn) -> tuple[Graph, list[Job]]:
    """Any rules and outcomes that the rules allow, lags, delays and retries."""
    graph = draw(graphs(tuple(TRIGGER_RULES)))
    jobs: list[Job] = []
    small = st.integers(0, 9)
    for i, rule in enumerate(graph.rules):
        counts = [0, 0, 0]
        for up in graph.needs[i]:
            counts[CLASS[jobs[up].state]] += 1
        verdict = decide(rule, len(graph.needs[i]), *counts)
        if verdict == "run":
            state = draw(st.sampled_from(["success", "success", "failed", "skipped"]))
            jobs.append(Job(draw(small), draw(small), draw(small), draw(small), state))
        else:
            jobs.append(Job(0, draw(small), state=verdict, ran=False))
    return graph, jobs


@st.composite
def contended(draw: st.DrawFn) -> tuple[Graph, list[Job], dict[str, int], int | None]:
    graph = draw(graphs())
    pools = {"a": draw(st.integers(1, 4)), "b": draw(st.integers(1, 2))}
    jobs = []
    for running in draw(durations(graph, least=0)):
        pool = draw(st.sampled_from(["a", "b", "free"]))
        slots = draw(st.integers(1, pools.get(pool, 9)))
        priority, key = draw(st.integers(-1, 1)), draw(st.sampled_from(["", "k"]))
        jobs.append(Job(running, pool=pool, slots=slots, priority=priority, key=key, key_limit=bool(key)))
    return graph, jobs, pools, draw(st.none() | st.integers(1, 5))


def used_at(spans: list[Span], jobs: list[Job], now: int, pool: str) -> int:
    return sum(
        j.slots for s, j in zip(spans, jobs, strict=True) if j.pool == pool and s.started <= now < s.ended
    )


def longest(graph: Graph, weights: list[int]) -> int:
    """The longest path by networkx: an edge weighs what its head takes."""
    drawn = nx.DiGraph()
    for i, needs in enumerate(graph.needs):
        drawn.add_edge(-1, i, weight=weights[i])
        for up in needs:
            drawn.add_edge(up, i, weight=weights[i])
    return int(nx.dag_longest_path_length(drawn))


def end_of(spans: list[Span]) -> int:
    return max(s.ended for s in spans if s.ran)


# ---- the path and the slack


@given(plain())
def test_without_contention_the_path_is_as_long_as_the_run(case: tuple[Graph, list[int]]) -> None:
    graph, times = case
    spans = replay(graph, [Job(t) for t in times])
    found = analyse(graph, spans)
    assert found.total == end_of(spans) == longest(graph, times)
    assert sum(times[i] for i in found.path) == found.total
    assert all(a in graph.needs[b] for a, b in zip(found.path, found.path[1:], strict=False))


@given(mixed())
def test_the_steps_add_up_and_the_slack_is_not_negative(case: tuple[Graph, list[Job]]) -> None:
    graph, jobs = case
    spans = replay(graph, jobs)
    found = analyse(graph, spans)
    whole = sum(s.waiting + s.slot + s.retrying + s.running for s in found.steps)
    assert whole == found.total == (end_of(spans) if any(j.ran for j in jobs) else 0)
    assert all(s.waiting >= 0 for s in found.steps)
    assert min(found.slack.values(), default=0) >= 0
    assert set(found.slack) | set(found.path) == set(range(len(jobs)))


@given(plain(), st.data())
def test_slack_is_exactly_how_much_longer_a_task_could_have_taken(
    case: tuple[Graph, list[int]], data: st.DataObject
) -> None:
    graph, times = case
    jobs = [Job(t) for t in times]
    found = analyse(graph, replay(graph, jobs))
    task = data.draw(st.integers(0, len(times) - 1))
    slack = found.slack.get(task, 0)
    for more, moved in ((slack, 0), (slack + 1, 1)):
        longer = [replace(j, running=j.running + more) if i == task else j for i, j in enumerate(jobs)]
        assert end_of(replay(graph, longer)) - found.total == moved


@given(mixed(), st.data())
def test_under_any_rule_a_task_may_take_its_slack_longer(
    case: tuple[Graph, list[Job]], data: st.DataObject
) -> None:
    graph, jobs = case
    found = analyse(graph, replay(graph, jobs))
    task = data.draw(st.sampled_from([i for i, j in enumerate(jobs) if j.ran]))
    more = found.slack.get(task, 0)
    longer = [replace(j, running=j.running + more) if i == task else j for i, j in enumerate(jobs)]
    assert end_of(replay(graph, longer)) == found.total


def test_an_early_rule_is_caused_by_the_upstream_it_did_not_wait_beyond() -> None:
    graph = graph_of((), (), (0, 1), rules={2: "one_success"})
    spans = replay(graph, [Job(5), Job(50), Job(10)])
    assert causes_of(graph, spans)[2] == (0,)
    found = analyse(graph, spans)
    assert (found.path, found.total) == ((1,), 50)
    assert found.slack == {0: 35, 2: 35}


def test_a_task_that_held_the_slot_another_waited_for_has_no_slack_against_it() -> None:
    graph, jobs = graph_of((), (), ()), [Job(5, pool="p"), Job(7, pool="p"), Job(4)]
    spans = replay(graph, jobs, {"p": 1})
    held = holders_of(spans, jobs, {"p": 1})
    found = analyse(graph, spans, held)
    assert (held, found.path, found.total) == ([(0, 1)], (1,), 12)
    assert found.slack == {0: 0, 2: 8}
    assert holders_of(spans, jobs, {"p": 2}) == [], "a pool that this run did not fill was held by others"


@given(contended())
def test_holders_only_take_slack_away_and_need_a_full_pool(
    case: tuple[Graph, list[Job], dict[str, int], int | None],
) -> None:
    graph, jobs, pools, limit = case
    spans = replay(graph, jobs, pools, limit)
    held = holders_of(spans, jobs, pools, limit)
    free, bound = analyse(graph, spans), analyse(graph, spans, held)
    assert (free.path, free.total) == (bound.path, bound.total)
    assert all(0 <= bound.slack[i] <= free.slack[i] for i in free.slack)
    assert all(spans[a].ended <= spans[b].started and spans[b].slot > 0 for a, b in held)


# ---- records


def test_the_parts_of_a_task_are_clamped_however_late_queued_was_noted() -> None:
    graph = graph_of((), (0,))
    record = run_of(["s1,,,5,900,4,100,1", "s1,,,101,,300,500,1"], started=CREATED + 5)
    spans, begin = spans_of(graph, record, CREATED)
    assert begin == CREATED + 5
    assert spans == [Span("success", 0, 0, 95), Span("success", 96, 295, 495)]
    found = analyse(graph, spans)
    assert [(s.waiting, s.slot, s.running) for s in found.steps] == [(0, 0, 95), (1, 199, 200)]


def test_of_a_retried_task_the_last_attempt_ran_and_the_rest_was_retrying() -> None:
    graph = graph_of((), (0,))
    tries = {"1.1": "failed,150,200,1,exit 1", "1.2": "lost,400,450,1,"}
    record = run_of(["s1,,,0,,0,100,1", "s3,1,,500,,600,1000,1"], tries=tries)
    spans, _ = spans_of(graph, record, CREATED)
    assert spans[1] == Span("success", 100, 600, 1000, retrying=350)
    assert spans[1].slot == 150, "before the first attempt and before the last"


def test_a_cleared_task_counts_its_attempts_from_the_clear() -> None:
    graph = graph_of((), (0,))
    record = run_of(
        ["s1,,,0,,0,100,1", "s2,,,5000,,5010,6000,1"],
        tries={"1.1": "failed,150,200,1,", "last1": "1"},
        started=CREATED + 4_990,
    )
    spans, begin = spans_of(graph, record, CREATED)
    assert begin == CREATED, "the run started again, its first task did not"
    assert spans[1] == Span("success", 5000, 5010, 6000)
    assert analyse(graph, spans).steps[1].waiting == 4900


def test_what_did_not_run_passes_time_on_but_is_no_step() -> None:
    graph = graph_of((), (0,), (1,), rules={2: "all_done"})
    record = run_of(["f1,1,,0,,0,100,1", "u0,,,,,,103,", "s1,,,103,,110,200,1"], state="failed")
    spans, _ = spans_of(graph, record, CREATED)
    found = analyse(graph, spans)
    assert (found.path, found.total, found.slack) == ((0, 2), 200, {1: 0})
    assert found.steps[1].waiting == 3


def test_a_marked_task_has_no_running_time() -> None:
    record = run_of(["s1,,,,,50,9000,1"], tries={"mark0": "s", "0.1": "failed,50,80,1,"})
    assert spans_of(graph_of(()), record, CREATED)[0] == [Span("success", 9000, 9000, 9000, ran=False)]


def test_a_running_run_is_measured_until_now_and_a_cancelled_one_until_its_end() -> None:
    graph = graph_of((), (), (), (), (0,))
    tasks = ["x1,,,0,1,10,,1", "q1,,,0,1,,,", "w1,1,,0,1,5,20,1", "r1,,,0,,,,", ""]
    live = run_of(tasks, state="running", ended=None, tries={"2.1": "failed,5,20,1,"})
    spans, _ = spans_of(graph, live, CREATED + 100)
    assert spans == [
        Span("running", 0, 10, 100),
        Span("queued", 0, 100, 100),
        Span("retrying", 0, 100, 100, retrying=95),
        Span("ready", 0, 100, 100),
        None,
    ]
    assert analyse(graph, spans).path == (0,)
    ended = run_of(tasks, state="cancelled", ended=CREATED + 70, tries={"2.1": "failed,5,20,1,"})
    spans, _ = spans_of(graph, ended, CREATED + 100)
    assert [(s.state, s.ended, s.ran) for s in spans if s] == [
        ("cancelled", 70, True),
        ("cancelled", 70, False),
        ("cancelled", 70, False),
        ("cancelled", 70, False),
    ]


def test_a_run_that_has_not_started_has_no_path() -> None:
    graph = graph_of((), (0,))
    spans, begin = spans_of(graph, run_of([], state="queued", started=None, ended=None), CREATED + 9)
    assert (spans, begin) == ([None, None], CREATED + 9)
    assert (analyse(graph, spans).path, analyse(graph, spans).total) == ((), 0)


# ---- replay


@given(mixed())
def test_a_replay_with_all_waits_as_delays_is_what_happened(case: tuple[Graph, list[Job]]) -> None:
    graph, jobs = case
    spans = replay(graph, jobs)
    assert replay(graph, jobs_of(graph, spans)) == spans


@given(contended())
def test_a_replay_never_uses_more_than_it_was_given(
    case: tuple[Graph, list[Job], dict[str, int], int | None],
) -> None:
    graph, jobs, pools, limit = case
    spans = replay(graph, jobs, pools, limit)
    for now in {s.started for s in spans}:
        assert all(used_at(spans, jobs, now, name) <= slots for name, slots in pools.items())
        running = [j for s, j in zip(spans, jobs, strict=True) if s.started <= now < s.ended]
        assert limit is None or len(running) <= limit
        assert sum(j.key == "k" for j in running) <= 1
    assert all(s.ended - s.started == j.running for s, j in zip(spans, jobs, strict=True))
    assert all(spans[u].ended <= spans[i].ready for i, ups in enumerate(graph.needs) for u in ups)


@given(contended())
def test_waits_that_pools_and_limits_explain_are_not_counted_twice(
    case: tuple[Graph, list[Job], dict[str, int], int | None],
) -> None:
    graph, jobs, pools, limit = case
    spans = replay(graph, jobs, pools, limit)
    seen = [replace(j, delay=s.slot, lag=0) for j, s in zip(jobs, spans, strict=True)]
    assert replay(graph, explained(graph, seen, pools, limit), pools, limit) == spans


@given(contended())
def test_the_pool_is_work_conserving_for_tasks_of_one_slot(
    case: tuple[Graph, list[Job], dict[str, int], int | None],
) -> None:
    graph, jobs, pools, _ = case
    jobs = [replace(j, slots=1, key="", key_limit=0) for j in jobs]
    spans = replay(graph, jobs, pools)
    for s, j in zip(spans, jobs, strict=True):
        if j.pool in pools and s.started > s.ready:
            for now in {s.ready, s.started - 1, *(x.started for x in spans), *(x.ended for x in spans)}:
                if s.ready <= now < s.started:
                    assert used_at(spans, jobs, now, j.pool) == pools[j.pool]


def test_priority_goes_first_and_a_wide_task_is_not_overtaken_for_ever() -> None:
    graph = graph_of(*[()] * 12)
    jobs = [Job(10, pool="p", priority=5), Job(10, pool="p", slots=2)] + [Job(15, pool="p")] * 10
    spans = replay(graph, jobs, {"p": 2})
    assert spans[0].started == 0
    assert spans[1].started == 25, "two slots' worth may go before it, then it is waited for"
    with pytest.raises(ValueError, match="at least one slot"):
        replay(graph, jobs, {"p": 0})


def test_the_median_of_several_runs_leaves_out_what_most_did_not_run() -> None:
    graph = graph_of((), (0,))
    runs = [
        replay(graph, [Job(a), Job(b, state=s, ran=s == "success")])
        for a, b, s in ((10, 5, "success"), (30, 0, "skipped"), (20, 0, "skipped"))
    ]
    jobs = typical(graph, runs)
    assert [(j.running, j.ran) for j in jobs] == [(20, True), (0, False)]
    assert analyse(graph, replay(graph, jobs)).total == 20


# ---- estimate


def test_an_estimate_of_equal_runs_is_exact_and_knows_what_is_done() -> None:
    graph = graph_of((), (0,), (1,))
    past = [replay(graph, [Job(100, delay=10), Job(200), Job(50)])] * 3
    now = [Span("success", 0, 0, 400), Span("running", 400, 400, 450), None]
    found = estimate(graph, now, past, 450)
    assert (found.quantile(0.5), found.quantile(0.9)) == (650, 650)
    assert analyse(graph, found.spans).total == 650
    assert analyse(graph, found.spans).path == (0, 1, 2)


def test_an_estimate_is_the_same_each_time_and_its_quantiles_are_in_order() -> None:
    graph = graph_of((), (), (0, 1))
    past = [replay(graph, [Job(10 * i), Job(100 - i), Job(7 * i % 50)]) for i in range(1, 21)]
    first, second = (estimate(graph, [None] * 3, past, 0) for _ in range(2))
    assert first.ends == second.ends
    assert len(first.ends) == 1000
    assert 80 <= first.quantile(0.5) <= first.quantile(0.9) <= 200 + 49


def test_what_takes_longer_than_ever_ends_now_and_what_is_new_takes_nothing() -> None:
    graph = graph_of((), (), (0, 1))
    past: list[list[Span | None]] = [[Span("success", 0, 0, 10), None, Span("success", 10, 10, 40)]]
    found = estimate(graph, [Span("running", 0, 0, 500), Span("running", 0, 0, 500), None], past, 500)
    assert (found.overdue, found.unknown) == ((0,), (1,))
    assert found.quantile(0.9) == 530


@given(plain(), st.data())
def test_no_estimate_lies_in_the_past(case: tuple[Graph, list[int]], data: st.DataObject) -> None:
    graph, times = case
    past = replay(graph, [Job(t, delay=3) for t in times])
    now = data.draw(st.integers(0, end_of(past)))
    seen: list[Span | None] = []
    for s in past:
        if s.ended <= now:
            seen.append(s)
        elif s.started <= now:
            seen.append(replace(s, state="running", ended=now))
        elif s.ready <= now:
            seen.append(replace(s, state="queued", started=now, ended=now))
        else:
            seen.append(None)
    found = estimate(graph, seen, [past], now, draws=3)
    assert set(found.ends) == {end_of(past)}, "a run like the one before it ends like it"


# ---- size


def test_ten_thousand_tasks_are_analysed_replayed_and_estimated_in_seconds() -> None:
    needs = [tuple(range(max(0, (i // 100 - 1) * 100), i // 100 * 100))[:: 1 + i % 7] for i in range(10_000)]
    graph = graph_of(*needs)
    began = time.perf_counter()
    spans = replay(graph, [Job(1 + i % 97, pool="p") for i in range(10_000)], {"p": 64}, 200)
    found = analyse(graph, spans)
    assert len(found.path) == 100
    found_estimate = estimate(graph, [None] * 10_000, [spans] * 3, 0)
    assert 20 <= len(found_estimate.ends) < 1000
    assert time.perf_counter() - began < 30


# ---- the chart


def shown(graph: Graph, spans: list[Span]) -> dict[str, object]:
    from redsched.critical_path import _shown, _tasks

    found = analyse(graph, spans)
    return {**_shown(graph, found), "tasks": _tasks(graph, spans, found)}


def test_the_chart_shows_three_kinds_of_time_and_marks_the_path() -> None:
    graph = graph_of((), (0,), (0,))
    rows = gantt(shown(graph, replay(graph, [Job(5000), Job(5000, delay=5000), Job(1000)])), 44, PLAIN)
    assert [r.text for r in rows] == [
        "* t0 ##########                        5.0s",
        "  t2 ..........##                      1.0s",
        "* t1 ..........----------##########    5.0s",
        "* critical  . waiting  - for a slot  # runni",
    ]
    assert [r.critical for r in rows] == [True, False, True, False]


@settings(max_examples=50)
@given(mixed(), st.integers(30, 200))
def test_the_chart_fits_the_width(case: tuple[Graph, list[Job]], width: int) -> None:
    graph, jobs = case
    rows = gantt(shown(graph, replay(graph, jobs)), width, PLAIN)
    assert all(len(r.text) <= width for r in rows)


@pytest.mark.parametrize(("wide", "deep", "rows"), [(39, 1, 40), (60, 3, 4), (1, 60, ROWS)])
def test_many_tasks_are_shown_as_the_path_alone(wide: int, deep: int, rows: int) -> None:
    needs: list[tuple[int, ...]] = [()] * wide
    needs += [(len(needs) - 1 + i,) for i in range(deep)]
    graph = graph_of(*needs)
    made = gantt(shown(graph, replay(graph, [Job(10)] * len(needs))), 80, PLAIN)
    assert sum("#" in r.text and "critical  " not in r.text for r in made) == rows


def test_the_shares_of_the_path_add_up() -> None:
    assert shares({"waiting": 5.0, "slot": 15.0, "retrying": 0.0, "running": 80.0}) == (
        "running 80 %, for a slot 15 %, waiting 5 %"
    )
