"""The critical path of real runs: what is gathered from Redis, what-if, estimates, and the command."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime

import pytest
from click.testing import CliRunner, Result

from redsched.cli.main import cli
from redsched.critical_path import of_client
from redsched.errors import DefinitionError, NotFound
from redsched.keys import AttemptId
from redsched.store.shard import Report

from .harness import Body, Engine

# extract -> (clean, enrich) -> load; b is the slow one.
DIAMOND = {"extract": {}, "clean": {"needs": ["extract"]}, "enrich": {"needs": ["extract"]}}
DIAMOND |= {"load": {"needs": ["clean", "enrich"]}}
TIMES = {0: 30, 1: 10, 2: 80, 3: 20}


def taking(times: Mapping[int, int], *failing: int, attempts: int = 1) -> Body:
    """Bodies one after the other, of so many ms by task; `failing` ones fail in their first attempts."""

    def body(attempt: AttemptId, payload: str) -> Report:
        ms = times.get(attempt.task, 0)
        time.sleep(ms / 1000)
        bad = attempt.task in failing and attempt.attempt <= attempts
        return Report(str(attempt), "failed" if bad else "success", ms, reason="exit 1" if bad else "")

    return body


def one_by_one(engine: Engine, body: Body) -> None:
    """As one worker with one place does, so that each report carries its own time."""
    for _ in range(200):
        engine.step()
        if not engine.work(body, count=1):
            return
    raise AssertionError("still busy")


def test_the_path_of_a_run_is_its_slow_branch(engine: Engine) -> None:
    engine.register("d", DIAMOND)
    run = engine.client.trigger("d")["run"]
    one_by_one(engine, taking(TIMES))
    found = of_client(engine.client, "d")
    assert (found["run"], found["state"], found["runs"]) == (run, "success", [run])
    assert found["path"] == ["extract", "enrich", "load"]
    assert 0.13 <= found["seconds"] < 20
    assert set(found["slack"]) == {"clean"}
    assert found["seconds"] == pytest.approx(sum(found["totals"].values()), abs=0.01)
    assert 0.05 < found["slack"]["clean"] < 10
    slow = found["tasks"]["enrich"]
    assert slow["critical"]
    assert slow["running"] == pytest.approx(0.08, abs=0.02)
    assert slow["slot"] >= 0.009, "it waited while clean was running"
    assert (found["what_if"], found["estimate"]) == (None, None)
    shard = engine.store.shard.of("d")
    token = engine.scheduler.ownership.tokens[shard]
    assert engine.store.shard.pack(shard, token, engine.store.shard.to_pack(shard, 10)) == 1
    assert of_client(engine.client, "d", run) == found, "packed or live, it is the same"


def test_what_if_replays_the_run_with_other_durations_and_slots(engine: Engine) -> None:
    engine.client.set_pool("db", 1)
    engine.register("d", {t: {**x, "pool": "db"} for t, x in DIAMOND.items()})
    engine.client.trigger("d")
    for _ in range(10):
        engine.step()
        engine.work(taking({0: 30, 1: 60, 2: 60, 3: 20}), pool="db", count=1)
    assert engine.client.run("d", "latest")["state"] == "success"
    longer = of_client(engine.client, "d", what_if={"load": "30s"})["what_if"]
    assert longer["path"][-1] == "load"
    assert longer["seconds"] - longer["before_seconds"] == pytest.approx(29.98, abs=0.5)
    assert longer["saved_seconds"] < 0
    wider = of_client(engine.client, "d", pools={"db": 2})["what_if"]
    assert wider["saved_seconds"] > 0.04, "clean and enrich side by side"
    alone = of_client(engine.client, "d")
    first, second = sorted((alone["tasks"][t] for t in ("clean", "enrich")), key=lambda t: t["started"])
    gap = second["started"] - first["ended"]  # what the steps of this test took, however slow the machine
    assert min(alone["slack"].values()) <= gap + 0.002, (
        "the one had the only slot, and the other waited for it"
    )
    both = of_client(engine.client, "d", what_if={"clean": 0.2, "enrich": "1ms"}, pools={"db": "2"})
    assert both["what_if"]["path"] == ["extract", "clean", "load"]
    assert 0.25 <= both["what_if"]["seconds"] < 20


def test_wrong_names_and_values_say_what_to_write(engine: Engine) -> None:
    engine.register("d", {**DIAMOND, "wide": {"pool": {"name": "db", "slots": 4}, "pool_slots": 2}})
    with pytest.raises(NotFound, match="no runs"):
        of_client(engine.client, "d")
    engine.client.trigger("d")
    with pytest.raises(NotFound, match="did you mean extract"):
        of_client(engine.client, "d", what_if={"extrct": "1s"})
    with pytest.raises(NotFound, match="did you mean 'db'"):
        of_client(engine.client, "d", pools={"dbb": 3})
    with pytest.raises(DefinitionError, match="what-if extract: 'soon' is no duration"):
        of_client(engine.client, "d", what_if={"extract": "soon"})
    with pytest.raises(DefinitionError, match="widest task needs 2"):
        of_client(engine.client, "d", pools={"db": 1})
    for bad in ("-1", "1.5", True, "many"):
        with pytest.raises(DefinitionError, match="write a whole number"):
            of_client(engine.client, "d", pools={"db": bad})
    with pytest.raises(DefinitionError, match="at least 1"):
        of_client(engine.client, "d", last=0)
    with pytest.raises(NotFound, match="no successful run"):
        of_client(engine.client, "d", last=3)
    with pytest.raises(NotFound, match="does not exist"):
        of_client(engine.client, "nope")


def test_the_medians_of_the_last_runs_of_the_same_graph(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {}})
    engine.client.trigger("d", run="other_graph")
    one_by_one(engine, taking({0: 1}))
    engine.register("d", DIAMOND)
    for name, ms in (("r1", 40), ("r2", 60), ("r3", 50)):
        engine.client.trigger("d", run=name)
        one_by_one(engine, taking({2: ms}))
    engine.register("d", DIAMOND, description="another version, the same graph")
    engine.client.trigger("d", run="bad")
    one_by_one(engine, taking({2: 500}, 0))
    engine.client.trigger("d", run="r4")
    one_by_one(engine, taking({2: 50}))
    found = of_client(engine.client, "d", last=10)
    assert found["runs"] == ["r4", "r3", "r2", "r1"]
    assert found["tasks"]["enrich"]["running"] == pytest.approx(0.05, abs=0.01)
    assert found["path"] == ["extract", "enrich", "load"]
    assert of_client(engine.client, "d", "r2", last=2)["runs"] == ["r2", "r1"]
    assert of_client(engine.client, "d", last=3, what_if={"enrich": 0})["what_if"]["saved_seconds"] > 0.04


def test_a_failed_run_and_a_retried_task(engine: Engine) -> None:
    engine.register("d", {**DIAMOND, "enrich": {"needs": ["extract"], "retries": 1, "retry_delay": "50ms"}})
    engine.client.trigger("d")
    body = taking({2: 20}, 2)
    one_by_one(engine, body)
    while engine.states("d")["enrich"] == "retrying":
        engine.step()
    one_by_one(engine, body)
    found = of_client(engine.client, "d")
    assert found["path"] == ["extract", "enrich", "load"]
    enrich = found["tasks"]["enrich"]
    assert enrich["retrying"] >= 0.07, "the first attempt and the delay"
    assert enrich["running"] == pytest.approx(0.02, abs=0.01)
    engine.client.trigger("d", run="bad")
    one_by_one(engine, taking({}, 0))
    bad = of_client(engine.client, "d", "bad")
    assert (bad["state"], bad["path"]) == ("failed", ["extract"])
    assert set(bad["slack"]) == {"clean", "enrich", "load"}
    assert bad["tasks"]["load"]["started"] is None
    with pytest.raises(DefinitionError, match="did not run"):
        of_client(engine.client, "d", "bad", what_if={"load": 1})


def test_a_running_run_is_estimated_from_the_past(engine: Engine) -> None:
    engine.register("d", DIAMOND)
    for _ in range(3):
        engine.client.trigger("d")
        one_by_one(engine, taking(TIMES))
    usual = of_client(engine.client, "d", last=3)["seconds"]
    engine.client.trigger("d", run="now")
    fresh = of_client(engine.client, "d", "now")
    assert fresh["estimate"]["path"] == ["extract", "enrich", "load"]
    engine.step()
    engine.work(taking(TIMES))
    found = of_client(engine.client, "d", what_if={"load": "10s"})
    assert found["state"] == "running"
    guess = found["estimate"]
    assert datetime.fromisoformat(guess["p50"]) <= datetime.fromisoformat(guess["p90"])
    assert usual * 0.5 < guess["p50_seconds"] <= guess["p90_seconds"] < usual + 5
    assert (guess["path"], guess["runs"], guess["draws"]) == (["extract", "enrich", "load"], 3, 1000)
    assert (guess["overdue"], guess["unknown"]) == ([], [])
    assert 10 < found["what_if"]["seconds"] < 20, "what is left takes its usual time"


def test_a_cleared_run_counts_the_time_until_somebody_cleared_it(engine: Engine) -> None:
    engine.register("d", DIAMOND)
    engine.client.trigger("d")
    one_by_one(engine, taking({}, 2))
    time.sleep(0.05)
    engine.client.clear("d", "latest", ["enrich"])
    one_by_one(engine, taking({}))
    found = of_client(engine.client, "d")
    assert found["path"] == ["extract", "enrich", "load"]
    assert found["totals"]["waiting"] >= 0.05
    assert found["seconds"] == pytest.approx(sum(found["totals"].values()), abs=0.001)


def test_the_command_says_it_to_people_and_to_programs(engine: Engine) -> None:
    engine.register("d", DIAMOND)
    engine.client.trigger("d")
    one_by_one(engine, taking(TIMES))

    def call(*args: str) -> Result:
        where = ("--redis", engine.settings.redis or "", "--namespace", engine.settings.namespace)
        return CliRunner().invoke(cli, [*where, "run", "critical-path", *args], prog_name="redsched")

    told = call("d", "--json")
    assert told.exit_code == 0, told.stderr
    assert json.loads(told.stdout)["path"] == ["extract", "enrich", "load"]
    text = call("d", "latest", "--what-if", "enrich=1s", "--pool", "default=1", "--last", "2")
    assert text.exit_code == 0, text.stderr
    for word in ("* extract", "  clean", "* critical", "slack: clean", "what if: ", "enrich -> load"):
        assert word in text.stdout
    assert (call("d", "--what-if", "enrch=1s").exit_code, call("d", "nope").exit_code) == (3, 3)
    for bad in (("--what-if", "enrich"), ("--pool", "default=0"), ("--last", "0")):
        assert call("d", *bad).exit_code == 2
    engine.client.trigger("d")
    fresh = call("d").stdout
    assert "on 1 task: for a slot 100 %" in fresh
    assert "will end: " in fresh
