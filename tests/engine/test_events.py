"""The event stream: rare things that a person wants to know afterwards, each told once and by who did it."""

from __future__ import annotations

from redsched.errors import Fenced

from .harness import Engine, success


def told(engine: Engine, *kinds: str) -> list[dict[str, object]]:
    return [e for e in engine.client.events(1000) if not kinds or e["kind"] in kinds]


def test_what_a_person_does_is_told_with_who_did_it(engine: Engine) -> None:
    client = engine.client
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    client.pause("d")
    client.pause("d")
    client.resume("d")
    client.set_pool("gpu", 2)
    client.delete_pool("gpu")
    client.trigger("d", run="r1")
    client.trigger("d", run="r2")
    engine.settle()
    client.clear("d", "r1", ["b"], dry_run=True)
    client.clear("d", "r1", ["b"])
    client.cancel("d", "r1")
    client.mark("d", "r2", "failed", "b")
    client.delete("d", force=True)
    by_person = [e for e in told(engine) if "by" in e]
    assert [e["kind"] for e in by_person] == [
        *("dag_registered", "dag_paused", "dag_resumed", "pool_set", "pool_deleted"),
        *("run_cleared", "run_cancelled", "run_marked", "dag_deleted"),
    ]
    assert all(str(e["by"]) in str(e["text"]) for e in by_person)
    assert (by_person[5]["dag"], by_person[5]["run"]) == ("d", "r1")


def test_shards_and_leaders_are_told_with_their_fences(engine: Engine) -> None:
    engine.step()
    assert len(told(engine, "shard_acquired")) == engine.store.shards
    (leads,) = told(engine, "leader")
    assert leads["scheduler"] == "one"
    shard = min(engine.scheduler.ownership.tokens)
    engine.scheduler.ownership.deposed(shard, Fenced("one:1 is not the owner; two:2 is"))
    (lost,) = told(engine, "shard_lost")
    assert lost["text"] == f"shard {shard} lost by one, fence 1: refused, one:1 is not the owner; two:2 is"


def test_a_scheduler_that_falls_silent_is_told_of_once_and_one_that_leaves_is_not(engine: Engine) -> None:
    three = [engine.scheduler, engine.new_scheduler("two"), engine.new_scheduler("three")]
    for _ in range(4):
        for one in three:
            one.ownership.beat()
    three[2].ownership.leave()
    engine.store.client.zadd(
        engine.store.keys.control + "schedulers", {"two": engine.store.control.now() - 1}
    )
    for _ in range(4):
        three[0].ownership.beat()
    assert [e["scheduler"] for e in told(engine, "scheduler_gone")] == ["two"]


def test_a_lost_worker_and_a_poisoned_task_are_told_of(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    engine.client.trigger("d", run="r")
    for _ in range(4):
        engine.step()
        engine.work(lambda *_: None)
        key = engine.store.keys.pool("default") + "lease"
        for attempt in engine.store.client.zrange(key, 0, -1):
            engine.store.client.zadd(key, {attempt: 1})
        engine.scheduler._due["reap"] = 0.0
    engine.step()
    assert engine.states("d", "r") == {"a": "failed"}
    assert [e["attempts"] for e in told(engine, "worker_lost")] == [1] * 4
    (poison,) = told(engine, "poison")
    assert poison["attempt"] == "d/r/0/4"


def test_events_are_followed_from_where_one_has_read(engine: Engine) -> None:
    engine.client.set_pool("p", 1)
    (first,) = told(engine)
    engine.client.set_pool("p", 2)
    following = engine.client.follow_events(str(first["id"]))
    assert next(following)["slots"] == 2


def test_runs_that_go_well_are_no_events(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    engine.step()
    before = len(told(engine))
    for _ in range(5):
        engine.client.trigger("d")
    engine.settle(success)
    assert len(told(engine)) == before
