"""A DAG drawn as text: its layers from top to bottom, and an arrow from each task to its downstream.

Pure. One line a task, each of bounded length, so that 10,000 tasks and half a million edges stay readable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redsched.definition.model import DagSpec

_SHOWN_DOWNSTREAM: Final = 8


def draw(dag: DagSpec) -> str:
    """The drawing, like

    orders: 3 tasks, 2 edges, 2 layers

    1  extract -> clean, enrich
    2  clean
       enrich [all_done]
    """
    downstream = downstream_of(dag)
    found = layers(dag)
    edges = sum(map(len, downstream.values()))
    lines = [
        f"{dag.dag}: {_count(len(dag.tasks), 'task')}, {_count(edges, 'edge')}, {_count(len(found), 'layer')}",
        "",
    ]
    width = len(str(len(found)))
    for number, layer in enumerate(found, start=1):
        label = str(number)
        for name in layer:
            lines.append(f"{label:>{width}}  {_line(dag, name, downstream[name])}")
            label = ""
    return "\n".join(lines)


def layers(dag: DagSpec) -> list[list[str]]:
    """The tasks by their longest way from a root, in the order of the definition. The graph has no cycle."""
    waiting = {name: len(task.needs) for name, task in dag.tasks.items()}
    downstream = downstream_of(dag)
    order = {name: i for i, name in enumerate(dag.tasks)}
    layer = [name for name, count in waiting.items() if count == 0]
    found: list[list[str]] = []
    while layer:
        found.append(layer)
        below: list[str] = []
        for name in layer:
            for child in downstream[name]:
                waiting[child] -= 1
                if waiting[child] == 0:
                    below.append(child)
        layer = sorted(below, key=order.__getitem__)
    return found


def downstream_of(dag: DagSpec) -> dict[str, list[str]]:
    """The direct downstream of every task, in the order of the definition."""
    found: dict[str, list[str]] = {name: [] for name in dag.tasks}
    for name, task in dag.tasks.items():
        for other in task.needs:
            found[other].append(name)
    return found


def _line(dag: DagSpec, name: str, downstream: list[str]) -> str:
    rule = dag.tasks[name].trigger_rule
    text = name if rule == "all_success" else f"{name} [{rule}]"
    if not downstream:
        return text
    shown = ", ".join(downstream[:_SHOWN_DOWNSTREAM])
    more = len(downstream) - _SHOWN_DOWNSTREAM
    return f"{text} -> {shown}{f', … {more:,} more' if more > 0 else ''}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
