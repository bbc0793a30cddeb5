"""The compiled plan: its fields, and the refusals that only the whole graph can give."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pytest

from redsched.definition.model import DagSpec, build_dag
from redsched.definition.plan import Plan, compile_plan, not_chosen
from redsched.errors import DefinitionError


def made(needs: Mapping[str, Sequence[str]]) -> DagSpec:
    return build_dag(
        {"dag": "d", "tasks": {name: {"run": "true", "needs": list(up)} for name, up in needs.items()}}
    )


def plan(**needs: Sequence[str]) -> Plan:
    return compile_plan(made(needs))


def refusal(needs: Mapping[str, Sequence[str]]) -> str:
    with pytest.raises(DefinitionError) as caught:
        compile_plan(made(needs))
    return str(caught.value)


def test_the_fields_of_a_plan() -> None:
    """Exactly what goes into Redis."""
    spec = build_dag(
        {
            "dag": "orders",
            "tasks": {
                "join": {
                    "run": "x",
                    "needs": ["a", "b"],
                    "trigger_rule": "none_failed",
                    "allow_failure": True,
                },
                "a": {
                    "run": "x",
                    "pool": "db",
                    "pool_slots": 2,
                    "priority": -5,
                    "retries": 3,
                    "retry_delay": "30s",
                    "retry_backoff": 1.5,
                    "retry_max_delay": "1h",
                    "retry_jitter": 0.1,
                    "timeout": "10m",
                    "kill_grace": "2s",
                    "max_active": 4,
                },
                "b": {"run": "x", "needs": ["a"], "trigger_rule": "always"},
            },
        }
    )
    found = compile_plan(spec)
    assert found.names == ("join", "a", "b")
    assert found.fields == {
        "n": "3",
        "roots": "1,2",
        "names": '["join","a","b"]',
        "spec": spec.canonical(),
        "0": "default,1,0,0,0,1,0,0,0,10000,a,0",
        "1": "db,2,-5,3,30000,1.5,3600000,0.1,600000,2000,,4",
        "2": "default,1,0,0,0,1,0,0,0,10000,,0",
        "d1": "0:2:h,2:1:l",
        "d2": "0:2:h",
    }


def test_an_edge_said_twice_is_one_edge() -> None:
    """DF-102 (e): a diamond with a doubled edge; d waits for two."""
    found = plan(a=[], b=["a"], c=["a"], d=["b", "c", "b"])
    assert found.fields["d1"] == found.fields["d2"] == "3:2:a"


def test_cycles_are_drawn_in_order() -> None:
    """DF-102 (a), (b), (d): a real cycle along its arrows, from the task defined first."""
    assert refusal({"a": ["a"]}).endswith(": a -> a")
    assert refusal({"a": ["c"], "b": ["a"], "c": ["b"], "x": [], "y": ["c"]}).endswith(": a -> b -> c -> a")
    assert refusal({"r": [], "a": ["r", "b"], "b": ["a"], "c": ["d"], "d": ["c"]}).endswith(": a -> b -> a")
    assert refusal({"below": ["b"], "a": ["b"], "b": ["a"]}).endswith(": a -> b -> a")


def test_a_ring_of_3000_is_shortened() -> None:
    """DF-102 (c): refused in less than two seconds."""
    needs = {f"t{i}": [f"t{(i - 1) % 3000}"] for i in range(3000)}
    began = time.monotonic()
    text = refusal(needs)
    assert time.monotonic() - began < 2
    assert "t0 -> t1 -> t2 -> t3 -> t4 -> t5 -> … 2,988 more … -> t2994 -> " in text
    assert text.endswith("-> t2999 -> t0")


def test_unknown_upstreams_are_named_with_near_ones() -> None:
    """The task, the name, and what was probably meant."""
    assert "tasks.b.needs: there is no task 'extrct'; did you mean 'extract'?" in refusal(
        {"extract": [], "b": ["extrct"]}
    )


def test_limits() -> None:
    """10,000 tasks and 500,000 edges."""
    assert len(plan(**{f"t{i}": [] for i in range(10_000)}).names) == 10_000
    assert "at most 10,000" in refusal({f"t{i}": [] for i in range(10_001)})
    sources = [f"a{i}" for i in range(1_000)]
    assert "at most 500,000" in refusal(
        {**{s: [] for s in sources}, **{f"b{i}": sources for i in range(501)}}
    )


def test_a_chain_of_5000() -> None:
    """DF-103: no recursion; far below ten seconds."""
    began = time.monotonic()
    found = plan(**{f"t{i}": [f"t{i - 1}"] if i else [] for i in range(5_000)})
    assert time.monotonic() - began < 5
    assert found.fields["roots"] == "0"


def test_fifty_layers_fully_joined() -> None:
    """DF-104: 490,000 edges in less than a minute, and the two fans cost about the same."""
    layered = {
        f"t{y}_{x}": [f"t{y - 1}_{i}" for i in range(100)] if y else [] for y in range(50) for x in range(100)
    }
    began = time.monotonic()
    plan(**layered)
    assert time.monotonic() - began < 30
    out, into = (
        plan(a=[], **{f"t{i}": ["a"] for i in range(5_000)}),
        plan(**{f"t{i}": [] for i in range(5_000)}, z=[f"t{i}" for i in range(5_000)]),
    )
    assert out.fields["d0"].count(",") == 4_999
    assert into.fields["d4999"] == "5000:5000:a"


NEEDS = {"br": [], "a": ["br"], "join": ["br", "a"], "c": ["br"], "deep": ["c"], "far": ["deep", "br"]}


@pytest.mark.parametrize(
    ("chosen", "skipped"),
    [
        (["a"], ["c", "far"]),
        (["join"], ["a", "c", "far"]),
        (["c"], ["a", "join"]),
        ([], ["a", "join", "c", "far"]),
        (["a", "join", "c", "far"], []),
    ],
)
def test_what_a_branch_skips(chosen: list[str], skipped: list[str]) -> None:
    """TR-107: the direct downstream that is neither chosen nor reachable from what was chosen."""
    assert not_chosen(NEEDS, "br", chosen) == skipped


def test_a_branch_chooses_among_its_direct_downstream() -> None:
    """Everything else is refused with what could be chosen."""
    with pytest.raises(DefinitionError, match="not directly downstream of 'br'; those are: a, join, c, far"):
        not_chosen(NEEDS, "br", ["deep"])
