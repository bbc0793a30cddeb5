"""A slow scheduler that can't be wrong by a race: what must have become of each task of a run, from its bodies alone.

Pure: rules.py over the graph, in topological order. Attempts that were lost are taken from the run's own record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from redsched.edit import CLASS, Graph
from redsched.keys import AttemptId
from redsched.rules import decide
from redsched.simulation.bodies import Bodies
from redsched.states import SETTLED
from redsched.store.codec import RunRecord, TaskRecord

MOST_LOSSES = 3


def differences(
    dag: str,
    run: str,
    record: RunRecord,
    graph: Graph,
    spec: Mapping[str, Any],
    bodies: Bodies,
    *,
    plain: bool,
) -> Iterator[str]:
    """What is otherwise than it must be in a run that has ended. `plain`: nobody has cleared or marked anything in it."""
    tasks = [record.task(i) for i in range(len(graph.names))]
    if "cancelled" in (record.state, *(t.state for t in tasks)):
        return
    for i, task in enumerate(tasks):
        if task.state not in SETTLED:
            yield f"{dag}/{run}/{i}: is {task.state} in a run that has ended"
        elif task.attempt == 0 and not record.marked(i):
            yield from _by_rule(f"{dag}/{run}/{i}", i, graph, tasks, record)
        elif plain:
            yield from _by_bodies(AttemptId(dag, run, i, task.attempt), task, record, graph, spec, bodies)
            yield from _might_run(f"{dag}/{run}/{i}", i, graph, tasks)
    failed = any(t.state == "failed" and not _forgiven(spec, graph, i) for i, t in enumerate(tasks))
    if record.state != ("failed" if failed else "success"):
        yield f"{dag}/{run}: is {record.state}, though a task has {'' if failed else 'not '}failed"


def _counts(i: int, graph: Graph, tasks: list[TaskRecord], left_out: set[int]) -> list[int]:
    counts = [0, 0, 0]
    for up in graph.needs[i]:
        if up not in left_out:
            counts[CLASS[tasks[up].state]] += 1
    return counts


def _by_rule(name: str, i: int, graph: Graph, tasks: list[TaskRecord], record: RunRecord) -> Iterator[str]:
    """It never ran: its rule says so, or a branch above did not choose it."""
    skipping = {up for up in graph.needs[i] if i in record.not_chosen(up) and tasks[up].state == "success"}
    if skipping and tasks[i].state == "skipped":
        return
    # A rule that decides without the branch may have been faster.
    verdict = decide(graph.rules[i], len(graph.needs[i]), *_counts(i, graph, tasks, skipping))
    if verdict != tasks[i].state:
        yield f"{name}: is {tasks[i].state}, its rule {graph.rules[i]} says {verdict}"


def _might_run(name: str, i: int, graph: Graph, tasks: list[TaskRecord]) -> Iterator[str]:
    verdict = decide(graph.rules[i], len(graph.needs[i]), *_counts(i, graph, tasks, set()))
    if verdict != "run" and graph.rules[i] != "always":
        yield f"{name}: ran, though its rule {graph.rules[i]} says {verdict}"


def _by_bodies(
    attempt: AttemptId,
    task: TaskRecord,
    record: RunRecord,
    graph: Graph,
    spec: Mapping[str, Any],
    bodies: Bodies,
) -> Iterator[str]:
    """Attempt after attempt: each ends as its body does, or was lost; the first success, skip or spent budget settles."""
    retries = spec["tasks"][graph.names[attempt.task]].get("retries", 0)
    failures = losses = 0
    for number in range(1, task.attempt + 1):
        tried = record.attempt(attempt.task, number)
        if tried and tried.outcome == "lost":
            losses += 1
            state = "failed" if losses > MOST_LOSSES else ""
        else:
            body = bodies(attempt._replace(attempt=number))
            stopped = bool(tried and tried.reason.startswith("timeout: its worker"))
            state = {"skipped": "skipped", "failed": "failed"}.get(
                "failed" if stopped else body.kind, "success"
            )
            losses = 0
            if state == "failed":
                failures += 1
                if failures <= retries and (stopped or not body.final):
                    state = ""
        if number < task.attempt and state:
            yield f"{attempt}: was tried again after attempt {number}, which ended as {state}"
            return
    if state != task.state:
        yield f"{attempt}: is {task.state}, must be {state or 'tried again'}"


def _forgiven(spec: Mapping[str, Any], graph: Graph, i: int) -> bool:
    return bool(spec["tasks"][graph.names[i]].get("allow_failure"))
