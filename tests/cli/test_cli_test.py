"""`dag test` and `dag graph`: a DAG from a file, in this process, without Redis."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .fake_client import Call, FakeClient

PYTHON = """
from redsched import dag, task

@task
def one(n: int) -> int:
    print("a body prints")
    return n + 1

@task
def two(n):
    if n > 5:
        raise ValueError("too big")
    return n * 2

@dag(params={"n": 1})
def sums(n):
    two(one(n))

@dag
def other():
    one(1)
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "flows.py"
    path.write_text(PYTHON)
    return path


@pytest.fixture(autouse=True)
def no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDSCHED_REDIS_URL", "redis://127.0.0.1:1/0")


def test_a_python_dag_runs_here(python: Path, call: Call) -> None:
    result = call("dag", "test", f"{python}:sums", "-p", "n=2", "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["tasks"]["two"]["result"] == 6 and answer["params"] == {"n": 2}
    assert "a body prints" in result.stderr


def test_a_failed_trial_is_exit_1(python: Path, call: Call) -> None:
    result = call("dag", "test", f"{python}:sums", "-p", "n=9")
    assert result.exit_code == 1 and "too big" in result.stdout


def test_a_yaml_dag_shows_what_its_commands_printed(tmp_path: Path, call: Call) -> None:
    (tmp_path / "a.yaml").write_text(
        "dag: a\ntasks:\n  say: {run: echo hello}\n  no: {run: exit 3, needs: [say]}\n"
    )
    result = call("dag", "test", tmp_path / "a.yaml")
    assert result.exit_code == 1 and "hello" in result.stderr and "hello" not in result.stdout


def test_several_dags_in_a_file_ask_for_a_name(python: Path, call: Call) -> None:
    for target, said in ((str(python), "say which"), (f"{python}:nope", "has no DAG 'nope'")):
        result = call("dag", "test", target)
        assert result.exit_code == 2 and said in result.stderr and "sums" in result.stderr


@pytest.mark.parametrize("target", ["dags/missing.yaml", "missing.py", "missing.py:sums", "./x"])
def test_a_missing_file_is_no_dag_id(target: str, call: Call) -> None:
    result = call("dag", "test", target)
    assert result.exit_code == 2 and "no such file" in result.stderr


def test_a_registered_dag_is_taken_from_redis(call: Call, fake: FakeClient) -> None:
    fake.add_dag({"dag": "orders", "tasks": {"a": {"run": "true"}}})
    assert call("dag", "test", "orders").exit_code == 0
    assert call("dag", "test", "ordres").exit_code == 3


def test_a_broken_file_names_its_line(tmp_path: Path, call: Call) -> None:
    (tmp_path / "a.yaml").write_text("dag: a\ntasks:\n  say: {run: echo, retires: 1}\n")
    result = call("dag", "test", tmp_path / "a.yaml")
    assert result.exit_code == 2 and "a.yaml:3" in result.stderr and "retries" in result.stderr


def test_graph_draws_layers(python: Path, call: Call) -> None:
    assert "1  one -> two" in call("dag", "graph", f"{python}:sums").stdout
    answer = json.loads(call("dag", "graph", f"{python}:sums", "--json").stdout)
    assert answer == {"dag": "sums", "layers": [["one"], ["two"]], "edges": [["one", "two"]]}
