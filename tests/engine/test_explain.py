"""Why isn't it running? Every cause alone with who holds what, then random runs: nothing is ever without a reason."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from redsched import explain as module
from redsched.cli.main import cli
from redsched.edit import Graph
from redsched.errors import NotFound
from redsched.keys import AttemptId
from redsched.snapshot import Limit, Place, Pool, Snapshot, Task, Worker
from redsched.states import LETTERS, SETTLED, TRIGGER_RULES
from redsched.store.codec import RunRecord, TaskRecord
from redsched.store.shard import Report

from .harness import Engine

Body = Any


def alive(engine: Engine, *pools: str, name: str = "box:0", running: int = 0, concurrency: int = 4) -> int:
    """A worker says that it lives."""
    info = {
        "pools": list(pools or ("default",)),
        "concurrency": concurrency,
        "running": running,
        "state": "running",
    }
    return engine.store.control.worker_beat(name, info)


def hold(attempt: AttemptId, payload: str) -> Report | None:
    return None


def failing(*bad: int, outcome: Any = "failed", **more: Any) -> Body:
    def body(attempt: AttemptId, payload: str) -> Report:
        return Report(str(attempt), outcome if attempt.task in bad else "success", 1, reason="exit 1", **more)

    return body


def ask(
    engine: Engine, dag: str = "d", run: str = "latest", task: str | None = None
) -> dict[str, dict[str, Any]]:
    return {row["task"]: row for row in engine.client.explain(dag, run, task)}


def only(row: dict[str, Any], kind: str) -> dict[str, Any]:
    """The one reason of this kind; it says all that every reason says."""
    found = [r for r in row["waits_for"] if r["kind"] == kind]
    assert len(found) == 1, row
    assert found[0]["detail"] and found[0]["clears"] in ("itself", "person")
    return found[0]


# ---- upstreams


def test_upstreams_are_named_and_the_chain_leads_to_its_beginning(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}, "c": {"needs": ["b"], "trigger_rule": "all_done"}})
    engine.client.trigger("d")
    engine.step()
    alive(engine)
    engine.work(hold)
    found = ask(engine)
    assert list(found) == ["a", "b", "c"], "a has just been taken; the shard does not know yet that it runs"
    assert only(found["a"], "worker")["worker"] == "w1"
    assert only(found["b"], "upstream")["task"] == "a"
    last = only(found["c"], "upstream")
    assert last["tasks"] == [{"task": "b", "state": "none"}] and last["roots"] == ["a"]
    assert "b (waits too)" in last["detail"] and "a (queued)" in last["detail"]
    assert {r["clears"] for r in found.values()} == {"itself"}


def test_a_running_task_waits_for_nothing_and_is_named_with_its_worker(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    engine.client.trigger("d")
    engine.step()
    number = alive(engine)
    engine.work(hold)
    engine.store.shard.running(number, [(str(engine.started[0]), 900)])
    engine.step()
    found = ask(engine)
    assert list(found) == ["b"]
    assert "a (running on box:0)" in only(found["b"], "upstream")["detail"]
    (row,) = engine.client.explain("d", "latest", "a")
    assert row["waits_for"] == [] and "on box:0" in row["because"][0]["detail"]


@pytest.mark.parametrize("rule", TRIGGER_RULES)
def test_the_rule_says_why_it_can_not_decide_yet(engine: Engine, rule: str) -> None:
    engine.register("d", {"a": {}, "b": {}, "j": {"needs": ["a", "b"], "trigger_rule": rule}})
    engine.client.trigger("d")
    engine.step()
    alive(engine)
    row = ask(engine)["j"]
    if rule == "always":
        assert row["state"] == "queued" and only(row, "worker")
    else:
        why = only(row, "upstream")
        assert why["rule"] == rule and module.MUST[rule] in why["detail"] and "0 of 2" in why["detail"]


def test_one_task_comes_first_and_then_what_it_waits_for(engine: Engine) -> None:
    engine.register(
        "d", {"x": {}, "a": {}, "b": {"needs": ["a"]}, "c": {"needs": ["b"]}, "z": {"needs": ["x"]}}
    )
    engine.client.trigger("d")
    engine.step()
    assert [r["task"] for r in engine.client.explain("d", "latest", "c")] == ["c", "a", "b"]
    with pytest.raises(NotFound, match="did you mean x"):
        engine.client.explain("d", "latest", "xx")
    with pytest.raises(NotFound):
        engine.client.explain("d", "nope")
    with pytest.raises(NotFound):
        engine.client.explain("nope", "nope")


# ---- the DAG, the run, limits


def test_a_paused_dag_says_so_on_every_task_that_has_not_started(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    engine.client.trigger("d", run="one")
    engine.step()
    alive(engine)
    engine.client.pause("d")
    engine.client.trigger("d", run="two")
    engine.step()
    queued = ask(engine, run="two")
    assert only(queued["a"], "paused")["do"] == "redsched dag resume d"
    assert (
        queued["b"]["clears"] == "person" and only(queued["b"], "upstream")["do"] == "redsched dag resume d"
    )
    assert ask(engine, run="one")["a"]["clears"] == "itself", "what its pool has goes on"
    assert only(ask(engine, run="one")["b"], "paused")
    engine.settle()
    assert engine.states("d", "one")["a"] == "success"
    parked = ask(engine, run="one")["b"]
    assert [r["kind"] for r in parked["waits_for"]] == ["paused"]
    engine.client.resume("d")
    engine.settle()
    assert ask(engine, run="two") == {}


def test_a_queued_run_names_who_is_before_it(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}}, max_active_runs=1)
    for run in ("one", "two", "three"):
        engine.client.trigger("d", run=run)
        time.sleep(0.002)
    engine.step()
    alive(engine)
    why = only(ask(engine, run="three")["a"], "run_limit")
    assert (why["holders"], why["place"], why["queue"], why["limit"]) == (["one"], 2, 2, 1)
    assert "2nd of 2 in the queue" in why["detail"] and why["clears"] == "itself"
    assert only(ask(engine, run="three")["b"], "upstream")["task"] == "a"


def test_a_run_behind_one_that_needs_a_person_needs_one_too(engine: Engine) -> None:
    engine.register("d", {"a": {}}, max_active_runs=1)
    engine.client.trigger("d", run="one")
    engine.client.trigger("d", run="two")
    engine.step()
    why = only(ask(engine, run="two")["a"], "run_limit")
    assert why["clears"] == "person" and why["do"] == "redsched worker"
    assert "no live worker serves pool default" in why["detail"]


def test_the_limit_of_a_dag_names_its_holders_and_my_place(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {}, "c": {"priority": 5}}, max_active_tasks=1)
    engine.client.trigger("d", run="one")
    engine.step()
    alive(engine)
    found = ask(engine)
    waiting = {t: only(r, "dag_limit") for t, r in found.items() if r["state"] == "ready"}
    assert {t: w["place"] for t, w in waiting.items()} == {"c": 1, "b": 2}
    assert waiting["b"]["holders"] == [{"run": "one", "task": "a", "state": "queued"}]
    assert waiting["b"]["clears"] == "itself"
    assert "d may have 1 task at a time" in waiting["b"]["detail"] and "a is active" in waiting["b"]["detail"]
    engine.store.control.worker_leave("box:0")
    stuck = only(ask(engine)["b"], "dag_limit")
    assert stuck["clears"] == "person" and stuck["do"] == "redsched worker", "the holder itself can't go on"


def test_the_limit_of_a_task_and_a_concurrency_key_name_other_runs(engine: Engine) -> None:
    engine.register(
        "d",
        {"a": {"max_active": 1}, "k": {"concurrency_key": "${params.city}", "max_active": 1}},
        params={"city": {"type": "string", "default": "Bern"}},
    )
    engine.client.trigger("d", run="one")
    engine.client.trigger("d", run="two")
    engine.step()
    alive(engine)
    found = ask(engine, run="two")
    why = only(found["a"], "task_limit")
    assert why["holders"][0]["run"] == "one" and "a of run one is active" in why["detail"]
    assert "'Bern'" in only(found["k"], "concurrency_key")["detail"]


# ---- pools


def test_a_pool_that_does_not_exist_is_named_and_making_it_lets_the_task_go_on(engine: Engine) -> None:
    """PL-105"""
    engine.client.set_pool("typo", 1)
    engine.register("d", {"a": {"pool": "typo"}, "b": {"needs": ["a"]}})
    engine.client.delete_pool("typo")
    engine.client.trigger("d")
    engine.step()
    found = ask(engine)
    why = only(found["a"], "pool")
    assert "pool typo does not exist" in why["detail"] and why["clears"] == "person"
    assert why["do"] == "redsched pool set typo --slots N"
    assert found["b"]["clears"] == "person", "what waits for it waits for a person, too"
    engine.client.set_pool("typo", 1)
    alive(engine, "typo")
    engine.scheduler._due.pop("reoffer")
    engine.step()
    engine.work(pool="typo")
    engine.settle()
    assert engine.client.run("d", "latest")["state"] == "success"


def test_a_full_pool_names_its_holders_and_my_place(engine: Engine) -> None:
    engine.client.set_pool("db", 2)
    for dag, team in (("x", "ops"), ("d", "sales")):
        engine.register(dag, {f"t{i}": {"pool": "db"} for i in range(3)}, team=team)
    engine.client.trigger("x", run="first")
    engine.step()
    engine.client.trigger("d", run="mine")
    engine.step()
    alive(engine, "db")
    whys = [only(r, "pool") for r in ask(engine).values()]
    assert sorted(w["place"] for w in whys) == [1, 2, 3]
    why = whys[0]
    assert why["problem"] == "full" and (why["slots"], why["used"], why["waiting"]) == (2, 2, 3)
    assert {(h["dag"], h["run"]) for h in why["holders"]} == {("x", "first")}
    assert all(h["task"].startswith("t") for h in why["holders"])
    assert why["group"] == "sales" and "of x first" in why["detail"]
    assert set(why["groups_before"]) <= {"ops"} and why["share"] == 0
    assert why["clears"] == "itself"


def test_a_closed_pool_and_one_that_shrank_need_a_person(engine: Engine) -> None:
    engine.client.set_pool("db", 4)
    engine.register("d", {"wide": {"pool": "db", "pool_slots": 4}, "small": {"pool": "db"}})
    engine.client.set_pool("db", 0)
    engine.client.trigger("d")
    engine.step()
    alive(engine, "db")
    assert {only(r, "pool")["problem"] for r in ask(engine).values()} == {"closed"}
    engine.client.set_pool("db", 3)
    problems = {t: only(r, "pool") for t, r in ask(engine).items() if r["clears"] == "person"}
    assert problems["wide"]["problem"] == "too_wide"
    assert problems["wide"]["do"] == "redsched pool set db --slots 4"
    engine.client.trigger("d", run="later")
    engine.step()
    assert only(ask(engine, run="later")["wide"], "pool")["problem"] == "too_wide", (
        "also before the pool has it"
    )


def test_small_ones_behind_one_that_never_fits_say_who_blocks_them(engine: Engine) -> None:
    engine.client.set_pool("db", 4)
    engine.register("d", {"wide": {"pool": "db", "pool_slots": 4, "priority": 9}, "s": {"pool": "db"}})
    engine.register("x", {"h": {"pool": "db"}, "i": {"pool": "db"}}, team="d")
    engine.client.trigger("x")
    engine.step()
    engine.client.trigger("d", run="one")
    engine.step()
    engine.client.set_pool("db", 2)
    alive(engine, "db")
    why = only(ask(engine)["s"], "pool")
    assert why["problem"] == "blocked" and why["clears"] == "person"
    assert "stands wide, which takes 4 slots" in why["detail"]


def test_a_wide_task_says_how_much_is_free(engine: Engine) -> None:
    engine.client.set_pool("db", 4)
    engine.register("d", {"h": {"pool": "db"}, "wide": {"pool": "db", "pool_slots": 4}})
    engine.client.trigger("d")
    engine.step()
    alive(engine, "db")
    assert "it takes 4 slots and pool db has 3 of 4 free" in only(ask(engine)["wide"], "pool")["detail"]


# ---- workers


def test_without_a_worker_for_the_pool_a_person_is_needed(engine: Engine) -> None:
    engine.client.set_pool("gpu", 1)
    engine.register("d", {"a": {"pool": "gpu"}, "b": {"pool": "gpu"}})
    engine.client.trigger("d")
    engine.step()
    alive(engine, "default")
    for row in ask(engine).values():
        why = only(row, "no_worker")
        assert why["do"] == "redsched worker --pool gpu" and why["pool"] == "gpu"
        assert row["clears"] == "person"


def test_busy_workers_are_named_with_what_they_run(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {}})
    engine.client.trigger("d", run="one")
    engine.step()
    alive(engine, running=1, concurrency=1)
    engine.work(hold, count=1)
    rows = ask(engine)
    waiting = next(r for r in rows.values() if r["waits_for"][0]["kind"] == "workers_busy")
    why = only(waiting, "workers_busy")
    assert why["workers"] == ["box:0"] and len(why["holders"]) == 1
    assert "the only place of box:0 is busy" in why["detail"]


def test_what_was_handed_to_a_worker_says_to_whom(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    engine.client.trigger("d")
    engine.step()
    alive(engine)
    assert len(engine.take(consumer="box:0.1")) == 1 or engine.take(consumer="box:0.1")
    assert only(ask(engine)["a"], "worker")["worker"] == "box:0.1"


def test_a_silent_worker_is_named_and_its_task_comes_back(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    engine.client.trigger("d")
    engine.step()
    number = alive(engine)
    engine.work(hold)
    attempt = str(engine.started[0])
    engine.store.shard.running(number, [(attempt, 900)])
    engine.step()
    lease = engine.store.keys.pool("default") + "lease"
    engine.store.client.zincrby(lease, -7000, attempt)
    why = only(ask(engine)["a"], "worker_silent")
    assert why["worker"] == "w1" and why["silent_s"] >= 7 and why["clears"] == "itself"
    engine.store.client.zincrby(lease, -7000, attempt)
    assert "next it is taken back" in only(ask(engine)["a"], "worker_silent")["detail"]
    key = engine.store.keys.pool("default")
    engine.store.client.hset(key + "lost", attempt, "w1")
    engine.store.client.hdel(key + "entries", attempt)
    assert "fell silent" in only(ask(engine)["a"], "scheduler")["detail"]


# ---- the scheduler


def test_without_a_scheduler_a_person_is_needed(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    engine.client.trigger("d")
    found = ask(engine)
    why = only(found["a"], "no_scheduler")
    assert why["do"] == "redsched scheduler" and why["owner"] is None and why["inbox"] >= 1
    assert "in the inbox of shard" in why["detail"]
    assert found["b"]["clears"] == "person"


def test_a_scheduler_that_fell_silent_is_named_with_its_lease(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    engine.step()
    engine.client.trigger("d")
    why = only(ask(engine)["a"], "scheduler")
    assert why["owner"] == "one" and why["lease_left_s"] > 0 and why["inbox"] >= 1
    control = engine.store.keys.control + "schedulers"
    engine.store.client.zadd(control, {"one": 1, "two": 9e15})
    why = only(ask(engine)["a"], "take_over")
    assert why["owner"] == "one" and why["lease_left_s"] < 0 and why["clears"] == "itself"


def test_while_a_run_is_edited_its_tasks_say_so(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    engine.client.trigger("d", run="one")
    engine.step()
    engine.store.client.hset(engine.store.shard.prefix("d") + "run:d:one", "frozen", "x")
    for row in ask(engine).values():
        assert [r["kind"] for r in row["waits_for"]] == ["edit"] and row["clears"] == "itself"


def test_what_redis_has_lost_is_told_with_how_to_repair_it(engine: Engine) -> None:
    engine.register("d", {"a": {}, "w": {"retries": 1, "retry_delay": "1h"}})
    engine.client.trigger("d", run="one")
    engine.step()
    engine.work(failing(1), count=5)
    engine.client.trigger("d", run="two")
    engine.step()
    engine.store.client.delete(
        engine.store.keys.pool("default") + "entries", engine.store.shard.prefix("d") + "timers"
    )
    assert only(ask(engine, run="two")["a"], "repair")["do"] == "redsched run clear d two a"
    assert only(ask(engine, run="one")["w"], "repair")["clears"] == "person"


# ---- retries and the past


def test_a_retry_says_when_and_after_which_failure(engine: Engine) -> None:
    engine.register("d", {"a": {"retries": 2, "retry_delay": "1h"}, "b": {"needs": ["a"]}})
    engine.client.trigger("d")
    engine.step()
    engine.work(failing(0))
    engine.step()
    found = ask(engine)
    why = only(found["a"], "retry")
    assert "attempt 1 failed: exit 1" in why["detail"] and (why["failures"], why["attempts"]) == (1, 3)
    assert 3500 < why["seconds"] <= 3600 and why["until"].endswith("Z") and why["clears"] == "itself"
    assert "a (retrying)" in only(found["b"], "upstream")["detail"]
    engine.client.pause("d")
    assert only(ask(engine)["a"], "paused")["clears"] == "person"


def test_what_failed_says_why_and_what_to_do(engine: Engine) -> None:
    engine.register("d", {"a": {"retries": 1}, "b": {"needs": ["a"]}, "c": {"needs": ["b"]}, "e": {}})
    engine.client.trigger("d", run="one")
    engine.settle(failing(0))
    found = ask(engine)
    assert list(found) == ["a", "b", "c"]
    assert all(r["waits_for"] == [] for r in found.values())
    (why,) = found["a"]["because"]
    assert "attempt 2 failed: exit 1; all 2 attempts failed" in why["detail"]
    assert "redsched run logs d one a" in why["do"]
    (why,) = found["c"]["because"]
    assert why["roots"] == ["a"] and "began with a" in why["detail"]
    assert why["do"] == "redsched run clear d one a --downstream"


def test_what_was_skipped_says_by_whom(engine: Engine) -> None:
    tasks = {"br": {}, "x": {"needs": ["br"]}, "y": {"needs": ["br"]}, "z": {"needs": ["y"]}, "s": {}}
    engine.register("d", tasks)
    engine.client.trigger("d", run="one")

    def body(attempt: AttemptId, payload: str) -> Report:
        if attempt.task == 4:
            return Report(str(attempt), "skipped", 1, reason="nothing new")
        return Report(str(attempt), "success", 1, skip=(2,) if attempt.task == 0 else ())

    engine.settle(body)
    found = ask(engine)
    assert list(found) == ["y", "z", "s"]
    kinds = {t: r["because"][0]["kind"] for t, r in found.items()}
    assert kinds == {"y": "branch", "z": "rule", "s": "skipped"}
    assert found["y"]["because"][0]["task"] == "br"
    assert "nothing new" in found["s"]["because"][0]["detail"]


def test_marks_cancels_and_poison_are_told_apart(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {}})
    engine.client.trigger("d", run="one")
    engine.step()
    engine.client.mark("d", "one", "failed", "a")
    assert ask(engine, run="one")["a"]["because"][0]["kind"] == "marked"
    engine.client.cancel("d", "one")
    assert ask(engine, run="one")["b"]["because"][0]["kind"] == "cancelled"
    engine.register("p", {"a": {"retries": 3}})
    engine.client.trigger("p")
    for losses in range(4):
        engine.step()
        attempt = str(
            engine.client.store.shard.record("p", engine.client.runs("p")[0]["run"]).task(0).attempt
        )
        if losses:
            notes = ask(engine, "p")["a"]["notes"]
            assert any("lost" in n for n in notes)
        run = engine.client.runs("p")[0]["run"]
        engine.store.shard.lost({f"p/{run}/0/{attempt}": "w1"})
    engine.step()
    (why,) = ask(engine, "p")["a"]["because"]
    assert why["kind"] == "lost" and "w1 fell silent" in why["detail"]


# ---- many tasks, the command line


def test_each_task_of_a_thousand_gets_its_reasons(engine: Engine) -> None:
    """How long that takes: bench/explain.py."""
    tasks: dict[str, dict[str, Any]] = {f"t{i}": {} for i in range(400)}
    tasks |= {f"u{i}": {"needs": [f"t{i % 400}", f"t{(i * 7) % 400}"]} for i in range(600)}
    engine.register("d", tasks, max_active_tasks=300)
    engine.client.trigger("d")
    engine.step()
    rows = engine.client.explain("d", "latest")
    assert len(rows) == 1000 and all(r["waits_for"] for r in rows)


def test_the_command_line_reads_like_an_answer_and_prints_json(engine: Engine) -> None:
    engine.client.set_pool("gpu", 1)
    engine.register("d", {"a": {"pool": "gpu"}} | {f"b{i}": {"needs": ["a"]} for i in range(9)})
    engine.client.trigger("d", run="one")
    engine.step()
    options = ["--redis", engine.settings.redis, "--namespace", engine.settings.namespace]
    shown = CliRunner().invoke(cli, ["run", "explain", "d", "latest", *options])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines() == [
        "d one is running; 10 of 10 tasks wait, 10 of them until a person acts",
        "",
        "a (queued)",
        "  ! no live worker serves pool gpu",
        "    -> redsched worker --pool gpu",
        "",
        "9 more wait only for tasks above them: b0, b1, b2, b3, b4 …",
    ]
    rows = json.loads(
        CliRunner().invoke(cli, ["run", "explain", "d", "one", "b3", "--json", *options]).stdout
    )
    assert [r["task"] for r in rows] == ["b3", "a"]
    assert CliRunner().invoke(cli, ["run", "explain", "d", "nope", *options]).exit_code == 3


def test_a_terminal_shows_the_same_words_in_colour(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.register("d", {"a": {"retries": 1, "retry_delay": "1h"}, "b": {}, "c": {"needs": ["b"]}})
    engine.client.trigger("d", run="one")
    engine.step()
    engine.work(failing(0, 1))
    engine.step()
    monkeypatch.setattr("redsched.cli.explain.is_terminal", lambda: True)
    options = ["--redis", engine.settings.redis, "--namespace", engine.settings.namespace]
    shown = CliRunner().invoke(cli, ["run", "explain", "d", "one", *options])
    assert shown.exit_code == 0, shown.output
    words = " ".join(shown.stdout.split())
    assert "all of that clears by itself" in words
    assert "- attempt 1 failed: exit 1; the next, 2nd of 2, starts in" in words
    assert "redsched run logs d one b" in words and "because of b (failed)" in words
    engine.client.cancel("d", "one")
    monkeypatch.undo()
    ended = CliRunner().invoke(cli, ["run", "explain", "d", "one", *options]).stdout
    assert ended.startswith("d one has ended: cancelled\n") and "the run was cancelled" in ended
    engine.register("e", {"a": {}})
    engine.client.trigger("e", run="fine")
    engine.settle()
    assert (
        CliRunner().invoke(cli, ["run", "explain", "e", "fine", *options]).stdout
        == "e fine has ended: success\n"
    )


# ---- any run at all


@pytest.mark.parametrize("seed", range(30))
def test_no_task_of_any_run_is_without_a_reason(engine: Engine, seed: int) -> None:
    """Random graphs, limits, pools, pauses, workers and schedulers that come and go; asked after each step."""
    world = World(engine, random.Random(seed))
    for _ in range(25):
        world.move()
        world.check()


class World:
    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self.engine, self.rng = engine, rng
        self.runs: list[tuple[str, str]] = []
        self.settled_pools = [rng.choice((1, 2, 4)) for _ in range(2)]
        engine.client.set_pool("p0", self.settled_pools[0])
        engine.client.set_pool("p1", self.settled_pools[1])
        for dag in ("d", "e"):
            engine.register(
                dag,
                self.tasks(),
                max_active_runs=rng.choice((1, 2, 5)),
                max_active_tasks=rng.choice((1, 2, 3, 64)),
                params={"k": {"type": "string", "default": "one"}},
            )

    def tasks(self) -> dict[str, dict[str, Any]]:
        rng, tasks = self.rng, {}
        for i in range(rng.randint(2, 7)):
            task: dict[str, Any] = {"needs": [f"t{u}" for u in range(i) if rng.random() < 0.4]}
            task["trigger_rule"] = rng.choice(["all_success", *TRIGGER_RULES])
            task["pool"] = rng.choice(("default", "p0", "p1"))
            if task["pool"] != "default":
                task["pool_slots"] = rng.randint(1, self.settled_pools[int(task["pool"][1])])
            task["retries"], task["retry_delay"] = rng.choice((0, 2)), rng.choice((0, "1h"))
            if rng.random() < 0.3:
                task["max_active"] = 1
            if rng.random() < 0.2:
                task["concurrency_key"] = "${params.k}"
            tasks[f"t{i}"] = task
        return tasks

    def move(self) -> None:
        e, rng, dag = self.engine, self.rng, self.rng.choice(("d", "e"))
        pool = rng.choice(("default", "p0", "p1"))
        kind = rng.choice(
            ("trigger", "step", "step", "work", "work", "hold", "take", "pause", "resume", "slots", "worker")
            + ("leave", "scheduler", "cancel", "clear", "mark", "lost", "running", "drop")
        )
        if kind == "trigger":
            self.runs.append((dag, e.client.trigger(dag)["run"]))
        elif kind == "step":
            e.step()
        elif kind in ("work", "hold") and e.work(self.body if kind == "work" else hold, pool=pool, count=3):
            pass
        elif kind == "take":
            e.take(1, pool, "box:0.0")
        elif kind in ("pause", "resume"):
            getattr(e.client, kind)(dag)
        elif kind == "slots" and pool != "default":
            e.client.set_pool(pool, rng.randint(0, 3))
        elif kind == "worker":
            alive(e, *rng.sample(("default", "p0", "p1"), rng.randint(1, 3)), running=rng.randint(0, 4))
        elif kind == "leave":
            e.store.control.worker_leave("box:0")
        elif kind == "scheduler":
            e.store.client.zadd(e.store.keys.control + "schedulers", {"one": rng.choice((1, 9e15))})
        elif kind == "drop":
            e.store.client.zadd(e.store.keys.control + "schedulers", {"two": 9e15, "one": 1})
        elif kind == "running" and e.started:
            e.store.shard.running(1, [(str(rng.choice(e.started)), 500)])
        elif kind == "lost" and e.started:
            e.store.shard.lost({str(rng.choice(e.started)): "w1"})
        elif kind in ("cancel", "clear", "mark") and self.runs:
            self.person(kind, *rng.choice(self.runs))

    def person(self, kind: str, dag: str, run: str) -> None:
        client, state = self.engine.client, self.engine.client.run(dag, run)["state"]
        if kind == "cancel" and state in ("queued", "running") and self.rng.random() < 0.3:
            client.cancel(dag, run)
        elif kind == "clear":
            client.clear(dag, run, only_failed=self.rng.random() < 0.5)
        elif kind == "mark":
            task = self.rng.choice(list(client.run(dag, run)["tasks"]))
            client.mark(dag, run, self.rng.choice(("success", "failed", "skipped")), task)

    def body(self, attempt: AttemptId, payload: str) -> Report | None:
        outcome = self.rng.choice(("success", "success", "failed", "skipped"))
        return Report(str(attempt), outcome, 1, reason="said so", final=self.rng.random() < 0.2)

    def check(self) -> None:
        for dag, run in self.runs[-6:]:
            rows = {r["task"]: r for r in self.engine.client.explain(dag, run)}
            shown = self.engine.client.run(dag, run)["tasks"]
            for task, now in shown.items():
                if now["state"] in SETTLED and now["state"] != "success":
                    assert rows[task]["because"], (dag, run, task, now)
                elif now["state"] not in SETTLED and now["state"] != "running":
                    assert rows[task]["waits_for"], (dag, run, task, now)
                    self.ends(rows, task)

    def ends(self, rows: dict[str, dict[str, Any]], task: str) -> None:
        """Along the upstreams, every chain ends where it clears by itself, or where a person is told what to do."""
        for _ in range(len(rows) + 1):
            reasons = rows[task]["waits_for"]
            for reason in reasons:
                assert reason["kind"] != "repair", (task, reason)
                assert reason["clears"] == "itself" or reason.get("do"), (task, reason)
                assert len(reason["detail"]) > 10 and "unknown" not in reason["detail"]
            other = [r["task"] for r in reasons if r["kind"] == "upstream"]
            assert (rows[task]["clears"] == "person") == any(r["clears"] == "person" for r in reasons)
            if not other or other[0] not in rows:  # an upstream that runs is not listed
                return
            task = other[0]
        raise AssertionError("the waits go round in circles")


def test_the_words_for_the_rules_cover_all_of_them() -> None:
    assert set(module.MUST) == set(TRIGGER_RULES)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_snapshot_at_all_has_reasons_and_an_end(data: st.DataObject) -> None:
    """Also snapshots that can't be: replies of a Redis that has lost things, or read while all of it moved."""
    s = data.draw(snapshots())
    for row in module.Answer(s).rows():
        if row["state"] in SETTLED:
            assert row["because"]
            continue
        assert row["waits_for"]
        for reason in row["waits_for"]:
            assert reason["clears"] == "itself" or reason["do"]
            assert reason["detail"]
        json.dumps(row)
    listed = {row["task"] for row in module.Answer(s).rows()}
    for i, record in enumerate(s.records):
        assert record.state in ("running", "success") or s.graph.names[i] in listed


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    count = draw(st.integers(1, 6))
    states = [draw(st.sampled_from(["none", *LETTERS.values()])) for _ in range(count)]
    records = tuple(TaskRecord(x, 0 if x == "none" else 1, draw(st.integers(0, 3))) for x in states)
    graph = Graph(
        tuple(f"t{i}" for i in range(count)),
        tuple(tuple(u for u in range(i) if draw(st.booleans())) for i in range(count)),
        tuple(draw(st.sampled_from(list(TRIGGER_RULES))) for _ in range(count)),
    )
    flags, numbers = st.booleans(), st.integers(0, 3)
    run = RunRecord(draw(st.sampled_from(("queued", "running"))), 1, "x", "manual", None, 0, 0, None, 0, {})
    tasks = tuple(Task("p", 1 + draw(numbers), 1, False, draw(numbers), draw(flags)) for _ in range(count))
    bare = Snapshot(5000, "d", "r", run, graph, tasks, records)
    ids = [bare.attempt(i) for i in range(count)]
    place = st.builds(
        Place,
        st.sampled_from("WQRS"),
        st.integers(1, 3),
        st.just("g"),
        st.just("w"),
        numbers,
        numbers,
        numbers,
    )
    places = {i: draw(place) for i in ids if draw(flags)}
    slots, first = draw(st.none() | numbers), draw(st.sampled_from(["", *ids]))
    held = {k: v for k, v in places.items() if v.state != "W"}
    pool = Pool(
        "p", slots, draw(numbers), held, (("g", 1),), 1, first, 2 * bool(first), tuple(held), draw(flags)
    )
    here = frozenset(f"r/{i}" for i in range(count) if draw(flags))
    holders = tuple(bare.live(i) for i in range(count) if states[i] in ("ready", "queued", "running"))
    limit = Limit("dag_limit", draw(numbers), draw(numbers), len(here), holders, tuple(sorted(here)), here)
    worker = Worker(
        "w",
        draw(st.sampled_from([(), ("p",)])),
        1,
        draw(numbers),
        draw(st.sampled_from(("running", "draining"))),
    )
    return replace(
        bare,
        frozen=draw(flags) and draw(flags),
        paused=draw(flags),
        max_runs=draw(numbers),
        active=draw(numbers),
        place=draw(st.none() | numbers),
        ready=frozenset(i for i in range(count) if draw(flags)),
        limits={"d": limit} if draw(flags) else {},
        timers={i: draw(st.integers(0, 9999)) for i in range(count) if draw(flags)},
        pools={"p": pool} if draw(flags) else {},
        places=places,
        lost={ids[0]: "w"} if draw(flags) else {},
        done=frozenset(ids[:1]) if draw(flags) else frozenset(),
        owner=draw(st.sampled_from(("", "one", "two"))),
        inbox=draw(numbers),
        schedulers={n: draw(st.integers(-1, 1)) for n in ("one", "two") if draw(flags)},
        workers=(worker,) if draw(flags) else (),
    )
