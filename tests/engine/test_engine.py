"""The engine's road: create, advance, offer, start, report, settle. Each test names the rule it holds."""

from __future__ import annotations

from typing import Any

import pytest

from redsched.errors import Conflict, DefinitionError, Fenced, NotFound
from redsched.keys import AttemptId
from redsched.store.pool import Offer
from redsched.store.shard import Report, ShardStore

from .harness import DAG20, Engine, success


def failing(*bad: int, **more: object):
    def body(attempt: AttemptId, payload: str) -> Report:
        outcome = "failed" if attempt.task in bad else "success"
        return Report(str(attempt), outcome, 1, reason="exit 1", **more)  # type: ignore[arg-type]

    return body


def test_each_task_runs_once_and_after_its_upstream(engine: Engine) -> None:
    engine.register("d", DAG20)
    engine.client.trigger("d")
    engine.settle()
    order = [a.task for a in engine.started]
    assert sorted(order) == list(range(20))
    place = {task: i for i, task in enumerate(order)}
    for i, task in enumerate(DAG20.values()):
        for up in task.get("needs", ()):
            assert place[int(up[1:])] < place[i]
    assert engine.client.run("d", "latest")["state"] == "success"


def test_nothing_is_left_behind_when_nothing_runs(engine: Engine) -> None:
    engine.register("d", DAG20)
    for _ in range(5):
        engine.client.trigger("d")
    engine.settle()
    prefix = engine.store.shard.prefix("d")
    client = engine.store.client
    for key in ("inbox", "outbox", "timers", "stops", "busy:d", "parked:d", "active:d", "queue:d"):
        kind = client.type(prefix + key)
        assert kind == b"none" or (kind == b"stream" and client.xlen(prefix + key) == 0), key
    assert engine.client.pool("default")["used"] == 0
    assert client.hlen(engine.store.keys.pool("default") + "entries") == 0


def test_a_failure_fails_what_is_below_and_the_run(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}, "c": {"needs": ["b"]}, "x": {}})
    engine.client.trigger("d")
    engine.settle(failing(0))
    assert engine.states("d") == {
        "a": "failed",
        "b": "upstream_failed",
        "c": "upstream_failed",
        "x": "success",
    }
    run = engine.client.run("d", "latest")
    assert run["state"] == "failed"
    assert run["tasks"]["a"]["reason"] == "exit 1"


def test_an_allowed_failure_does_not_fail_the_run(engine: Engine) -> None:
    engine.register("d", {"a": {}, "n": {"needs": ["a"], "allow_failure": True}})
    engine.client.trigger("d")
    engine.settle(failing(1))
    assert engine.client.run("d", "latest")["state"] == "success"


def test_retries_are_counted_and_a_final_failure_is_not_retried(engine: Engine) -> None:
    engine.register("d", {"a": {"retries": 2}, "b": {"retries": 5}})
    engine.client.trigger("d")

    def body(attempt: AttemptId, payload: str) -> Report:
        return Report(str(attempt), "failed", 1, reason="no", final=attempt.task == 1)

    engine.settle(body)
    tasks = engine.client.run("d", "latest")["tasks"]
    assert tasks["a"]["attempt"] == 3
    assert tasks["b"]["attempt"] == 1


def test_a_report_said_twice_is_applied_once(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}, "c": {"needs": ["a", "b"]}})
    engine.client.trigger("d")

    def twice(attempt: AttemptId, payload: str) -> Report:
        report = Report(str(attempt), "success", 1)
        engine.store.shard.report(1, [report])
        return report

    engine.settle(twice)
    assert [a.task for a in engine.started] == [0, 1, 2]
    assert engine.client.run("d", "latest")["state"] == "success"


