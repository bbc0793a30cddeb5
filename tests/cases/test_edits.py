"""TR-108 to TR-111, DF-108, DF-109: what people do to runs that are under way, and what late processes can't undo."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.processes import FOREVER, Line, Site, alive, attempts, gate, line, needs, sh, states, until

from .conftest import Make

# A body hears of it with its worker's next heartbeat (a fifth of its lease) and may then take its `kill_grace`.
HEARTBEAT_S, GRACE_S = 0.6, 0.5
STOPS_WITHIN_S = HEARTBEAT_S + GRACE_S + 3  # for a busy machine; the bodies go on for 300 s
GRACE = {"kill_grace": "500ms"}


@pytest.fixture(scope="module")
def site(make_shared: Make) -> Site:
    made = make_shared()
    made.start(2, 2, concurrency=10, pools=["default", "five"])
    return made


def gone(pid: int, within: float = STOPS_WITHIN_S) -> None:
    until(lambda: not alive(pid), f"the body is still alive after {within} s", within)


@pytest.mark.parametrize(
    ("word", "ends"), [("failed", "exit 0"), ("success", "exit 1")], ids=["failed", "success"]
)
@pytest.mark.parametrize("deaf", [False, True], ids=["stops", "deaf"])
def test_tr_108_a_mark_is_final(site: Site, word: str, ends: str, deaf: bool) -> None:
    """The body would end the other way; a deaf one does so within its grace, after the mark."""
    dag = f"tr108.{word}.{'deaf' if deaf else 'stops'}"
    grace: dict[str, Any] = {"kill_grace": "10s"} if deaf else GRACE
    commands = ("trap '' TERM", gate(dag), line("late"), ends) if deaf else (FOREVER, ends)
    site.dag(dag, {"t": sh(*commands) | grace})
    run = site.run(dag)
    body = site.nth(1, "t", run)
    site.becomes(dag, run, "t", "running")
    site.json("run", "mark", dag, run, "t", word, "--yes")
    marked = site.client.run(dag, run)
    assert (marked["state"], marked["tasks"]["t"]["state"]) == (word, word)
    if deaf:
        site.open(dag)
        gone(body.pid, 10)
        assert [x.word for x in site.trail(run=run)] == ["begun", "late"]
    else:
        gone(body.pid)
    site.slots_free()
    again = site.client.run(dag, run)
    assert (again["state"], states(again), attempts(again)) == (word, {"t": word}, {"t": 1})
    assert again["ended_at"] == marked["ended_at"]
    assert site.executed(run)["t"] == 1


def test_tr_109_a_run_marked_failed_stays_failed(site: Site) -> None:
    """The bodies would go on for ever; `final` has every reason to run, and the shortest does end in time."""
    bodies = {f"s{i}": sh(FOREVER) | GRACE for i in range(2)}
    bodies["short"] = sh("trap '' TERM", gate("tr109"), "exit 0") | {"kill_grace": "10s"}
    site.dag("tr109", bodies | {"final": sh() | needs(*bodies, rule="all_done")})
    run = site.run("tr109")
    begun = [site.nth(1, task, run) for task in bodies]
    for task in bodies:
        site.becomes("tr109", run, task, "running")
    answer = site.json("run", "mark", "tr109", run, "failed", "--yes")
    assert answer["run_state"] == "failed"
    marked = site.client.run("tr109", run)
    assert states(marked) == dict.fromkeys([*bodies, "final"], "failed")
    site.open("tr109")
    for body in begun:
        gone(body.pid, 10)
    site.slots_free()
    assert site.client.run("tr109", run) == marked
    assert site.executed(run) == dict.fromkeys(bodies, 1)


def test_tr_110_a_run_recovers_when_its_failed_task_does(site: Site) -> None:
    """The run's times become those of its new start and its new end."""
    tasks = {"a": sh(), "b": sh("[ -e tr110 ]") | needs("a"), "c": sh(gate("tr110.c")) | needs("b")}
    failed = site.done("tr110", tasks)
    run = failed["run"]
    assert failed["state"] == "failed"
    assert states(failed) == {"a": "success", "b": "failed", "c": "upstream_failed"}
    site.open("tr110")
    answer = site.json("run", "clear", "tr110", run, "b", "--downstream", "--yes")
    assert sorted(answer["cleared"]) == ["b", "c"]
    site.nth(1, "c", run)
    running = site.json("run", "show", "tr110", run)
    assert (running["state"], running["ended_at"]) == ("running", None)
    site.open("tr110.c")
    shown = site.ended("tr110", run)
    assert shown["state"] == "success"
    assert site.executed(run) == {"a": 1, "b": 2, "c": 1}
    assert shown["ended_at"] > failed["ended_at"]
    assert shown["started_at"] <= shown["tasks"]["b"]["started_at"]
    assert shown["ended_at"] >= shown["tasks"]["c"]["ended_at"]


