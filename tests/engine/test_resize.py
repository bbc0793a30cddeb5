"""Another number of shards: everything arrives, whatever is killed on the way, and what had begun goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from redsched.errors import Conflict, RedschedError, Resharded
from redsched.keys import AttemptId, shard_of
from redsched.resize import INDEXES, OWN, Mover, plan, resize
from redsched.scheduler.loop import Scheduler
from redsched.store import Store
from redsched.store.scripts import Scripts
from redsched.store.shard import Report

from .harness import DAG20, Engine, success

DAGS = [f"d{i}" for i in range(9)]


def resized(engine: Engine, target: int) -> None:
    resize(engine.store, target, forget_s=0, tell=lambda _: None)
    engine.client.store.forget_shards()


def leave(engine: Engine) -> None:
    """As a scheduler that stops, but for its hooks: those under way are told before anything is counted."""
    hooks = engine.scheduler.dispatch.hooks
    if hooks._threads is not None:
        hooks._threads.shutdown(wait=True)
    engine.scheduler.ownership.leave()
    engine._scheduler = None


def contents(engine: Engine) -> dict[str, Any]:
    """Everything that lies in shards, by name and whatever the shard: keys of DAGs, and indexes with all their members."""
    client, start = engine.store.client, f"{{{engine.settings.namespace}:s:"
    found: dict[str, Any] = {}
    for key in client.scan_iter(match=f"{start}*"):
        name = key.decode().partition("}:")[2]
        if name in OWN:
            continue
        kind = client.type(key)
        if kind == b"hash":
            value: Any = client.hgetall(key)
        elif kind == b"zset":
            value = dict(client.zrange(key, 0, -1, withscores=True))
        elif kind == b"set":
            value = dict.fromkeys(client.smembers(key))
        elif kind == b"list":
            value = client.lrange(key, 0, -1)
        else:
            value = client.get(key)
        if name in INDEXES:
            assert not found.get(name, {}).keys() & value.keys(), f"{name}: a member is in two shards"
            found[name] = {**found.get(name, {}), **value}
        else:
            assert name not in found, f"{name} is in two shards"
            found[name] = value
    return found


def check_places(engine: Engine, target: int) -> None:
    start = f"{{{engine.settings.namespace}:s:"
    for key in engine.store.client.scan_iter(match=f"{start}*"):
        shard, _, name = key.decode().removeprefix(start).partition("}:")
        if ":" in name:
            assert shard_of(name.split(":")[1], target) == int(shard), key
    for dag in engine.client.dags():
        assert engine.client.dag(dag["dag"])["dag"] == dag["dag"]


def fill(engine: Engine, dags: Sequence[str] = DAGS) -> None:
    """DAGs in every stage of their lives."""
    engine.client.set_pool("tiny", 1)
    tasks: dict[str, dict[str, Any]] = {
        "a": {"max_active": 1},
        "b": {"needs": ["a"], "retries": 2, "retry_delay": "1h", "timeout": "1h"},
        "c": {"needs": ["a"], "pool": "tiny"},
        "k": {"concurrency_key": "{{ params.who }}"},
        "late": {"needs": ["c", "b"]},
    }
    who = {"who": {"type": "string", "default": "x"}}
    for dag in dags:
        engine.register(
            dag,
            tasks,
            params=who,
            max_active_runs=2,
            schedule="0 3 * * *",
            on_success="true",
            run_timeout="5h",
        )
    for dag in dags:
        engine.client.trigger(dag, run="ended")
    settle(engine)
    engine.scheduler._due.clear()
    engine.step()  # packs
    for dag in dags[:3]:
        engine.client.clear(dag, "ended", ["late"])
    for dag in dags[::2]:
        engine.client.pause(dag)
    for dag in dags:
        engine.client.trigger(dag, run="running")
        engine.client.trigger(dag, run="second")
        engine.client.trigger(dag, run="queued", params={"who": "y"})
    engine.client.resume(dags[0])
    engine.client.delete(dags[-1], force=True)
    engine.register(dags[-1], {"a": {}})  # of another generation
    engine.client.trigger(dags[-1], run="running")
    engine.client.backfill(
        dags[1], datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 9, tzinfo=UTC), max_active=1
    )

    def once(attempt: AttemptId, payload: str) -> Report:
        engine.store.shard.log_write(str(attempt), 0, b"some words\n")
        engine.store.shard.once(str(attempt), "sent", "n1")
        outcome = "failed" if attempt.task == 1 and attempt.attempt == 1 else "success"
        return Report(str(attempt), outcome, 1, result='{"rows": 7}' if attempt.task == 0 else None)

    engine.step()
    engine.work(once)
    engine.step()
    engine.work(once)
    engine.step()


def settle(engine: Engine) -> None:
    while True:
        engine.step()
        if not sum(engine.work(pool=pool) for pool in ("default", "tiny")):
            return


def finish(engine: Engine, dags: Sequence[str] = DAGS) -> None:
    """All that had begun ends well, as if nothing had been moved."""
    for dag in dags:
        engine.client.resume(dag)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        settle(engine)
        active = sum(s["runs_running"] + s["runs_queued"] for s in engine.client.shards())
        if not active and engine.client.backfills()[0]["state"] == "done":
            break
        engine.scheduler._due.clear()
        for shard in range(engine.store.shards):  # retries are due now
            timers = engine.store.shard.keys(shard, "timers")[0]
            for member, _ in engine.store.client.zrange(timers, 0, -1, withscores=True):
                if member.startswith(b"retry/"):
                    engine.store.client.zadd(timers, {member: 1})
        for state in engine.scheduler.dispatch.states.values():
            state.recover = True
    for dag in dags:
        states = {r["run"]: r["state"] for r in engine.client.runs(dag) if r["run"]}
        assert set(states.values()) == {"success"}, (dag, states)
        assert {"running"} <= set(states)
    assert {s["inbox"] for s in engine.client.shards()} == {0}
    assert engine.client.pool("default")["used"] == engine.client.pool("tiny")["used"] == 0
    (backfill,) = engine.client.backfills()
    assert backfill["state"] == "done"


@pytest.mark.parametrize("target", [1, 3, 7, 16])
def test_everything_arrives_and_goes_on(engine: Engine, target: int) -> None:
    fill(engine)
    leave(engine)
    before = contents(engine)
    moving = plan(engine.store, target).dags_to_move
    resized(engine, target)
    assert moving == sum(shard_of(d, target) != shard_of(d, 4) for d in DAGS)
    check_places(engine, target)
    after = contents(engine)
    assert after == before
    assert len(engine.client.shards()) == engine.store.shards == target
    assert engine.client.logs(DAGS[2], "ended", "a") is not None
    finish(engine)


def test_there_and_back(engine: Engine) -> None:
    fill(engine)
    leave(engine)
    before = contents(engine)
    for target in (9, 2, 4):
        fences = {s["shard"]: s["fence"] for s in engine.client.shards()}
        resized(engine, target)
        after = {s["shard"]: s["fence"] for s in engine.client.shards()}
        assert all(after[s] > fences[s] for s in after.keys() & fences.keys())
    assert contents(engine) == before
    check_places(engine, 4)
    finish(engine)


class Killed(BaseException):
    pass


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """`left`: how many calls of scripts may still be made; then the process is killed, before or after the last one ran."""
    limits = {"left": 10**9, "after": 0, "made": 0}
    real = Scripts.call

    def call(self: Scripts, name: str, keys: tuple[str, ...], *args: Any) -> Any:
        if name.endswith(
            ("resize", "resized", "acquire", "close", "adopt", "shed", "release", "offer", "advance")
        ):
            limits["made"] += 1
            limits["left"] -= 1
            if limits["left"] < 0 and not limits["after"]:
                raise Killed
            answer = real(self, name, keys, *args)
            if limits["left"] < 0:
                raise Killed
            return answer
        return real(self, name, keys, *args)

    monkeypatch.setattr(Scripts, "call", call)
    return limits


def lapse(engine: Engine) -> None:
    """The lease of the resize that was killed is over, by Redis' clock."""
    engine.store.client.hset(engine.store.keys.control + "settings", "resizer_until", 1)


