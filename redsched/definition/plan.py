"""The compiled form of a DAG: what the scheduler needs to know, by index, in a few short fields.

Pure. Checks what only the whole graph can tell (unknown upstreams, cycles, sizes), without recursion
and in time that grows with the edges.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redsched.definition.values import suggestion
from redsched.errors import DefinitionError
from redsched.states import TRIGGER_RULES

if TYPE_CHECKING:
    from redsched.definition.model import DagSpec, TaskSpec

MAX_TASKS: Final = 10_000
MAX_EDGES: Final = 500_000
MAX_KEY: Final = 256
_SHOWN_MEMBERS: Final = 12
_PARAM: Final = re.compile(r"\$\{params\.([^}]+)\}")


class WrongGraph(DefinitionError):
    """The tasks don't fit together; `loc` is the place in the definition."""

    def __init__(self, text: str, *loc: str) -> None:
        super().__init__(text)
        self.loc = ("tasks", *loc)


@dataclass(frozen=True, slots=True)
class Plan:
    """`fields` goes into Redis as it is; `names[i]` is the task with index i."""

    names: tuple[str, ...]
    fields: dict[str, str]


def compile_plan(dag: DagSpec) -> Plan:
    """Check the graph and number it.

    Fields: `n` count · `roots` indices with nothing to wait for · `names` JSON · `spec` canonical JSON ·
    `<i>` pool,slots,priority,retries,delay,backoff,max_delay,jitter,timeout,grace,flags,max_active ·
    `d<i>` its downstream as index:upstreams:rule, absent if there is none · `run_timeout`, `deadline` ms and `hooks` (which of success,
    failure,deadline), absent if there is none.
    """
    check_graph(dag)
    names = tuple(dag.tasks)
    index = {name: i for i, name in enumerate(names)}
    roots: list[str] = []
    downstream: dict[int, list[str]] = {}
    fields: dict[str, str] = {}
    for i, task in enumerate(dag.tasks.values()):
        fields[str(i)] = _task_field(task)
        if not task.needs or task.trigger_rule == "always":
            roots.append(str(i))
        entry = f"{i}:{len(task.needs)}:{TRIGGER_RULES[task.trigger_rule]}"
        for name in task.needs:
            downstream.setdefault(index[name], []).append(entry)
    fields.update({f"d{i}": ",".join(entries) for i, entries in downstream.items()})
    fields["n"] = str(len(names))
    fields["roots"] = ",".join(roots)
    fields["names"] = json.dumps(names, separators=(",", ":"))
    fields["spec"] = dag.canonical()
    hooks = {n: h for n in ("success", "failure", "deadline") if (h := getattr(dag, f"on_{n}")) is not None}
    if hooks:
        fields["hooks"] = ",".join(hooks)
    if dag.deadline:
        fields["deadline"] = str(dag.deadline)
    if dag.run_timeout:
        fields["run_timeout"] = str(dag.run_timeout)
    return Plan(names, fields)


def concurrency_keys(dag: DagSpec, params: Mapping[str, Any]) -> dict[int, str]:
    """By task index, the value of each task's concurrency key in a run with these parameters.

    `${params.name}` stands for a parameter; anything else is taken as it is.
    """
    keys = {}
    for i, task in enumerate(dag.tasks.values()):
        if task.concurrency_key is not None:
            keys[i] = _PARAM.sub(lambda m: str(params.get(m[1], "")), task.concurrency_key)[:MAX_KEY]
    return keys


def check_graph(dag: DagSpec) -> None:
    """Raise WrongGraph for unknown upstreams, cycles, and graphs beyond the limits."""
    if len(dag.tasks) > MAX_TASKS:
        raise WrongGraph(f"DAG {dag.dag}: {len(dag.tasks):,} tasks; at most {MAX_TASKS:,} fit into one DAG")
    edges = sum(len(task.needs) for task in dag.tasks.values())
    if edges > MAX_EDGES:
        raise WrongGraph(
            f"DAG {dag.dag}: {edges:,} edges; at most {MAX_EDGES:,}. Put one empty task between two wide layers"
        )
    _check_needs(dag)
    if cycle := _cycle(dag):
        raise WrongGraph(
            f"DAG {dag.dag}: the tasks wait for each other in a circle: {_drawn(cycle)}", cycle[0]
        )


def not_chosen(needs: Mapping[str, Collection[str]], task: str, chosen: Collection[str]) -> list[str]:
    """The direct downstream of `task` to be skipped when it chose these: neither chosen nor below the chosen.

    `needs` has the upstream of every task. Raises DefinitionError for a choice that is no direct downstream.
    """
    downstream: dict[str, list[str]] = {}
    for name, upstream in needs.items():
        for other in upstream:
            downstream.setdefault(other, []).append(name)
    direct = downstream.get(task, [])
    for name in chosen:
        if name not in direct:
            known = ", ".join(direct[:20]) or "none"
            raise DefinitionError(
                f"Branch({name!r}): not directly downstream of {task!r}; those are: {known}"
            )
    reached = set(chosen)
    todo = list(chosen)
    while todo:
        for name in downstream.get(todo.pop(), ()):
            if name not in reached:
                reached.add(name)
                todo.append(name)
    return [name for name in direct if name not in reached]


def _check_needs(dag: DagSpec) -> None:
    for name, task in dag.tasks.items():
        for other in task.needs:
            if other not in dag.tasks:
                near = suggestion(other, dag.tasks)
                raise WrongGraph(
                    f"DAG {dag.dag}: tasks.{name}.needs: there is no task {other!r}{near}", name, "needs"
                )


def _cycle(dag: DagSpec) -> list[str]:
    """The members of one cycle along its arrows, from the one defined first; empty if there is none."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(dag.tasks)
    graph.add_edges_from((other, name) for name, task in dag.tasks.items() for other in task.needs)
    left = set(dag.tasks)
    try:
        for name in nx.topological_sort(graph):
            left.discard(name)
    except nx.NetworkXUnfeasible:
        return _walk_back(dag, left)
    return []


def _walk_back(dag: DagSpec, left: set[str]) -> list[str]:
    # Each task that sorting left over has an upstream that was left over too, so that walking up must
    # meet itself: linear, where a search for cycles can take minutes.
    order = {name: i for i, name in enumerate(dag.tasks)}
    here = min(left, key=order.__getitem__)
    seen: dict[str, int] = {}
    while here not in seen:
        seen[here] = len(seen)
        here = next(name for name in dag.tasks[here].needs if name in left)
    members = [name for name, place in seen.items() if place >= seen[here]][::-1]
    first = members.index(min(members, key=order.__getitem__))
    return members[first:] + members[:first]


def _drawn(cycle: list[str]) -> str:
    names = [*cycle, cycle[0]]
    if len(cycle) > _SHOWN_MEMBERS:
        left_out = len(cycle) - _SHOWN_MEMBERS
        half = _SHOWN_MEMBERS // 2
        names = [*names[:half], f"… {left_out:,} more …", *names[-half - 1 :]]
    return " -> ".join(names)


def _task_field(task: TaskSpec) -> str:
    return ",".join(
        _texts(
            task.pool,
            task.pool_slots,
            task.priority,
            task.retries,
            task.retry_delay,
            f"{task.retry_backoff:.12g}",
            task.retry_max_delay or 0,
            f"{task.retry_jitter:.12g}",
            task.timeout or 0,
            task.kill_grace,
            ("a" if task.allow_failure else "") + ("k" if task.concurrency_key else ""),
            task.max_active or (1 if task.concurrency_key else 0),
        )
    )


def _texts(*values: object) -> Iterable[str]:
    return map(str, values)
