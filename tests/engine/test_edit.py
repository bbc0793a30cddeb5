"""Clear and mark against a slow reference: after any edit the run ends as if it had been so from the start."""

from __future__ import annotations

import random

import pytest

from redsched.errors import NotFound
from redsched.keys import AttemptId
from redsched.rules import decide
from redsched.states import TRIGGER_RULES
from redsched.store import Store
from redsched.store.shard import Report

from .harness import Engine
from .test_engine import failing


def test_clear_with_downstream_runs_again_everything_below(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}, "c": {"needs": ["b"]}, "x": {}})
    engine.client.trigger("d")
    engine.settle(failing(1))
    assert engine.client.run("d", "latest")["state"] == "failed"
    plan = engine.client.clear("d", "latest", ["b"], downstream=True, dry_run=True)
    assert (plan["cleared"], plan["run_state"]) == (["b", "c"], "running")
    assert engine.states("d")["b"] == "failed", "a dry run changes nothing"
    done = engine.client.clear("d", "latest", ["b"], downstream=True)
    assert (done["cleared"], done["run_state"]) == (["b", "c"], "running")
    engine.settle()
    run = engine.client.run("d", "latest")
    assert run["state"] == "success"
    assert [t["attempt"] for t in run["tasks"].values()] == [1, 2, 1, 1]


def test_what_failed_only_because_of_it_opens_again_by_itself(engine: Engine) -> None:
    engine.register(
        "d",
        {"a": {}, "bad": {}, "b": {"needs": ["a"]}, "c": {"needs": ["b"]}, "j": {"needs": ["a", "bad"]}},
    )
    engine.client.trigger("d")
    engine.settle(failing(0, 1))
    assert engine.client.clear("d", "latest", ["a"])["cleared"] == ["a", "b", "c"]
    engine.settle()
    assert engine.states("d") == {
        "a": "success",
        "bad": "failed",
        "b": "success",
        "c": "success",
        "j": "upstream_failed",
    }
    assert engine.client.mark("d", "latest", "success", "bad")["reopened"] == ["j"]
    engine.settle()
    assert engine.client.run("d", "latest")["state"] == "success"


def test_clear_while_running_stops_the_attempt_and_fences_it_off(engine: Engine) -> None:
    engine.register("d", {"a": {"retries": 1}, "b": {"needs": ["a"]}})
    engine.client.trigger("d")
    engine.step()
    hints = engine.take()
    nonce = engine.grant(hints)
    for _ in range(2):  # twice in a row, as people do
        assert engine.client.clear("d", "latest", ["a"])["cleared"] == ["a"]
    assert engine.store.pool.heartbeat("w1", "default", [hints[0].attempt_id]) == [hints[0].attempt_id]
    engine.store.shard.report(1, [Report(hints[0].attempt_id, "success", 1, result='"old"')])
    engine.store.pool.release(nonce, hints)
    engine.settle()
    run = engine.client.run("d", "latest")
    assert run["state"] == "success"
    assert run["tasks"]["a"]["attempt"] == 3
    assert engine.client.result("d", "latest", "a") is None, "results of cleared attempts can't be read"
    assert engine.client.pool("default")["used"] == 0


def test_a_packed_run_is_cleared_like_a_live_one(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    engine.client.trigger("d")
    engine.settle(failing(0))
    shard = engine.store.shard.of("d")
    token = engine.scheduler.ownership.tokens[shard]
    engine.store.shard.pack(shard, token, engine.store.shard.to_pack(shard, 10))
    assert engine.client.clear("d", "latest", only_failed=True)["cleared"] == ["a", "b"]
    engine.settle()
    run = engine.client.run("d", "latest")
    assert run["state"] == "success"
    assert run["tasks"]["a"]["attempt"] == 2
    engine.store.shard.pack(shard, token, engine.store.shard.to_pack(shard, 10))
    assert engine.client.run("d", "latest") == run


def test_a_cleared_run_over_the_limit_is_queued(engine: Engine) -> None:
    engine.register("d", {"a": {}}, max_active_runs=1)
    first = engine.client.trigger("d")["run"]
    engine.settle()
    second = engine.client.trigger("d")["run"]
    engine.step()
    assert engine.client.clear("d", first, dry_run=True)["run_state"] == "queued"
    assert engine.client.clear("d", first)["run_state"] == "queued"
    engine.settle()
    assert engine.client.run("d", first)["tasks"]["a"]["attempt"] == 2
    assert {engine.client.run("d", r)["state"] for r in (first, second)} == {"success"}


def test_a_cleared_task_gets_its_full_budget_again(engine: Engine) -> None:
    engine.register("d", {"a": {"retries": 1}})
    engine.client.trigger("d")
    engine.settle(failing(0))
    engine.client.clear("d", "latest")
    engine.settle(failing(0))
    assert engine.client.run("d", "latest")["tasks"]["a"]["attempt"] == 4


def test_clearing_a_task_that_was_not_chosen_skips_it_again(engine: Engine) -> None:
    engine.register("d", {"b": {}, "x": {"needs": ["b"]}, "y": {"needs": ["b"]}})
    engine.client.trigger("d")

    def body(attempt: AttemptId, payload: str) -> Report:
        return Report(str(attempt), "success", 1, skip=(2,) if attempt.task == 0 else ())

    engine.settle(body)
    engine.client.clear("d", "latest", ["y"])
    engine.settle(body)
    assert engine.states("d")["y"] == "skipped"
    assert [a.task for a in engine.started] == [0, 1]


def test_a_cancelled_run_can_be_cleared_and_runs_to_its_end(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}, "c": {}})
    engine.client.trigger("d")
    engine.client.cancel("d", "latest")
    engine.client.clear("d", "latest")
    engine.settle()
    assert set(engine.states("d").values()) == {"success"}
    assert engine.client.run("d", "latest")["state"] == "success"