def test_killed_at_every_step_and_said_again(engine: Engine, calls: dict[str, int]) -> None:
    """Back and forth, each time killed one call later, before and after that call ran."""
    dags, target = ["d0", "d1", "d2", "d4"], 3
    fill(engine, dags)
    leave(engine)
    before = contents(engine)
    calls["made"] = 0
    resized(engine, target)
    steps, wanted = calls["made"], 4
    resized(engine, 4)
    assert 20 < steps < 400
    for step in range(steps):
        for after in (0, 1):
            calls.update(left=step, after=after)
            try:
                while True:
                    resized(engine, target)
                    target, wanted = wanted, target
            except Killed:
                pass
            calls.update(left=10**9)
            if engine.store.control.resizing()[1]:
                engine.client.store.forget_shards()
                with pytest.raises(Resharded, match=f"finish it with: redsched shards resize {target}"):
                    engine.client.store.shard.create_run(dags[0], "r", "manual", None, "", "n")
                lapse(engine)
                resized(engine, target)
                target, wanted = wanted, target
            engine.store.forget_shards()
            check_places(engine, engine.store.shards)
    assert contents(engine) == before
    finish(engine, dags)


def test_triggers_in_the_middle_are_refused_and_go_through_afterwards(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    assert engine.client.trigger("d", run="before")["state"] == "running"
    found = plan(engine.store, 9)
    mover = Mover(engine.store, found, lambda _: None)
    mover.begin()
    mover.take()
    stale = engine.client.store  # still goes by four shards
    for say in (
        lambda: stale.shard.create_run("d", "middle", "manual", None, "", "n"),
        lambda: stale.shard.pause("d", True),
        lambda: stale.shard.cancel_run("d", "before"),
        lambda: stale.shard.edit_run("d", "before", "x", "n", {0: "s"}),
        lambda: stale.shard.forget_run("d", "before", force=True),
        lambda: stale.shard.delete_dag("d", "begin", force=True),
        lambda: stale.shard.backfill_start("d", "bf1", 1, 2, {}),
    ):
        stale._shards, stale._trusted_until = 4, 1e18
        with pytest.raises(Resharded, match="being changed to 9"):
            say()
        with pytest.raises(Resharded, match="being changed to 9"):
            _ = stale.shards  # the refusal made it ask
    with pytest.raises(Resharded):
        engine.new_scheduler("late").ownership.beat()
    mover.drain()
    while mover.move():
        pass
    mover.end()
    assert engine.client.trigger("d", run="middle")["state"] == "running"
    engine.store.forget_shards()
    engine.settle()
    assert {r["run"]: r["state"] for r in engine.client.runs("d")} == {
        "before": "success",
        "middle": "success",
    }


def test_it_is_refused_while_anything_lives(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    engine.client.trigger("d")
    engine.step()
    name = engine.scheduler.ownership.name
    with pytest.raises(Conflict, match=f"scheduler {name} is alive. Stop all schedulers"):
        resized(engine, 7)
    leave(engine)
    engine.store.control.worker_beat("w1", {"pools": []})
    with pytest.raises(Conflict, match="worker w1 is alive"):
        resized(engine, 7)
    engine.store.control.worker_leave("w1")
    hints = engine.take()
    nonce = engine.grant(hints)
    with pytest.raises(Conflict, match=r"attempts that a worker may still be running \(d/.*/0/1\)"):
        resized(engine, 7)
    assert engine.store.control.resizing() == (4, 0)
    engine.store.pool.give_back("w1", nonce, hints)
    resized(engine, 7)
    engine.settle()
    assert engine.client.run("d", "latest")["state"] == "success"


def test_one_at_a_time_and_one_number_at_a_time(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    engine.client.trigger("d")
    mover = Mover(engine.store, plan(engine.store, 7), lambda _: None)
    mover.begin()
    with pytest.raises(Conflict, match="being changed to 7; finish that first: redsched shards resize 7"):
        plan(engine.store, 9)
    other = Store.open(replace(engine.settings, lease_ms=200), "test")
    with pytest.raises(Conflict, match="is moving the shards already"):
        resize(other, 7, forget_s=0)
    other.close()


def test_a_resize_that_slept_can_not_write(engine: Engine) -> None:
    """Another has finished meanwhile, and work has gone on: each of its writes is refused, also in cells of today."""
    fill(engine)
    leave(engine)
    slept = Mover(engine.store, plan(engine.store, 7), lambda _: None)
    slept.begin()
    slept.take()
    slept.drain()
    lapse(engine)
    resized(engine, 7)
    engine.step()
    after = contents(engine)
    for step in (
        slept.end,
        lambda: slept._write({0: [("string", "run:d:x", "", "old")]}, slept.store.shard.adopt_call),
    ):
        with pytest.raises(RedschedError):
            step()
    assert contents(engine) == after
    assert engine.store.control.resizing() == (7, 0)
    finish(engine)


def test_schedulers_that_slept_through_it_start_anew(engine: Engine) -> None:
    """Struck off the list of the living, refused by every fence, they ask for the number of shards."""
    engine.client.set_pool("default", 8)
    for dag in DAGS:
        engine.register(dag, DAG20)
        engine.client.trigger(dag)
    slept: Scheduler = engine.new_scheduler("slept")
    slept.upkeep()
    assert len(slept.ownership.tokens) == 4
    engine.store.client.zadd(engine.store.keys.control + "schedulers", {"slept": 1})
    resized(engine, 9)
    pool = engine.store.pool
    with pytest.raises(RedschedError, match="this pool has seen"):
        pool.offer("default", 0, int(slept.ownership.tokens[0].split(":")[1]), "0-0", [])
    slept.store._shards, slept.store._trusted_until = 4, 1e18
    with pytest.raises(Resharded, match="has been changed to 9"):
        slept.ownership.beat()
    slept.ownership.drop_all("")
    slept._due.clear()
    engine._scheduler = slept
    engine.settle(success)
    assert len(slept.ownership.tokens) == 9
    assert {engine.client.run(d, "latest")["state"] for d in DAGS} == {"success"}


def test_what_this_version_does_not_know_is_not_left_behind(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    engine.store.client.set(engine.store.keys.shard(2) + "novelty", 1)
    with pytest.raises(
        Conflict, match="shard 2 holds 'novelty', which this version of redsched does not know"
    ):
        resized(engine, 7)
    assert engine.store.control.resizing() == (4, 0)


def test_a_list_and_a_time_limit_move_too(engine: Engine) -> None:
    """Of a big edit that a client has staged, and of a definition that nobody has registered yet."""
    rng = random.Random(1)
    dag = next(f"x{i}" for i in range(99) if shard_of(f"x{i}", 4) != shard_of(f"x{i}", 7))
    prefix, client = engine.store.shard.prefix(dag), engine.store.client
    items = [str(rng.randrange(10**9)) for _ in range(3000)]
    client.rpush(f"{prefix}edit:{dag}:r:n", *items)
    client.hset(f"{prefix}plan:{dag}:abc", mapping={"n": 1, "spec": "ü" * 70_000})
    client.expire(f"{prefix}plan:{dag}:abc", 3600)
    before = contents(engine)
    resized(engine, 7)
    assert contents(engine) == before
    engine.store.forget_shards()
    assert 3500 < client.ttl(f"{engine.store.shard.prefix(dag)}plan:{dag}:abc") <= 3600