def test_a_late_report_of_an_old_attempt_changes_nothing(engine: Engine) -> None:
    engine.register("d", {"a": {"retries": 1}})
    engine.client.trigger("d")
    engine.step()
    engine.work(failing(0))
    engine.step()
    first = engine.started[0]
    engine.store.shard.report(1, [Report(str(first), "success", 1)])
    engine.step()
    assert engine.states("d") == {"a": "queued"}
    assert sum(s["stale_reports"] for s in engine.client.shards()) == 1
    engine.settle()
    assert engine.client.run("d", "latest")["tasks"]["a"]["attempt"] == 2


def test_a_deposed_scheduler_can_not_write(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    old = engine.scheduler
    engine.step()
    shard = engine.store.shard.of("d")
    token = old.ownership.tokens[shard]
    mine, newer = engine.store.shard.acquire(shard, "two", "one")
    assert mine
    engine.client.trigger("d")
    with pytest.raises(Fenced):
        engine.store.shard.advance(shard, token, 100)
    engine.step()
    assert shard not in old.ownership.tokens, "it finds out, drops the shard and goes on with its others"
    assert len(old.ownership.tokens) == engine.store.shards - 1
    assert engine.states("d") == {"a": "ready"}
    assert [s["refused_writes"] for s in engine.client.shards() if s["shard"] == shard][0] >= 1
    assert engine.store.shard.advance(shard, newer, 100).offers, "the new owner finds everything"


def test_the_fence_outlives_the_lease(engine: Engine) -> None:
    _, first = engine.store.shard.acquire(1, "one", "")
    assert engine.store.shard.release(1, first)
    _, second = engine.store.shard.acquire(1, "two", "")
    assert (first, second) == ("one:1", "two:2")
    assert engine.store.shard.acquire(1, "two", "") == (True, "two:2"), "said twice is said once"
    assert engine.store.shard.acquire(1, "three", "one") == (False, "two:2")


def test_a_pool_refuses_the_offers_of_an_earlier_owner(engine: Engine) -> None:
    offer = Offer("d/r/0/1", "default", "1,0,d,1;1,,manual,")
    assert engine.store.pool.offer("default", 3, 7, "1-0", [offer]) == "T"
    with pytest.raises(Fenced):
        engine.store.pool.offer("default", 3, 6, "1-0", [offer])
    assert engine.store.pool.offer("default", 2, 1, "1-0", []) == "", "fences are per shard"


def test_an_offer_of_what_the_pool_has_or_had_is_a_no_op(engine: Engine) -> None:
    offer = Offer("d/r/0/1", "default", "1,0,d,1;1,,manual,")
    pool = engine.store.pool
    for _ in range(2):
        assert pool.offer("default", 3, 7, "1-0", [offer]) == "T"
    hints = engine.take()
    assert len(hints) == 1
    nonce = engine.grant(hints)
    pool.offer("default", 3, 7, "1-0", [offer])
    pool.release(nonce, hints)
    assert pool.offer("default", 3, 7, "1-0", [offer]) == "T"
    assert engine.take() == []
    assert pool.show("default")["used"] == 0


def handed_over(engine: Engine, *, together: bool) -> tuple[Any, ...]:
    """What shards and pools hold when a fan has met a pool with room, one without, one too small and one that is gone."""
    one = engine.scheduler
    one.dispatch.together = together
    engine.client.set_pool("default", 128)
    engine.client.set_pool("full", 2)
    for name in ("small", "gone"):
        engine.client.set_pool(name, 3)
    pools = {"b": "full", "c": "full", "d": "full", "e": "small", "f": "gone"}
    tasks: dict[str, dict[str, Any]] = {k: {"needs": ["a"], "pool": pool} for k, pool in pools.items()}
    tasks["e"]["pool_slots"] = 3
    engine.register("d", {"a": {}, **tasks, "g": {"needs": ["a"]}}, max_active_tasks=6)
    engine.client.set_pool("small", 2)
    engine.client.delete_pool("gone")
    engine.client.trigger("d", run="r")
    engine.settle()
    shard, pool = engine.store.shard.prefix("d"), engine.store.keys.pool
    redis = engine.store.client
    states = engine.states("d")
    ready = redis.smembers(f"{shard}ready:d:r"), redis.zrange(f"{shard}outbox", 0, -1)
    held = [redis.smembers(pool(n) + "held") for n in ("default", "full", "small", "gone")]
    waits = redis.zrange(pool("full") + "wait:d", 0, -1, withscores=True)
    busy = redis.smembers(f"{shard}busy:d"), redis.zrange(f"{shard}parked:d", 0, -1)
    while engine.work(pool="full"):
        engine.step()
    return states, ready, held, len(waits), busy, engine.states("d")


def test_what_became_ready_is_handed_over_as_well_in_one_step_as_in_two(engine: Engine) -> None:
    """A server that holds all cells, and a cluster: the same in the end; and what no pool has is still in the outbox."""
    found = handed_over(engine, together=True)
    assert found[0] == {
        "a": "success",
        "b": "queued",
        "c": "queued",
        "d": "queued",
        **dict.fromkeys("ef", "ready"),
        "g": "success",
    }
    assert found[1] == ({b"4", b"5"}, [b"d/r"])
    assert found[-1] == {**found[0], **dict.fromkeys("bcd", "success")}
    engine.client.delete("d", force=True)
    engine.scheduler.dispatch.states.clear()
    again = handed_over(engine, together=False)
    assert again[0] == found[0] and again[1][0] == found[1][0] and again[-1] == found[-1]
    assert again[3:5] == found[3:5]


def test_a_pool_that_has_seen_a_higher_fence_is_handed_nothing(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    engine.client.trigger("d", run="r")
    engine.step()
    shard = engine.store.shard.of("d")
    engine.store.pool.offer("default", shard, 99, "1-0", [])
    engine.store.shard.report(1, [Report("d/r/0/1", "success", 1)])
    token = engine.scheduler.ownership.tokens[shard]
    name, keys, args = engine.store.shard.advance_call(shard, token, 100, (), (), ["default"])
    done = ShardStore.advance_answer(engine.store.scripts.call(name, keys, *args))
    assert [o.attempt_id for o in done.offers] == ["d/r/1/1"], "as an offer, which the pool will refuse"
    assert engine.store.client.hexists(engine.store.keys.pool("default") + "entries", "d/r/1/1") == 0


def test_a_grant_is_given_to_one_nonce_only(engine: Engine) -> None:
    offer = Offer("d/r/0/1", "default", "1,0,d,1;1,,manual,")
    engine.store.pool.offer("default", 3, 7, "1-0", [offer])
    hints = engine.take()
    assert engine.store.pool.start("w1", "x", hints) == [True]
    assert engine.store.pool.start("w1", "x", hints) == [True], "a lost reply is asked for again"
    assert engine.store.pool.start("w2", "y", hints) == [False]


def test_a_lost_reply_of_advance_loses_no_task(engine: Engine) -> None:
    engine.register("d", DAG20)
    engine.client.trigger("d")
    scheduler = engine.scheduler
    for _ in range(100):
        scheduler.upkeep()
        for shard, token in list(scheduler.ownership.tokens.items()):
            engine.store.shard.advance(shard, token, 100)  # the reply, with its offers, is thrown away
        scheduler.dispatch.doubt()
        engine.step()
        if not engine.work():
            break
    assert sorted(a.task for a in engine.started) == list(range(20))
    assert engine.client.run("d", "latest")["state"] == "success"


def test_runs_over_the_limit_wait_in_order_of_their_dates(engine: Engine) -> None:
    from datetime import UTC, datetime

    engine.register("d", {"a": {}}, max_active_runs=1)
    days = [3, 1, 2]
    for day in days:
        engine.client.trigger("d", date=datetime(2026, 1, day, tzinfo=UTC))
    engine.settle()
    assert [a.run for a in engine.started] == [f"202601{d:02d}T000000Z" for d in (3, 1, 2)]
    with pytest.raises(Conflict):
        engine.client.trigger("d", date=datetime(2026, 1, 1, tzinfo=UTC))


def test_max_active_tasks_is_never_exceeded_and_nothing_hides(engine: Engine) -> None:
    engine.register("d", {f"t{i}": {} for i in range(30)}, max_active_tasks=4)
    engine.register("other", {"a": {}})
    engine.client.trigger("d")
    engine.client.trigger("other")
    most = 0
    for _ in range(100):
        engine.step()
        hints = engine.take()
        if not hints:
            break
        most = max(most, sum(h.attempt_id.startswith("d/") for h in hints))
        nonce = engine.grant(hints)
        engine.store.shard.report(1, [Report(h.attempt_id, "success", 1) for h in hints])
        engine.store.pool.release(nonce, hints)
    assert most == 4
    assert len(engine.started) == 31
    assert engine.client.run("d", "latest")["state"] == "success"


def test_a_paused_dag_starts_nothing_until_it_is_resumed(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    engine.client.trigger("d")
    engine.step()
    engine.client.pause("d")
    engine.settle()
    assert engine.states("d") == {"a": "success", "b": "ready"}
    assert engine.client.trigger("d")["state"] == "queued"
    engine.client.resume("d")
    engine.settle()
    assert {r["state"] for r in engine.client.runs("d")} == {"success"}


def test_cancel_stops_everything_and_frees_the_slots(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {}, "c": {"needs": ["a"]}}, max_active_runs=1)
    first = engine.client.trigger("d")["run"]
    second = engine.client.trigger("d")
    assert second["state"] == "queued"
    engine.step()
    hints = engine.take(1)
    nonce = engine.grant(hints)
    assert engine.client.cancel("d", first)["stopped"] == 2
    assert set(engine.states("d", first).values()) == {"cancelled"}
    assert engine.store.pool.heartbeat("w1", "default", [hints[0].attempt_id]) == [hints[0].attempt_id]
    engine.store.pool.release(nonce, hints)
    engine.store.shard.report(1, [Report(hints[0].attempt_id, "success", 1)])
    engine.settle()
    assert set(engine.states("d", first).values()) == {"cancelled"}
    assert engine.client.run("d", second["run"])["state"] == "success"
    assert engine.client.pool("default")["used"] == 0


def test_a_silent_worker_is_taken_back_and_its_losses_use_up_no_retries(engine: Engine) -> None:
    engine.register("d", {"a": {"retries": 0}})
    engine.client.trigger("d")
    engine.step()
    engine.grant(engine.take())
    _expire_leases(engine)
    engine.scheduler.leader.reap(1)
    engine.settle()
    assert [a.attempt for a in engine.started] == [1, 2]
    assert engine.client.run("d", "latest")["tasks"]["a"]["state"] == "success"


def test_a_task_that_is_lost_over_and_over_is_poison(engine: Engine) -> None:
    engine.register("d", {"a": {"retries": 9}})
    engine.client.trigger("d")
    for _ in range(4):
        engine.step()
        engine.grant(engine.take())
        _expire_leases(engine)
        engine.scheduler.leader.reap(1)
    engine.step()
    task = engine.client.run("d", "latest")["tasks"]["a"]
    assert task["state"] == "failed"
    assert task["reason"].startswith("lost")


def _expire_leases(engine: Engine, pool: str = "default") -> None:
    key = engine.store.keys.pool(pool) + "lease"
    for member in engine.store.client.zrange(key, 0, -1):
        engine.store.client.zadd(key, {member: 1})


@pytest.mark.parametrize("how", ["stream", "group"])
def test_a_stream_or_group_that_vanished_is_made_again(engine: Engine, how: str) -> None:
    engine.register("d", {f"t{i}": {} for i in range(10)})
    engine.client.trigger("d")
    engine.settle()
    engine.client.trigger("d")
    engine.step()
    stream = engine.store.keys.pool("default") + "stream"
    engine.take(3)  # delivered, never granted
    if how == "stream":
        engine.store.client.delete(stream)
    else:
        engine.store.client.xgroup_destroy(stream, "workers")
    engine.settle()
    assert len(engine.started) == len({(a.run, a.task) for a in engine.started}) == 20


def test_delete_refuses_active_runs_and_with_force_leaves_no_record(engine: Engine) -> None:
    client = engine.store.client
    engine.register("other", {"a": {}})
    engine.step()
    before = set(client.scan_iter("*", count=1000))
    engine.register("d", {f"t{i}": {} for i in range(5)})
    run = engine.client.trigger("d", run="r1")["run"]
    engine.step()
    hints = engine.take(2)
    nonce = engine.grant(hints)
    with pytest.raises(Conflict, match="1 active"):
        engine.client.delete("d")
    assert engine.client.delete("d", force=True)["stopped"] == 5
    with pytest.raises(NotFound):
        engine.client.run("d", run)
    engine.register("d", {"t0": {}})
    engine.client.trigger("d", run="r1")
    engine.store.shard.report(1, [Report(hints[0].attempt_id, "failed", 1, result='"old"')])
    engine.store.pool.release(nonce, hints)
    engine.settle()
    assert engine.states("d", "r1") == {"t0": "success"}, "late results of old tasks don't touch the new DAG"
    engine.client.delete("d")
    left = {k for k in set(client.scan_iter("*", count=1000)) - before if b"d" in k.split(b":")[3:]}
    assert left == set()


def test_a_branch_skips_what_it_did_not_choose(engine: Engine) -> None:
    engine.register("d", {"b": {}, "x": {"needs": ["b"]}, "y": {"needs": ["b"]}, "z": {"needs": ["y"]}})
    engine.client.trigger("d")

    def body(attempt: AttemptId, payload: str) -> Report:
        return Report(str(attempt), "success", 1, skip=(2,) if attempt.task == 0 else ())

    engine.settle(body)
    assert engine.states("d") == {"b": "success", "x": "success", "y": "skipped", "z": "skipped"}


@pytest.mark.parametrize("first", ["success", "failed", "skipped"])
def test_long_chains_settle_in_slices(engine: Engine, first: str) -> None:
    tasks = {f"t{i}": {"needs": [f"t{i - 1}"]} if i else {} for i in range(3000)}
    if first == "success":
        tasks = dict(list(tasks.items())[:30])
    engine.register("d", tasks)
    engine.client.trigger("d")

    def body(attempt: AttemptId, payload: str) -> Report:
        return Report(str(attempt), first if attempt.task == 0 else "success", 1)  # type: ignore[arg-type]

    engine.settle(body)
    states = list(engine.states("d").values())
    expect = {"success": "success", "failed": "upstream_failed", "skipped": "skipped"}[first]
    assert set(states[1:]) == {expect}


def test_wide_fans_settle_in_slices_and_the_join_runs_once(engine: Engine) -> None:
    width = 3000
    tasks: dict[str, dict[str, object]] = {"one": {}}
    tasks |= {f"t{i}": {"needs": ["one"]} for i in range(width)}
    tasks["join"] = {"needs": [f"t{i}" for i in range(width)]}
    engine.register("d", tasks, max_active_tasks=100000)
    engine.client.set_pool("default", 100000)
    engine.client.trigger("d")
    engine.settle(success)
    assert len(engine.started) == width + 2
    assert engine.started[-1].task == width + 1


def test_finished_runs_are_packed_and_read_the_same(engine: Engine) -> None:
    engine.register("d", DAG20, params={"n": {"type": "integer", "default": 3}})
    engine.client.trigger("d")
    engine.settle(failing(0))
    before = engine.client.run("d", "latest")
    shard = engine.store.shard.of("d")
    runs = engine.store.shard.to_pack(shard, 10)
    assert engine.store.shard.pack(shard, engine.scheduler.ownership.tokens[shard], runs) == 1
    assert engine.client.run("d", "latest") == before
    assert engine.store.shard.to_pack(shard, 10) == []
    value = engine.store.client.hgetall(engine.store.shard.prefix("d") + "packed:d")
    assert len(next(iter(value.values()))) < 400


def test_retention_forgets_by_count_the_oldest_first(engine: Engine) -> None:
    from dataclasses import replace

    engine.register("d", {"a": {}})
    ids = [engine.client.trigger("d", run=f"r{i}")["run"] for i in range(5)]
    engine.settle()
    engine.scheduler.store.settings = replace(engine.settings, retention_runs=2)
    assert engine.scheduler.leader.retain(engine.scheduler.redis_now()) == 3
    assert [r["run"] for r in engine.client.runs("d")] == ids[:2:-1]


def test_a_dags_own_retention_goes_before_the_settings(engine: Engine) -> None:
    engine.register("d", {"a": {}}, retention={"runs": 1})
    engine.register("other", {"a": {}}, retention={"age": "1h"})
    for i in range(3):
        engine.client.trigger("d", run=f"r{i}")
        engine.client.trigger("other", run=f"r{i}")
    engine.settle()
    now = engine.scheduler.redis_now()
    assert engine.scheduler.leader.retain(now) == 2
    assert engine.scheduler.leader.retain(now + 3_700_000) == 3
    assert [r["run"] for r in engine.client.runs("d")] == ["r2"]
    assert engine.client.runs("other") == []


def test_runs_stay_on_their_version(engine: Engine) -> None:
    assert engine.register("d", {"a": {}, "b": {"needs": ["a"]}})["version"] == 1
    assert engine.register("d", {"a": {}, "b": {"needs": ["a"]}}) == {
        "dag": "d",
        "version": 1,
        "changed": False,
        "path": "",
    }
    run = engine.client.trigger("d")["run"]
    engine.step()
    assert engine.register("d", {"a": {}, "x": {"needs": ["a"]}, "b": {"needs": ["x"]}})["version"] == 2
    engine.settle()
    assert set(engine.states("d", run)) == {"a", "b"}
    engine.client.trigger("d")
    engine.settle()
    assert set(engine.states("d")) == {"a", "x", "b"}


def test_fences_that_a_failover_took_back_grow_past_what_pools_have_seen(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    engine.step()
    client, control = engine.store.client, engine.store.keys.control
    meta = engine.store.keys.pool("default") + "meta"
    engine.client.set_pool("default", 8)
    shard = engine.store.shard.of("d")
    client.hset(meta, mapping={f"fence:shard{shard}": 4, "fence:leader": 3})
    engine.client.trigger("d")
    for _ in range(8):
        engine.scheduler._due.clear()
        engine.step()
        engine.work()
    engine.step()
    assert engine.client.run("d", "latest")["state"] == "success"
    assert int(client.get(engine.store.keys.shard(shard) + "fence")) >= 4
    assert int(client.get(control + "leader_fence")) >= 3


def test_schedulers_share_the_shards_and_take_over(engine: Engine) -> None:
    one, two = engine.scheduler, engine.new_scheduler("two")
    engine.step()
    assert len(one.ownership.tokens) == 4
    for _ in range(4):
        two.ownership.beat()
        one.ownership.beat()
    assert len(one.ownership.tokens) == len(two.ownership.tokens) == 2
    # One falls silent: its lease is over by Redis' clock.
    engine.store.client.zadd(engine.store.keys.control + "schedulers", {"one": 1})
    for _ in range(3):
        two.ownership.beat()
    assert len(two.ownership.tokens) == 4
    assert two.ownership.leads()
    two.ownership.leave()
    assert {s["owner"] for s in engine.client.shards()} == {None}


def _most_at_once(engine: Engine, tell: str) -> int:
    """Run everything; the most attempts of one group (the result of `tell` on task and run) granted at a time."""
    most = 0
    for _ in range(200):
        engine.step()
        hints = engine.take()
        if not hints:
            return most
        nonce = engine.grant(hints)
        ids = [AttemptId.parse(h.attempt_id) for h in hints]
        groups = [{"task": str(a.task), "run": a.run}[tell] for a in ids]
        most = max([most, *(groups.count(g) for g in groups)])
        engine.store.shard.report(1, [Report(h.attempt_id, "success", 1) for h in hints])
        engine.store.pool.release(nonce, hints)
    raise AssertionError("never done")


def test_max_active_of_a_task_counts_over_all_runs(engine: Engine) -> None:
    engine.register("d", {"a": {"max_active": 2}, "b": {}})
    for _ in range(8):
        engine.client.trigger("d")
    engine.step()
    hints = engine.take()
    tasks = [AttemptId.parse(h.attempt_id).task for h in hints]
    assert (tasks.count(0), tasks.count(1)) == (2, 8)
    nonce = engine.grant(hints)
    engine.store.shard.report(1, [Report(h.attempt_id, "success", 1) for h in hints])
    engine.store.pool.release(nonce, hints)
    assert _most_at_once(engine, "task") == 2
    assert {r["state"] for r in engine.client.runs("d")} == {"success"}


def test_a_concurrency_key_limits_each_value_by_itself(engine: Engine) -> None:
    tasks = {"a": {"concurrency_key": "${params.customer}"}}
    engine.register("d", tasks, params={"customer": {"type": "string", "default": "x"}})
    for i in range(6):
        engine.client.trigger("d", {"customer": "one" if i % 2 else "two"})
    engine.step()
    hints = engine.take()
    assert len(hints) == 2
    nonce = engine.grant(hints)
    engine.store.shard.report(1, [Report(h.attempt_id, "success", 1) for h in hints])
    engine.store.pool.release(nonce, hints)
    engine.settle()
    assert {r["state"] for r in engine.client.runs("d")} == {"success"}
    assert len(engine.started) == 6


def test_a_shard_that_everybody_believes_to_be_ours_is_taken_up_again(engine: Engine) -> None:
    """After a failover that lost the tail, Redis may say that we own what we have given up."""
    one = engine.scheduler
    engine.step()
    shard = engine.store.shard.of("d")
    engine.register("d", {"a": {}})
    engine.client.trigger("d")
    del one.ownership.tokens[shard]
    for _ in range(12):
        one.ownership.beat()
    one.dispatch.sync()
    engine.settle()
    assert engine.client.run("d", "latest")["state"] == "success"


def test_a_shard_that_is_lost_between_its_offers_and_its_slots_stops_nothing_else(engine: Engine) -> None:
    from redsched.errors import Fenced

    engine.register("d", {"a": {}}, schedule="0 0 1 * *")
    engine.step()
    engine.client.trigger("d")
    prefix, shard = engine.store.shard.prefix("d"), engine.store.shard.of("d")
    engine.store.client.zadd(f"{prefix}slots", {"d": 1})

    def refused(*_: object) -> None:
        raise Fenced("somebody else owns it")

    engine.scheduler.dispatch.calendar.fire = refused  # type: ignore[method-assign, assignment]
    engine.scheduler.dispatch.pump([shard], engine.scheduler.redis_now())
    assert shard not in engine.scheduler.ownership.tokens
    assert engine.store.client.zcard(f"{prefix}outbox") == 1, "the outbox keeps it for the next owner"


def test_many_runs_are_triggered_in_few_round_trips_or_not_at_all(engine: Engine) -> None:
    engine.register("d", {"a": {}}, params={"n": {"type": "integer"}}, max_active_runs=5)
    with pytest.raises(DefinitionError, match="n"):
        engine.client.trigger_many("d", [{"n": 1}, {"n": "two"}])
    assert engine.client.runs("d") == []
    made = engine.client.trigger_many("d", ({"n": i} for i in range(250)))
    assert len({m["run"] for m in made}) == 250
    assert [m["state"] for m in made] == ["running"] * 5 + ["queued"] * 245
    assert engine.client.run("d", made[7]["run"])["params"] == {"n": 7}
    engine.settle()
    assert {r["state"] for r in engine.client.runs("d", limit=1000)} == {"success"}
    assert engine.client.trigger_many("d", []) == []