def test_tr_111_clearing_a_run_whose_tasks_run(site: Site) -> None:
    """Six runs at once in place of twenty, one second in place of ten; every second run is cleared twice, 50 ms apart."""
    tasks = {
        name: {"call": "bodies:beats", "with": {"seconds": 1}, "kill_grace": "500ms"}
        for name in ("x", "y", "z")
    }
    site.dag("tr111", tasks)
    runs = [site.run("tr111") for _ in range(6)]
    twice = runs[::2]
    for run in runs:
        for task in tasks:
            until(lambda t=task, r=run: len(site.trail(t, r)) >= 3, "does not run")  # type: ignore[misc]
    for run in runs:
        site.client.clear("tr111", run)
    time.sleep(0.05)  # what the case asks for
    last = {run: time.monotonic() for run in runs}
    for run in twice:
        site.client.clear("tr111", run)
        last[run] = time.monotonic()
    for shown in site.wait("tr111", runs):
        run = shown["run"]
        assert shown["state"] == "success"
        assert set(states(shown).values()) == {"success"}
        for task in tasks:
            lines = site.trail(task, run)
            ended = [x for x in lines if x.word == "ended"]
            assert ended[-1].attempt == shown["tasks"][task]["attempt"] >= 2
            assert [x.attempt for x in ended if x.at > last[run] + 1] == [shown["tasks"][task]["attempt"]]
            assert _overlap(lines) <= STOPS_WITHIN_S
    site.slots_free()


def _overlap(lines: list[Line]) -> float:
    """For how many seconds, at most, the body of an attempt went on beside that of a later one."""
    numbers = sorted({x.attempt for x in lines})
    spans = {n: [x.at for x in lines if x.attempt == n] for n in numbers}
    return max(
        (max(spans[old]) - min(spans[new]) for old in numbers for new in numbers if old < new), default=0.0
    )


def test_what_waits_for_its_retry_is_cleared_cancelled_or_marked(site: Site) -> None:
    """The wait ends with it: its timer starts no attempt that nobody asked for."""
    task = sh("[ -e waits.over ]") | {"retries": 3, "retry_delay": "6s"}
    site.dag("waits", {"t": task, "u": sh() | needs("t")}, max_active_runs=3)
    cleared, cancelled, marked = runs = [site.run("waits") for _ in range(3)]
    for run in runs:
        site.becomes("waits", run, "t", "retrying")
    waited = time.monotonic()
    site.client.cancel("waits", cancelled)
    site.client.mark("waits", marked, "success", "t")
    site.open("waits.over")
    site.client.clear("waits", cleared, ["t"])
    shown = {run: site.ended("waits", run) for run in runs}
    assert [shown[run]["state"] for run in runs] == ["success", "cancelled", "success"]
    assert time.monotonic() - waited < 6, "the retry's delay was waited for"
    time.sleep(max(0.0, waited + 6.5 - time.monotonic()))  # past the time of the retries
    assert {run: site.client.run("waits", run) for run in runs} == shown
    assert [site.executed(run) for run in runs] == [{"t": 2, "u": 1}, {"t": 1}, {"t": 1, "u": 1}]
    assert site.client.clear("waits", cancelled, only_failed=True)["cleared"] == []
    assert site.client.run("waits", cancelled) == shown[cancelled]


# ---------------------------------------------------------------- definitions that change or go


V1 = """
dag: df108
tasks:
  a: {{run: "{line}"}}
  b: {{run: "{line}; {gate}", needs: [a]}}
  c: {{run: "{line}; echo v1", needs: [b]}}
"""
V2 = """
dag: df108
tasks:
  a: {{run: "{line}"}}
  b: {{run: "{line}", needs: [a]}}
  x: {{run: "{line}", needs: [b]}}
  c: {{run: "{line}; echo v2", needs: [x]}}
"""


def _written(path: Path, text: str) -> str:
    escaped = line().replace("\\", "\\\\").replace('"', '\\"')
    path.write_text(text.format(line=escaped, gate=gate("df108")))
    return path.name


