"""The text drawing of a DAG."""

from __future__ import annotations

import time

from redsched.definition.model import DagSpec, build_dag
from redsched.graph import draw, layers


def made(**needs: list[str]) -> DagSpec:
    return build_dag(
        {"dag": "d", "tasks": {name: {"run": "true", "needs": up} for name, up in needs.items()}}
    )


def test_a_diamond() -> None:
    """Layers from top to bottom, an arrow to each downstream, the rule where it isn't the usual one."""
    spec = build_dag(
        {
            "dag": "orders",
            "tasks": {
                "extract": {"run": "true"},
                "clean": {"run": "true", "needs": ["extract"]},
                "enrich": {"run": "true", "needs": ["extract"]},
                "join": {"run": "true", "needs": ["clean", "enrich"], "trigger_rule": "all_done"},
            },
        }
    )
    assert draw(spec).splitlines() == [
        "orders: 4 tasks, 4 edges, 3 layers",
        "",
        "1  extract -> clean, enrich",
        "2  clean -> join",
        "   enrich -> join",
        "3  join [all_done]",
    ]


def test_a_task_stands_below_its_longest_way() -> None:
    """A short cut doesn't lift a task."""
    assert layers(made(a=[], b=["a"], c=["a", "b"], d=[])) == [["a", "d"], ["b"], ["c"]]


def test_ten_thousand_tasks_answer_quickly_in_short_lines() -> None:
    """Wide fans are cut to a count; long chains need no recursion."""
    wide = made(a=[], **{f"t{i}": ["a"] for i in range(9_999)})
    chain = made(t0=[], **{f"t{i}": [f"t{i - 1}"] for i in range(1, 10_000)})
    began = time.monotonic()
    lines = draw(wide).splitlines() + draw(chain).splitlines()
    assert time.monotonic() - began < 5
    assert len(lines) == 20_004
    assert max(map(len, lines)) < 120
    assert "… 9,991 more" in lines[2]
