"""What an audit says of a run, a DAG and a pool, from looks that are made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from redsched.audit import (
    DagLook,
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
)
from redsched.edit import Graph

# a and b, then c; b may fail.
SHAPE = Shape(
    Graph(("a", "b", "c"), ((), (), (0, 1)), ("all_success", "all_success", "all_success")),
    ("default", "gpu", "default"),
    (False, True, False),
)
OFFERED = TaskLook(limits=1, busy=1, parked=0, timer=False, needs_timer=False)
NAMED = frozenset({"active", "running_runs", "runs"})


def look(states: dict[int, str], **more: Any) -> RunLook:
    """A run that is well: a and b at their pools, or as `states` says."""
    live = {i for i, s in states.items() if s in ("ready", "queued", "running", "retrying")}
    settled = len(states) - len(live)
    plain: dict[str, Any] = {
        "shard": 0,
        "dag": "d",
        "name": "d",
        "run": "r",
        "fields": {"state": "running", "head": "1,abc,manual,,5,", "left": str(3 - settled)},
        "states": {i: (s, 1) for i, s in states.items()},
        "ready": frozenset(i for i, s in states.items() if s == "ready"),
        "places": NAMED | ({"outbox"} if "ready" in states.values() else set()),
        "plan_timers": frozenset(),
        "branches": {},
        "tasks": dict.fromkeys(live, OFFERED),
        "editing": 0,
        "crc": 1,
    }
    fields = {**plain["fields"], **more.pop("fields", {})}
    return RunLook(**{**plain, **more, "fields": fields})


def found(one: RunLook) -> set[tuple[str, str]]:
    """(key, what repairs it)."""
    return {(d.key, d.repair[0]) for d in audit_run(one, SHAPE)}


@pytest.mark.parametrize(
    "one",
    [
        look({0: "queued", 1: "running"}),
        look({0: "ready", 1: "running"}),
        look({0: "success", 1: "running"}, fields={"2": "1"}),
        look(
            {0: "success", 1: "failed", 2: "upstream_failed"},
            fields={"state": "success", "left": "0"},
            places=frozenset({"ended", "runs"}),
        ),
    ],
)
def test_what_is_well_is_well(one: RunLook) -> None:
    assert found(one) == set()


def test_a_failed_task_that_may_fail_does_not_count() -> None:
    one = look({0: "success", 1: "failed"}, fields={"failed": "1", "2": str(1 + (1 << 14))})
    assert ("run:d:r", "count") in found(one)


def test_an_undecided_task_is_held_against_its_upstreams() -> None:
    wrong = look({0: "success", 1: "queued"}, fields={"2": "2"})
    (d,) = audit_run(wrong, SHAPE)
    assert (d.task, d.there, d.should) == (
        "c",
        "counters 2 succeeded, 0 failed, 0 skipped",
        "1 succeeded, 0 failed, 0 skipped",
    )
    assert d.repair[:5] == ("decide", "d", "r", "2", "1:")


def test_a_decision_that_was_never_taken_is_found() -> None:
    (d,) = audit_run(look({0: "success", 1: "success"}, fields={"2": "2"}), SHAPE)
    assert d.repair[:5] == ("decide", "d", "r", "2", "2:r")
    (d,) = audit_run(look({0: "failed", 1: "queued"}, fields={"failed": "1"}), SHAPE)
    assert d.repair[4] == f"{1 << 14}:u"


def test_a_task_that_was_not_chosen_is_skipped_whatever_its_rule() -> None:
    one = look({0: "success", 1: "queued"}, branches={0: frozenset({2})}, fields={"2": "1"})
    (d,) = audit_run(one, SHAPE)
    assert d.repair[4] == "1:k"


def test_what_is_under_way_hides_counters_and_decisions() -> None:
    one = look({0: "success", 1: "success"}, fields={"pending": "1", "2": "1"})
    assert found(one) == {("run:d:r", "count")}


def test_a_run_that_is_being_edited_is_judged_by_its_lists_only() -> None:
    one = look({0: "success", 1: "success"}, fields={"frozen": "x", "left": "9"})
    assert found(one) == {("run:d:r", "edit")}


@pytest.mark.parametrize(
    ("there", "ready", "well"),
    [
        (OFFERED, True, True),
        (TaskLook(1, 0, 1, False, False), False, True),
        (TaskLook(1, 0, 0, False, False), False, False),
        (TaskLook(2, 1, 0, False, False), True, False),
        (TaskLook(1, 1, 1, False, False), True, False),
    ],
)
def test_a_ready_task_is_offered_or_parked_once(there: TaskLook, ready: bool, well: bool) -> None:
    one = look({0: "ready", 1: "queued"}, tasks={0: there, 1: OFFERED})
    if not ready:
        one = replace(one, ready=frozenset(), places=NAMED)
    assert (found(one) == set()) == well


def test_timers_are_asked_for_only_where_they_are_needed() -> None:
    waits = replace(OFFERED, busy=0, needs_timer=True)
    assert found(look({0: "retrying", 1: "queued"}, tasks={0: waits, 1: OFFERED})) == {("timers", "timer")}
    assert found(look({0: "queued", 1: "queued"}, plan_timers=frozenset({"expire", "deadline"}))) == {
        ("timers", "run")
    }
    late = look({0: "queued", 1: "queued"}, plan_timers=frozenset({"deadline"}), fields={"late": "1"})
    assert found(late) == set()


def test_a_run_that_is_gone_is_named_by_no_list() -> None:
    gone = look({}, fields={"state": ""}, places=frozenset({"active", "runs"}), tasks={})
    assert {d.repair[0] for d in audit_run(gone, None)} == {"gone"}
    packed = replace(gone, places=frozenset({"packed", "runs", "dates"}))
    assert audit_run(packed, None) == []


def test_attempts_at_their_pools_are_asked_for_by_pool() -> None:
    one = look({0: "queued", 1: "running"})
    assert forgotten(one, SHAPE) == {"default": [0], "gpu": [1]}
    lost = lost_attempt(one, SHAPE, 1, left_lately=False)
    assert lost.repair == ("lost", "d/r/1/1")
    assert (lost.cell, lost.task, lost.attempt) == ("pool gpu", "b", 1)
    assert forgotten(look({0: "queued"}, fields={"frozen": "x"}), SHAPE) == {}


def test_places_are_free_and_somebody_is_parked() -> None:
    limit = LimitLook("d", 2, 1, 1, "r/0", (), ())
    dag = DagLook(0, "d", False, "", True, "", False, (limit,), (), (), ())
    (d,) = audit_dag(dag)
    assert d.repair[:3] == ("unpark", "d", "d")
    for well in (replace(limit, busy=2), replace(limit, max=-1), replace(limit, parked=0)):
        assert audit_dag(replace(dag, limits=(well,))) == []


def test_a_paused_dag_needs_no_slot_in_the_index() -> None:
    dag = DagLook(0, "d", False, "", True, "5", False, (), (), (), ())
    assert [d.key for d in audit_dag(dag)] == ["slots"]
    assert audit_dag(replace(dag, paused=True)) == []


def test_entries_stand_where_their_state_says() -> None:
    queued = EntryLook("p", "d/r/0/1", "Q", slots=2, group="d", held=2)
    assert audit_entry(queued) == []
    assert [d.repair[0] for d in audit_entry(replace(queued, held=1, hint=False))] == ["hold", "hint"]
    running = replace(queued, state="R")
    assert [d.repair[0] for d in audit_entry(running)] == ["lease"]
    waiting = replace(queued, state="W", held=0)
    assert [d.repair[0] for d in audit_entry(waiting)] == ["wait"]
    assert audit_entry(replace(waiting, in_line=True, group_in_line=True)) == []
    assert audit_entry(replace(queued, state="")) == []


def test_places_of_nobody_name_the_attempt_if_it_can_be_read() -> None:
    lists = ListsLook(
        "p", ("d/r/0/1#2", "odd"), (), (("g", "d/r/1/1"),), ("empty",), (("5-0", "d/r/2/1"),), "d/r/3/1"
    )
    found = audit_lists(lists)
    assert [d.repair[0] for d in found] == ["free", "free", "unwait", "unline", "redeliver", "admit"]
    assert (found[0].dag, found[0].task, found[1].dag) == ("d", "0", "")


def test_a_difference_reads_as_a_sentence() -> None:
    d = audit_shadow(EntryLook("p", "d/r/0/7", "Q"), "attempt 8, running")
    assert str(d) == (
        "pool p entries (d/r/0/7): queued, should be gone: its shard knows it as attempt 8, running: "
        "a worker would run it for nothing"
    )
    assert d.shown()["attempt"] == 7
