"""Runs asked for at once, DAGs changed or deleted under way, parameters: refused whole or done whole."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from redsched.errors import Conflict, DefinitionError

from .processes import SAY, Site, executions, until

NewSite = Callable[..., Site]
MANY = """
import os
from redsched.client import Client
children = []
for _ in range(10):
    if not (pid := os.fork()):
        with Client() as client:
            text = "".join(client.trigger("d")["run"] + "\\n" for _ in range(5))
            os.write(1, text.encode())
        os._exit(0)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
"""


def test_triggers_at_the_same_moment_never_collide(site: Site) -> None:
    """BF-106"""
    site.start()
    site.dag("d", {"t": {"call": "bodies:both"}}, max_active_runs=100)
    done = subprocess.run(
        [sys.executable, "-c", MANY],
        env=site.env,
        cwd=site.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    runs = done.stdout.split()
    assert len(set(runs)) == len(runs) == 50
    assert {s["state"] for s in site.wait("d", runs)} == {"success"}
    assert executions(site.trail()) == {(run, "t"): 1 for run in runs}

    day = datetime(2026, 1, 2, tzinfo=UTC)
    for named in ({"run": "mine"}, {"date": day}):
        first = site.run("d", **named)
        with pytest.raises(Conflict, match="already"):
            site.run("d", **named)
        site.wait("d", first)
    site.cli("run", "start", "d", "--id", "mine", code=4)
    done_again = site.cli("run", "start", "d", "--date", "2026-01-02T00:00:00Z", code=4)
    assert "already" in done_again.stderr
    assert len(site.client.runs("d", limit=100)) == 52
    assert len(site.begun()) == 52


def test_a_dag_changes_while_a_run_is_under_way(site: Site) -> None:
    """DF-108: the run stays wholly on its version, a cleared task too."""
    site.start()

    def tasks(version: int, **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
        wait = f"{SAY}; until [ -e go ]; do sleep 0.02; done"
        below = {"needs": ["x" if more else "b"]}
        ends = {"c": {"run": f"{SAY}; echo version {version}", **below}}
        return {"a": {"run": SAY}, "b": {"run": wait, "needs": ["a"]}, **more, **ends}

    site.dag("d", tasks(1))
    old = site.run("d")
    site.nth(1, "b")
    assert site.dag("d", tasks(2, x={"run": SAY, "needs": ["b"]}))["version"] == 2
    new = site.run("d")
    (site.folder / "go").touch()
    first, second = site.wait("d", [old, new])
    assert (first["version"], second["version"]) == (1, 2)
    assert [x.task for x in site.begun(run=old)] == ["a", "b", "c"]
    assert [x.task for x in site.begun(run=new)] == ["a", "b", "x", "c"]
    assert site.client.logs("d", old, "c").data == b"version 1\n"
    assert site.client.logs("d", new, "c").data == b"version 2\n"

    assert site.client.clear("d", old, ["c"])["version"] == 1
    until(lambda: site.client.run("d", old)["tasks"]["c"]["attempt"] == 2, "not cleared")
    (first,) = site.wait("d", old)
    assert (first["version"], first["state"]) == (1, "success")
    assert site.client.logs("d", old, "c").data == b"version 1\n"
    assert "x" not in first["tasks"]


def named(site: Site, word: str) -> list[str]:
    """Keys and members that name the DAG; but for how often one of this name was deleted, and a pool's short memory."""
    say, found = site.redis.say, []
    for key in say("KEYS", "*"):
        kind = say("TYPE", key)
        reads = {"hash": ("HGETALL", key), "set": ("SMEMBERS", key), "zset": ("ZRANGE", key, 0, -1)}
        reads |= {"string": ("GET", key), "stream": ("XRANGE", key, "-", "+"), "list": ("LRANGE", key, 0, -1)}
        if word in key or word in json.dumps(say(*reads[kind]), default=str):
            found.append(key)
    return sorted(
        k for k in found if not k.endswith((":generations", ":done", ":tags")) and ":shares:" not in k
    )


def test_a_dag_is_deleted_while_it_runs(site: Site) -> None:
    """DF-109: refused with the count; forced: stopped, freed, no trace; a new one of its name hears nothing of the old."""
    site.start(2, 1, concurrency=5)
    site.client.set_pool("default", 5)
    # These take their time to end, and then say that they succeeded.
    late = f"trap 'sleep 1; echo ::result:: 1; exit 0' TERM; {SAY}; while true; do sleep 0.05; done"
    site.dag("doomed", {f"t{i}": {"run": late} for i in range(10)})
    run = site.run("doomed")
    until(lambda: len(site.begun()) == 5, "not running")
    until(lambda: site.client.pool("default")["waiting"] == 5, "not waiting")
    with pytest.raises(Conflict, match="1 active run"):
        site.client.delete("doomed")
    assert site.client.run("doomed", run)["state"] == "running"

    began = time.monotonic()
    gone = site.client.delete("doomed", force=True)
    assert time.monotonic() - began < 10 and gone["runs_deleted"] == 1
    assert site.dag("doomed", {"other": {"run": "true"}})["version"] == 1
    site.dag("doomed", {f"t{i}": {"call": "bodies:both"} for i in range(10)})
    again = site.run("doomed", run=run)  # even the run has the old one's id
    (shown,) = site.wait("doomed", again)
    assert {(t["state"], t["attempt"]) for t in shown["tasks"].values()} == {("success", 1)}
    until(lambda: not any(site.of_task(f"t{i}") for i in range(5)), "the old ones live on")
    until(lambda: site.client.pool("default")["used"] == 0, "slots are held")
    counts = executions(site.trail())
    assert sum(counts.values()) == 15 and max(counts.values()) == 2
    assert [site.client.result("doomed", run, f"t{i}") for i in range(5)] == [None] * 5

    site.client.delete("doomed")
    until(lambda: not named(site, "doomed"), lambda: str(named(site, "doomed")), 5)
    assert site.client.dags() == []


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
