"""TR-101 to TR-107: joins, branches and skips come out as their rules say, whoever ends first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processes import FAIL, SKIP, Site, branch, gate, needs, sh, states, until

from .conftest import Make

NFMOS = "none_failed_min_one_success"


@pytest.fixture(scope="module")
def site(make_shared: Make) -> Site:
    made = make_shared()
    made.start(2, 2, concurrency=4)
    return made


def test_tr_101_a_join_waits_for_the_parent_that_is_still_to_run(site: Site) -> None:
    """The branch that takes six seconds in the case waits for a gate here."""
    tasks = {
        "t1": sh(),
        "b2": sh(gate("tr101"), branch("t4")) | needs("t1"),
        "b3": sh(branch("t7")) | needs("t1"),
        "t4": sh() | needs("b2"),
        "t5": sh() | needs("b3"),
        "t7": sh() | needs("b3"),
        "t6": sh() | needs("t4", "t5", rule=NFMOS),
    }
    site.dag("tr101", tasks)
    run = site.run("tr101")
    site.becomes("tr101", run, "t5", "skipped")
    site.becomes("tr101", run, "t7", "success")
    site.nth(1, "b2", run)
    before = states(site.client.run("tr101", run))
    assert before["b2"] in ("queued", "running")
    assert (before["t4"], before["t6"]) == ("none", "none")
    site.open("tr101")
    shown = site.ended("tr101", run)
    assert shown["state"] == "success"
    assert states(shown) == dict.fromkeys(tasks, "success") | {"t5": "skipped"}
    assert site.executed(run) == dict.fromkeys(set(tasks) - {"t5"}, 1)
    assert site.trail(run=run)[-2].task == "t4"
    assert site.trail(run=run)[-1].task == "t6"


@pytest.mark.parametrize(("allowed", "expected"), [(False, "failed"), (True, "success")])
def test_tr_102_all_done_is_never_upstream_failed_on_the_way(
    site: Site, allowed: bool, expected: str
) -> None:
    """A gate in place of the three seconds. The documented rule: a run fails with each task that has no `allow_failure`."""
    dag = f"tr102.{expected}"
    tasks = {
        "s": sh(gate(dag)),
        "f": sh(FAIL) | {"allow_failure": allowed},
        "j": sh() | needs("s", "f", rule="all_done"),
        "k": sh() | needs("j"),
    }
    site.dag(dag, tasks)
    run = site.run(dag)
    site.becomes(dag, run, "f", "failed")
    site.nth(1, "s", run)
    assert site.state(dag, run, "j") == "none"
    site.open(dag)
    shown, seen = site.watch(dag, run)
    assert states(shown) == {"s": "success", "f": "failed", "j": "success", "k": "success"}
    assert not {"upstream_failed", "skipped"} & {*seen["j"], *seen["k"]}
    assert [x.task for x in site.trail(run=run)[2:]] == ["j", "k"]
    assert shown["state"] == expected
    assert site.json("run", "show", dag, run)["state"] == expected
    assert [r["state"] for r in site.json("run", "list", "--dag", dag)] == [expected]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (FAIL, FAIL, "upstream_failed"),
        (FAIL, SKIP, "upstream_failed"),
        (SKIP, SKIP, "skipped"),
        (FAIL, None, "success"),
    ],
)
def test_tr_103_one_success(site: Site, one: str, other: str | None, expected: str) -> None:
    """In the last case p2 succeeds when the test opens its gate, after p1 has failed."""
    dag = f"tr103.{one[-2:].strip()}.{(other or 'ok')[-2:].strip()}"
    tasks = {
        "p1": sh(one),
        "p2": sh(other or gate(dag)),
        "j": sh() | needs("p1", "p2", rule="one_success"),
        "k": sh() | needs("j"),
    }
    site.dag(dag, tasks)
    run = site.run(dag)
    if other is None:
        site.becomes(dag, run, "p1", "failed")
        site.nth(1, "p2", run)
        assert site.state(dag, run, "j") == "none"
        site.open(dag)
    shown = site.ended(dag, run)
    assert (shown["tasks"]["j"]["state"], shown["tasks"]["k"]["state"]) == (expected, expected)
    ran = {"p1", "p2", "j", "k"} if expected == "success" else {"p1", "p2"}
    assert site.executed(run) == dict.fromkeys(ran, 1)
    if expected == "success":
        assert shown["tasks"]["j"]["started_at"] >= shown["tasks"]["p2"]["ended_at"]


@pytest.mark.parametrize(
    ("second", "a", "b"), [(SKIP, "success", "skipped"), (FAIL, "upstream_failed", "upstream_failed")]
)
def test_tr_104_none_failed_runs_when_all_were_skipped(site: Site, second: str, a: str, b: str) -> None:
    tasks = {
        "p1": sh(SKIP),
        "p2": sh(second),
        "a": sh() | needs("p1", "p2", rule="none_failed"),
        "b": sh() | needs("p1", "p2", rule=NFMOS),
    }
    shown = site.done(f"tr104.{a}", tasks)
    assert (shown["tasks"]["a"]["state"], shown["tasks"]["b"]["state"]) == (a, b)
    assert site.executed(shown["run"])["a"] == (1 if a == "success" else 0)
    assert site.executed(shown["run"])["b"] == 0


def test_tr_105_skipping_goes_all_the_way_down(site: Site) -> None:
    tasks: dict[str, dict[str, Any]] = {"br": sh(branch("x")), "x": sh() | needs("br")}
    tasks |= {"y1": sh() | needs("br")}
    tasks |= {f"y{i}": sh() | needs(f"y{i - 1}") for i in range(2, 51)}
    site.dag("tr105", tasks)
    run = site.run("tr105")
    shown = site.ended("tr105", run, 5)
    assert shown["state"] == "success"
    assert states(shown) == {"br": "success", "x": "success"} | {f"y{i}": "skipped" for i in range(1, 51)}
    assert site.executed(run) == {"br": 1, "x": 1}


def test_tr_106_a_clear_does_not_undo_a_branch(site: Site) -> None:
    """Then br and y are cleared together, and br chooses y."""
    tasks = {
        "br": sh(f"if [ -e tr106 ]; then {branch('y')}; else {branch('x')}; fi"),
        "x": sh() | needs("br"),
        "y": sh() | needs("br"),
    }
    run = site.done("tr106", tasks)["run"]
    answer = site.json("run", "clear", "tr106", run, "y", "--yes")
    shown = site.ended("tr106", run)
    assert states(shown) == {"br": "success", "x": "success", "y": "skipped"}
    assert shown["state"] == "success"
    assert answer["stopped"] == 0
    site.slots_free()
    assert site.executed(run) == {"br": 1, "x": 1}

    site.open("tr106")
    site.json("run", "clear", "tr106", run, "br", "y", "--yes")
    until(lambda: site.executed(run)["br"] == 2, "br did not run again")
    shown = site.ended("tr106", run)
    assert shown["state"] == "success"
    assert shown["tasks"]["y"]["state"] == "success"
    assert site.executed(run) == {"br": 2, "x": 1, "y": 1}


@pytest.mark.parametrize(("chosen", "a"), [("a", "success"), ("join", "skipped")])
def test_tr_107_a_join_that_is_reached_through_the_chosen_path(site: Site, chosen: str, a: str) -> None:
    tasks = {
        "br": sh(branch(chosen)),
        "a": sh() | needs("br"),
        "join": sh() | needs("br", "a", rule=NFMOS),
    }
    shown = site.done(f"tr107.{chosen}", tasks)
    assert states(shown) == {"br": "success", "a": a, "join": "success"}
    assert shown["state"] == "success"
    expected = {"br": 1, "join": 1} | ({"a": 1} if a == "success" else {})
    assert site.executed(shown["run"]) == expected
