"""The soak in small: each fault at least once, in an order that a seed gives, and nothing lost, stuck or unexplained.

`python -m bench.soak` is the same for ten minutes. The audit itself is tried on records that are wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from .audit import Execution, Findings, check_run
from .siege import FAULTS, KILLS, OTHERS, Event, Step, plan
from .soak import Soak, run

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_every_fault_under_load_and_all_work_is_accounted_for(tmp_path: Path) -> None:
    small = Soak(seed=5, kills=len(KILLS), others=len(OTHERS), seconds=0, lease_ms=2000, worker_lease_ms=3000)
    report = run(tmp_path, small)
    print(report.text())
    assert report.ok, report.text()
    assert set(report.faults) == set(FAULTS) and report.kills == len(KILLS)
    assert report.findings.runs > 20 and report.findings.slots > 2
    assert not report.findings.refused
    assert all("killed by signal" in x.outcome or "silent" in x.outcome for x in report.findings.again)


def test_a_seed_gives_one_order() -> None:
    assert plan(1, 30, 30) == plan(1, 30, 30) != plan(2, 30, 30)
    assert {step.fault for step in plan(1, len(KILLS), len(OTHERS))} == set(FAULTS)


# ---- the audit


def shown(**task: Any) -> dict[str, Any]:
    record = {"state": "success", "attempt": 2, "reason": None, "history": [], "queued_at": None, **task}
    return {"dag": "chain", "run": "r", "state": "success", "tasks": {"t": record}}


LOST = [{"attempt": 1, "outcome": "lost", "reason": "worker one fell silent"}]
ONE, TWO = Execution(1, "worker1", 10), Execution(2, "worker2", 20, whole=True)
KILLED = Event(Step(0, "kill worker", 0, 1), 0.0, 15, {"worker1"}, until=15)
BEFORE = Event(Step(0, "kill worker", 0, 1), 0.0, 5, {"worker1"}, until=5)
OTHER = Event(Step(0, "kill worker", 0, 1), 0.0, 15, {"worker2"}, until=15)


def found(record: dict[str, Any], ran: list[Execution], *events: Event) -> Findings:
    made = Findings()
    check_run(made, record, {("r", "t"): ran}, list(events), cancelled=set(), cleared=set())
    return made


def test_a_death_that_explains_an_execution_is_named() -> None:
    made = found(shown(history=LOST), [ONE, TWO], KILLED)
    assert not made.wrong
    assert [(x.attempt, x.worker, x.whole) for x in made.again] == [(1, "worker1", False)]
    assert made.again[0].fault.startswith("#0 kill worker")
    assert not made.duplicates
    twice = found(shown(history=LOST), [Execution(1, "worker1", 10, whole=True), TWO], KILLED)
    assert not twice.wrong and len(twice.duplicates) == 1


@pytest.mark.parametrize(
    ("record", "ran", "event"),
    [
        (shown(history=LOST), [ONE, TWO], BEFORE),
        (shown(history=LOST), [ONE, TWO], OTHER),
        (shown(history=[]), [ONE, TWO], KILLED),
        (shown(history=[{"attempt": 1, "outcome": "failed", "reason": "Bug: x"}]), [ONE, TWO], KILLED),
        (shown(history=LOST), [ONE], KILLED),
        (shown(history=LOST), [Execution(2, "worker2", 20)], KILLED),
        (shown(history=LOST), [Execution(2, "worker2", 12, whole=True), TWO], KILLED),
        (shown(state="skipped", attempt=0), [ONE], KILLED),
        ({**shown(), "state": "failed"}, [TWO], KILLED),
        ({**shown(), "state": "cancelled"}, [TWO], KILLED),
    ],
    ids=[
        *("died before", "another died", "no record", "failed", "never ran", "no effect"),
        *("accepted twice", "skipped", "run failed", "nobody cancelled"),
    ],
)
def test_what_has_no_excuse_is_found(record: dict[str, Any], ran: list[Execution], event: Event) -> None:
    assert found(record, ran, event).wrong