def test_a_run_that_was_cancelled_before_it_began_can_be_cleared(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}}, max_active_runs=1)
    first, second = (engine.client.trigger("d")["run"] for _ in range(2))
    assert engine.client.run("d", second)["state"] == "queued"
    engine.client.cancel("d", second)
    assert engine.client.clear("d", second, ["b"], dry_run=True)["cleared"] == ["b"]
    assert engine.client.clear("d", second)["cleared"] == ["a", "b"]
    engine.settle()
    assert [engine.client.run("d", run)["state"] for run in (first, second)] == ["success"] * 2


def test_a_clear_that_finds_nothing_leaves_a_cancelled_run_cancelled(engine: Engine) -> None:
    """It had made a success of it: no task that was left had failed."""
    engine.register("d", {"a": {"retries": 1}, "b": {"needs": ["a"]}})
    engine.client.trigger("d")
    engine.step()
    engine.client.cancel("d", "latest")
    before = engine.client.run("d", "latest")
    assert engine.client.clear("d", "latest", only_failed=True)["cleared"] == []
    engine.settle()
    assert engine.client.run("d", "latest") == before
    assert before["state"] == "cancelled"


def test_a_cancelled_run_that_goes_on_leaves_nothing_cancelled(engine: Engine) -> None:
    """It would end as a success of which a part was never done."""
    engine.register("d", {"a": {}, "b": {}, "c": {"needs": ["b"]}})
    engine.client.trigger("d")
    engine.step()
    engine.client.cancel("d", "latest")
    engine.settle()
    assert engine.client.clear("d", "latest", ["a"], dry_run=True)["cleared"] == ["a", "b"]
    assert engine.client.clear("d", "latest", ["a"])["cleared"] == ["a", "b"]
    engine.settle()
    assert engine.client.run("d", "latest")["state"] == "success"
    assert engine.states("d") == dict.fromkeys("abc", "success")


def test_an_unknown_task_is_refused_with_a_hint(engine: Engine) -> None:
    engine.register("d", {"extract": {}})
    engine.client.trigger("d")
    with pytest.raises(NotFound, match="did you mean extract"):
        engine.client.clear("d", "latest", ["extrakt"])


def _reference(needs: list[list[int]], rules: list[str], own: list[str]) -> list[str]:
    """What each task ends as, when each body that runs ends as `own` says. Indexes are in topological order."""
    ends: list[str] = []
    for i, ups in enumerate(needs):
        states = [ends[u] for u in ups]
        counts = (
            states.count("success"),
            states.count("failed") + states.count("upstream_failed"),
            states.count("skipped"),
        )
        verdict = decide(rules[i], len(ups), *counts)
        assert verdict != "wait"
        ends.append(own[i] if verdict == "run" else verdict)
    return ends


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_end_as_the_reference_says_before_and_after_edits(engine: Engine, seed: int) -> None:
    rnd = random.Random(seed)
    size = rnd.randint(2, 12)
    needs = [sorted(rnd.sample(range(i), rnd.randint(0, min(i, 3)))) for i in range(size)]
    rules = [rnd.choice(sorted(TRIGGER_RULES)) if needs[i] else "all_success" for i in range(size)]
    # `always` may run before its upstreams; the reference needs no order for it either.
    own = [rnd.choice(["success", "success", "failed", "skipped"]) for _ in range(size)]
    tasks = {f"t{i}": {"needs": [f"t{u}" for u in needs[i]], "trigger_rule": rules[i]} for i in range(size)}
    engine.register("d", tasks)
    engine.client.trigger("d")

    def body(attempt: AttemptId, payload: str) -> Report:
        return Report(str(attempt), own[attempt.task], 1)  # type: ignore[arg-type]

    engine.settle(body)
    assert list(engine.states("d").values()) == _reference(needs, rules, own)
    for _ in range(3):
        engine.step()
        if rnd.random() < 0.5:
            engine.work(body, count=rnd.randint(1, 3))
        picked = rnd.sample(range(size), rnd.randint(1, size))
        own = [rnd.choice(["success", "failed", "skipped"]) if i in picked else s for i, s in enumerate(own)]
        engine.client.clear("d", "latest", [f"t{i}" for i in picked], downstream=True)
    engine.settle(body)
    assert list(engine.states("d").values()) == _reference(needs, rules, own)
    failed = "failed" in engine.states("d").values()
    assert engine.client.run("d", "latest")["state"] == ("failed" if failed else "success")
    prefix = engine.store.shard.prefix("d")
    assert engine.store.client.scard(prefix + "busy:d") == 0
    assert engine.client.pool("default")["used"] == 0


