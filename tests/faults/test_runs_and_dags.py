"""A DAG made again under an old name, a branch below a branch, parameters: refused whole or done whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redsched.errors import DefinitionError
from tests.processes import SAY, Site

NewSite = Callable[..., Site]


def test_a_new_dag_of_an_old_name_runs_its_own_code(site: Site) -> None:
    """DF-109: also in a child that has run the old one."""
    site.start(concurrency=1)
    for word in ("old", "new"):
        assert site.dag("d", {"t": {"run": f"echo {word}"}})["version"] == 1
        run = site.run("d")
        site.wait("d", run)
        assert site.client.logs("d", run, "t").data == f"{word}\n".encode()
        site.client.delete("d")


def test_a_branch_keeps_what_is_below_the_chosen(site: Site) -> None:
    """`b` is below the choice twice: directly, and by way of `a`, which was chosen."""
    site.start()
    choice: dict[str, dict[str, Any]] = {
        "command": {"run": """echo '::branch:: ["a"]'"""},
        "call": {"call": "bodies:choose"},
    }
    for dag, body in choice.items():
        below = {"a": ["first"], "b": ["first", "a"], "c": ["first"]}
        site.dag(
            dag, {"first": body, **{name: {"run": SAY, "needs": needs} for name, needs in below.items()}}
        )
        (shown,) = site.wait(dag, site.run(dag, run=dag))
        states = {name: task["state"] for name, task in shown["tasks"].items()}
        assert states == {"first": "success", "a": "success", "b": "success", "c": "skipped"}
        assert [x.task for x in site.begun(run=dag)] == ["a", "b"]


def test_params_are_filled_in_or_refused_before_a_run_is_made(site: Site) -> None:
    """DF-112"""
    site.start()
    params = {"x": {"type": "integer", "minimum": 5, "maximum": 10, "default": 7}}
    site.dag("d", {"t": {"run": 'echo "$REDSCHED_PARAM_X"'}}, params=params)

    def ran(*words: str) -> tuple[int, bytes]:
        shown = site.json("run", "start", "d", "--wait", *words)
        return shown["params"]["x"], site.client.logs("d", shown["run"], "t").data

    assert ran() == (7, b"7\n")
    assert ran("-p", "x=8") == (8, b"8\n")
    assert site.client.run("d", site.run("d", params={"x": 8}))["params"] == {"x": 8}
    before = len(site.client.runs("d"))
    for value in (11, None, "8", 7.5, True):
        with pytest.raises(DefinitionError, match="x"):
            site.run("d", params={"x": value})
    with pytest.raises(DefinitionError, match="y"):
        site.run("d", params={"y": 1})
    for word in ("x=11", "x=null", "y=1", 'x="8"'):
        assert word[0] in site.cli("run", "start", "d", "-p", word, code=2).stderr
    assert len(site.client.runs("d")) == before

    (site.folder / "late.yaml").write_text(
        "dag: late\nschedule: '@daily'\nparams: {day: {type: string}}\ntasks: {t: {run: 'true'}}\n"
    )
    refused = site.cli("dag", "register", "late.yaml", code=2)
    assert "day" in refused.stderr and "default" in refused.stderr
    assert [d["dag"] for d in site.client.dags()] == ["d"]
