"""DAGs in Python: tasks as functions, edges, names, refusals, and how bodies are called."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redsched import DefinitionError, command, dag, task
from redsched.definition.python import bind_inputs, call_body, resolve_call


@task(retries=3, retry_delay="30s", pool="db")
def extract(limit: int) -> list[int]:
    """Numbers."""
    return list(range(limit))


@task
def clean(rows: list[int]) -> list[int]:
    return [row for row in rows if row % 2]


@task
async def count(rows: list[int]) -> int:
    await asyncio.sleep(0)
    return len(rows)


@task(trigger_rule="none_failed")
def join(a: Any, b: Any = 0, *more: Any) -> list[Any]:
    return [a, b, *more]


@dag(schedule="0 2 * * *", timezone="Europe/Paris", team="sales", params={"limit": 100})
def orders(limit: int) -> None:
    """Yesterday's orders.

    More.
    """
    rows = extract(limit)
    join(clean(rows), count(rows))


def test_passing_a_result_makes_an_edge() -> None:
    """The same definition as in YAML; positional arguments get their names where they have one."""
    spec = orders.spec
    assert (spec.dag, spec.description, spec.team) == ("orders", "Yesterday's orders.", "sales")
    assert {name: t.needs for name, t in spec.tasks.items()} == {
        "extract": (),
        "clean": ("extract",),
        "count": ("extract",),
        "join": ("clean", "count"),
    }
    assert spec.tasks["extract"].with_ == {"limit": "${params.limit}"}
    assert spec.tasks["join"].with_ == {"0": "${clean}", "1": "${count}"}
    assert (spec.tasks["extract"].retries, spec.tasks["extract"].pool) == (3, "db")
    assert spec.tasks["extract"].call == f"{__name__}:extract"


def test_outside_a_dag_a_task_is_its_function() -> None:
    """Plain functions stay plain functions."""
    assert extract(3) == [0, 1, 2]
    assert extract.__doc__ == "Numbers."
    assert asyncio.run(count([1])) == 1


def test_edges_without_data() -> None:
    """`a >> b`, `a >> [b, c]`, `[a, b] >> c`, `a << b`, `a.needs(b)`; said twice is one edge."""

    @dag
    def edges() -> None:
        a, b, c, d, e, f = (command(name, "true") for name in "abcdef")
        a >> b >> [c, d] >> e
        a >> b
        f << [a, b]
        f.needs(e, [c])

    assert {name: t.needs for name, t in edges.spec.tasks.items()} == {
        "a": (),
        "b": ("a",),
        "c": ("b",),
        "d": ("b",),
        "e": ("c", "d"),
        "f": ("a", "b", "e", "c"),
    }


def test_values_in_lists_and_text_that_looks_like_a_reference() -> None:
    """Nodes are found at any depth; text stays text."""

    @dag
    def values() -> None:
        a, b = extract(1), extract.options(id="b", retries=0)(2)
        join([a, {"x": b}], "${params.no}", "$${x}", (1, None))

    spec = values.spec
    assert spec.tasks["join"].needs == ("extract", "b")
    assert spec.tasks["b"].retries == 0
    assert spec.tasks["b"].pool == "db"
    bound = bind_inputs(spec.tasks["join"], {"extract": [0], "b": None}, {})
    assert call_body(join.fn, bound) == [[[0], {"x": None}], "${params.no}", "$${x}", [1, None]]


def test_commands_in_python() -> None:
    """A command has the options of a task, and inputs by name."""

    @dag
    def commands(limit: int = 5) -> None:
        a = command("a", ["echo", "x"], retries=2, env={"A": "1"})
        command("b", "true", needs=a, with_={"rows": a, "n": limit}, allow_failure=True)

    spec = commands.spec
    assert spec.params == {"limit": {"type": "integer", "default": 5}}
    assert spec.tasks["a"].run == ("echo", "x")
    assert spec.tasks["b"].with_ == {"rows": "${a}", "n": "${params.limit}"}
    assert spec.tasks["b"].needs == ("a",)


def test_the_same_id_twice_names_both_lines() -> None:
    """DF-101: neither replaces the other."""

    @dag
    def twice() -> None:
        extract(1)
        extract(2)

    @dag
    def commands() -> None:
        command("t1", "true")
        command("t1", "false")

    with pytest.raises(
        DefinitionError, match=r"id 'extract', at .*\.py:\d+ and at .*\.py:\d+; .*extract.options\(id="
    ):
        _ = twice.spec
    with pytest.raises(DefinitionError, match=r"two tasks with the id 't1', at .*\.py:\d+ and at .*\.py:\d+"):
        _ = commands.spec


def test_cycles_in_python() -> None:
    """DF-102: the same refusal as from YAML."""

    @dag
    def ring() -> None:
        a, b = command("a", "true"), command("b", "true")
        a >> b >> a

    with pytest.raises(DefinitionError, match="a -> b -> a"):
        _ = ring.spec


def _bool(x: Any) -> Any:
    return 1 if x else 2


@pytest.mark.parametrize(
    "use", [_bool, list, len, int, str, lambda x: x[0], lambda x: x + 1, lambda x: f"{x}", lambda x: x < 3]
)
def test_results_are_not_known_while_a_dag_is_defined(use: Any) -> None:
    """Looking at a result or parameter too early is refused with the place."""

    @dag
    def early(limit: int = 1) -> None:
        use(extract(limit))

    @dag
    def early_param(limit: int = 1) -> None:
        use(limit)

    for one in (early, early_param):
        with pytest.raises(DefinitionError, match=r"is known only in a run"):
            _ = one.spec


def test_wrong_uses_are_refused_with_their_line() -> None:
    """Unknown options, wrong arguments, tasks of other DAGs, commands outside."""
    here = rf"{Path(__file__).name}:\d+: "
    untyped: Any = task
    with pytest.raises(
        DefinitionError, match=here + r"@task: unknown option 'retrys'; did you mean 'retries'"
    ):
        untyped(retrys=3)
    with pytest.raises(DefinitionError, match=here + r"command\('x', …\) works only inside"):
        command("x", "true")
    with pytest.raises(DefinitionError, match=here + r"orders\(\) is not needed"):
        orders()
    with pytest.raises(DefinitionError, match="stands over a function"):
        untyped(3)

    @dag
    def arguments() -> None:
        extract(1, 2)

    @dag
    def odd() -> None:
        join(object())

    stolen: list[Any] = []

    @dag
    def first() -> None:
        stolen.append(extract(1))

    @dag
    def second() -> None:
        clean(stolen[0])

    _ = first.spec
    with pytest.raises(DefinitionError, match=here + r"extract\(\): too many positional"):
        _ = arguments.spec
    with pytest.raises(DefinitionError, match="is not JSON"):
        _ = odd.spec
    with pytest.raises(DefinitionError, match="belongs to DAG first, not to second"):
        _ = second.spec


def test_a_worker_must_be_able_to_import_a_task() -> None:
    """A function inside a function runs in .test(), but is refused by .spec."""

    @task
    def inner() -> int:
        return 4

    @dag
    def local() -> None:
        inner()

    assert local.test().result("inner") == 4
    with pytest.raises(DefinitionError, match="at the top level of the file"):
        _ = local.spec


def test_calls_are_resolved_to_plain_functions() -> None:
    """What a worker imports is the function, not the task."""
    assert resolve_call(f"{__name__}:extract") is extract.fn
    assert resolve_call("os.path:join").__name__ == "join"
    for call, said in (
        ("nosuch.module:f", "there is no module 'nosuch.module'"),
        ("os.path:joyn", "did you mean 'join'"),
        ("os:sep", "is no function"),
    ):
        with pytest.raises(DefinitionError, match=said):
            resolve_call(call)


def test_a_dag_run_as_a_script_names_its_file(tmp_path: Path) -> None:
    """`python orders.py` registers calls that a worker can import."""
    (tmp_path / "orders_script.py").write_text(
        "from redsched import dag, task\n@task\ndef a(): ...\n@dag\ndef d():\n    a()\nprint(d.spec.tasks['a'].call)\n"
    )
    root = str(Path(__file__).parents[2])
    run = subprocess.run(
        [sys.executable, tmp_path / "orders_script.py"],
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "orders_script:a\n"


def test_async_bodies_run_to_their_end_even_inside_a_loop() -> None:
    """In notebooks and async tests a loop is running already."""

    async def outer() -> Any:
        return call_body(count.fn, {"rows": [1, 2]})

    assert call_body(count.fn, {"rows": [1]}) == 1
    assert asyncio.run(outer()) == 2


def test_the_package_imports_quickly() -> None:
    """`import redsched` and the decorators bring none of the big libraries."""
    code = (
        "import sys, redsched; redsched.task; "
        "print([m for m in ('pydantic', 'networkx', 'yaml', 'croniter', 'asyncio', 'redis') if m in sys.modules])"
    )
    root = str(Path(__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": root}, capture_output=True, text=True, check=True
    )
    assert run.stdout == "[]\n"