def test_a_big_edit_is_carried_out_in_slices_while_the_run_is_frozen(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned at one moment, whatever is reported meanwhile: as if it had happened at once."""
    size = 1800
    tasks: dict[str, dict[str, object]] = {"one": {}}
    tasks |= {f"t{i}": {"needs": ["one"]} for i in range(size)}
    tasks["join"] = {"needs": [f"t{i}" for i in range(size)]}
    engine.register("d", tasks, max_active_tasks=5000)
    engine.client.set_pool("default", 5000)
    engine.client.trigger("d")
    engine.step()
    engine.work()
    engine.step()
    hints = engine.take(700)
    nonce = engine.grant(hints)
    engine.store.shard.report(1, [Report(h.attempt_id, "success", 1) for h in hints[:400]])
    engine.step()
    from redsched import editing

    real = editing.thawed

    def owner_works(store: Store, dag: str, run: str, say: editing.Say) -> str:
        """Between the commit and its slices the rest of the worker's reports arrive."""
        engine.store.shard.report(1, [Report(h.attempt_id, "success", 1) for h in hints[400:]])
        engine.store.pool.release(nonce, hints)
        engine.step()
        return real(store, dag, run, say)

    monkeypatch.setattr(editing, "thawed", owner_works)
    cleared = engine.client.clear("d", "latest")
    assert len(cleared["cleared"]) == size + 1, "the join has not run yet"
    assert cleared["run_state"] == "running"
    engine.settle()
    run = engine.client.run("d", "latest")
    assert run["state"] == "success"
    assert {t["state"] for t in run["tasks"].values()} == {"success"}
    assert run["tasks"]["one"]["attempt"] == 2
    assert run["tasks"]["join"]["attempt"] == 1
    assert engine.store.client.scard(engine.store.shard.prefix("d") + "busy:d") == 0
    assert engine.client.pool("default")["used"] == 0


def test_all_attempts_stay_readable_with_their_logs(engine: Engine) -> None:
    engine.register("d", {"a": {"retries": 1}})
    engine.client.trigger("d")

    def body(attempt: AttemptId, payload: str) -> Report:
        engine.store.shard.log_write(str(attempt), 0, f"attempt {attempt.attempt}".encode())
        return Report(
            str(attempt), "failed" if attempt.attempt < 3 else "success", 1, reason=f"no {attempt.attempt}"
        )

    engine.settle(body)
    engine.client.clear("d", "latest")
    cleared = engine.client.run("d", "latest")["tasks"]["a"]
    assert [(h["attempt"], h["outcome"]) for h in cleared["history"]][:2] == [(1, "failed"), (2, "failed")]
    engine.settle(body)
    task = engine.client.run("d", "latest")["tasks"]["a"]
    assert (task["attempt"], [h["reason"] for h in task["history"]]) == (3, ["no 1", "no 2"])
    for number in (1, 2, 3):
        assert engine.client.logs("d", "latest", "a", number).data == f"attempt {number}".encode()
    with pytest.raises(NotFound, match="attempts 1 to 3"):
        engine.client.logs("d", "latest", "a", 4)


def test_what_is_marked_while_the_run_is_being_packed_is_not_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner reads the run, a person marks one of its tasks, and only then the owner puts its packed value."""
    engine.register("d", {"a": {}})
    run = engine.client.trigger("d")["run"]
    engine.settle()
    engine.client.mark("d", run, "failed", "a")
    store = engine.scheduler.store
    shard, call = store.shard.of("d"), store.shard._call

    def marked_before(name: str, *args: object) -> object:
        if name == "pack":
            engine.client.mark("d", run, "skipped", "a")
        return call(name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(store.shard, "_call", marked_before)
    store.shard.pack(shard, engine.scheduler.ownership.tokens[shard], [("d", run)])
    monkeypatch.undo()
    assert engine.states("d", run) == {"a": "skipped"}
    assert store.shard.to_pack(shard, 10) == [("d", run)], "it is packed another time"