def test_df_108_a_run_stays_on_its_version(site: Site) -> None:
    """Documented: a run stays on its version, for ever; the clear says which that is."""
    (one,) = site.json("dag", "register", _written(site.folder / "v1.yaml", V1))
    run = site.run("df108")
    site.nth(1, "b", run)
    (two,) = site.json("dag", "register", _written(site.folder / "v2.yaml", V2))
    assert (one["version"], two["version"], two["changed"]) == (1, 2, True)
    site.open("df108")
    shown = site.ended("df108", run)
    assert (shown["state"], shown["version"]) == ("success", 1)
    assert [x.task for x in site.trail(run=run)] == ["a", "b", "c"]
    assert site.client.logs("df108", run, "c").data == b"v1\n"

    new = site.ended("df108", site.run("df108"))
    assert (new["state"], new["version"]) == ("success", 2)
    assert [x.task for x in site.trail(run=new["run"])] == ["a", "b", "x", "c"]
    assert site.client.logs("df108", new["run"], "c").data == b"v2\n"

    said = site.cli("run", "clear", "df108", run, "c", "--yes").stdout
    assert "(v1)" in said
    site.nth(2, "c", run)
    shown = site.ended("df108", run)
    assert (shown["state"], shown["version"]) == ("success", 1)
    assert [x.task for x in site.trail(run=run)] == ["a", "b", "c", "c"]
    assert site.client.logs("df108", run, "c", 2).data == b"v1\n"


def named(site: Site, word: str) -> list[str]:
    """Keys and members that name the DAG; but for how often one of its name was deleted, what was told, and a pool's short memory."""
    found = []
    with Redis.from_url(site.settings.redis or "", decode_responses=True, encoding_errors="replace") as redis:
        say = redis.execute_command
        for key in redis.scan_iter(match=f"{{{site.settings.namespace}:*", count=1000):
            reads = {"hash": ("HGETALL", key), "set": ("SMEMBERS", key), "zset": ("ZRANGE", key, 0, -1)}
            reads |= {"string": ("GET", key), "stream": ("XRANGE", key, "-", "+"), "none": ("TYPE", key)}
            if word in key or word in repr(say(*reads[redis.type(key)])):
                found.append(key)
    return sorted(
        k
        for k in found
        if not k.endswith((":generations", ":done", ":tags", ":events")) and ":shares:" not in k
    )


def test_df_109_a_dag_is_deleted_with_all_that_runs(site: Site) -> None:
    """Five bodies run and five wait. The new DAG and its run have the old ones' ids, and the old bodies end well, late."""
    site.client.set_pool("five", 5)

    late = ("trap '' TERM", gate("df109"), line("late"), "exit 0")
    old = {f"t{i}": sh(*late) | {"pool": "five", "kill_grace": "20s"} for i in range(10)}
    site.dag("df109", old)
    site.run("df109", run="same")
    until(lambda: len(site.trail(run="same")) == 5, "five don't run")
    until(lambda: site.client.pool("five")["waiting"] == 5, "five don't wait")
    refused = site.cli("dag", "delete", "df109", "--yes", code=4)
    assert "df109" in refused.stderr
    assert "1 active run" in refused.stderr
    assert len(site.trail(run="same")) == 5

    began = time.monotonic()
    site.json("dag", "delete", "df109", "--force", "--yes")
    assert time.monotonic() - began < 10
    assert not [key for key in named(site, "df109") if "df109" in key]
    assert "df109" not in [d["dag"] for d in site.json("dag", "list")]
    assert "df109" not in [r["dag"] for r in site.json("run", "list")]

    new = {name: sh(gate("df109.new"), "echo new") for name in old}
    site.dag("df109", new)
    site.run("df109", run="same")
    until(lambda: len(site.trail(run="same")) == 15, "the new ones don't run")
    until(lambda: set(states(site.client.run("df109", "same")).values()) == {"running"}, "not running")
    site.open("df109")
    until(lambda: len([x for x in site.trail(run="same") if x.word == "late"]) == 5, "the old ones don't end")
    site.slots_free("five")
    assert set(states(site.client.run("df109", "same")).values()) == {"running"}
    site.open("df109.new")
    shown = site.ended("df109", "same")
    assert shown["state"] == "success"
    assert set(attempts(shown).values()) == {1}
    assert {site.client.logs("df109", "same", t).data for t in new} == {b"new\n"}
    assert site.executed("same") == {f"t{i}": 2 if i < 5 else 1 for i in range(10)}
    site.slots_free()
    site.client.delete("df109")
    until(lambda: not named(site, "df109"), lambda: f"left: {named(site, 'df109')}", 5)
