"""I14: whatever call is cut off before it ran, or after it ran but before its reply, everything ends as if it had not been.

Two schedulers, two workers and a client share one server; a seed decides which of their script calls are cut, and how.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from redsched.client import Client
from redsched.errors import MayHaveHappened, Unavailable
from redsched.keys import AttemptId
from redsched.scheduler.loop import Scheduler
from redsched.store import Store
from redsched.store.scripts import Scripts
from redsched.store.shard import Report

from .harness import DAG20, Engine


class Cut:
    """Decides for each script call: let it through, refuse it before it runs, or run it and lose the reply."""

    def __init__(self, seed: int, share: float) -> None:
        self.rnd = random.Random(seed)
        self.share = share
        self.cuts: Counter[str] = Counter()

    def wrap(self, store: Store) -> Store:
        for name in ("call", "many"):
            setattr(store.scripts, name, self._cut(getattr(store.scripts, name)))
        return store

    def _cut(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def cut(*args: Any) -> Any:
            fate = self.rnd.random()
            if fate < self.share / 2:
                self.cuts["before"] += 1
                raise Unavailable("cut before it ran")
            answer = call(*args)
            if fate < self.share:
                self.cuts["after"] += 1
                raise MayHaveHappened("the reply was lost")
            return answer

        return cut


def say(call: Callable[..., Any], *args: Any) -> Any:
    """As workers and clients do: until there is an answer."""
    for _ in range(1000):
        try:
            return call(*args)
        except Unavailable:
            continue
    raise AssertionError("never answered")


class Worker:
    def __init__(self, store: Store, name: str, ran: list[AttemptId]) -> None:
        self.store, self.name, self.ran, self.count = store, name, ran, 0

    def turn(self, dies: str = "") -> bool:
        """Read, start, run, report, release; `dies`: after which of these it is killed."""
        hints = say(self.store.pool.read, self.name, ["default"], 7, 0, True)
        hints = hints or say(self.store.pool.read, self.name, ["default"], 7, 0)
        if not hints:
            return False
        self.count += 1
        nonce = f"{self.name}-{self.count}"
        answers = say(self.store.pool.start, self.name, nonce, hints)
        granted = [h for h, ok in zip(hints, answers, strict=True) if ok]
        self.ran += [AttemptId.parse(h.attempt_id) for h in granted]
        if granted and dies != "start":
            say(self.store.shard.report, 1, [Report(h.attempt_id, "success", 1) for h in granted])
            if dies != "report":
                say(self.store.pool.release, nonce, granted)
        return True


def step(scheduler: Scheduler) -> None:
    """One turn of the loop, with what the loop does when Redis is away."""
    try:
        scheduler.upkeep()
        shards = sorted({*scheduler.dispatch.busy(scheduler.redis_now()), *scheduler.wait(0)})
        scheduler.dispatch.pump(shards, scheduler.redis_now())
    except Unavailable:
        scheduler.dispatch.doubt()


# More of them: REDSCHED_SEEDS=1000
@pytest.mark.parametrize("seed", range(int(os.environ.get("REDSCHED_SEEDS", "25"))))
def test_cut_calls_lose_and_double_nothing(engine: Engine, seed: int) -> None:
    cut = Cut(seed, share=0.3)
    engine.register("d", DAG20)
    client = Client(settings=engine.settings)
    client._reached = True
    cut.wrap(client.store)
    runs = [client.trigger("d")["run"] for _ in range(4)]
    assert len(set(runs)) == len(engine.client.runs("d")) == 4
    schedulers = [Scheduler(cut.wrap(Store.open(engine.settings, "test")), f"s{i}") for i in range(2)]
    schedulers[0].dispatch.together = False  # it hands over as on a cluster
    ran: list[AttemptId] = []
    workers = [Worker(cut.wrap(Store.open(engine.settings, "test")), f"w{i}", ran) for i in range(2)]
    assert isinstance(schedulers[0].store.scripts, Scripts)
    for _ in range(3000):
        for scheduler in schedulers:
            scheduler._due.pop("beat", None)
            step(scheduler)
        busy = [w.turn() for w in workers]
        if not any(busy) and all(engine.client.run("d", r)["state"] == "success" for r in runs):
            break
    assert {engine.client.run("d", r)["state"] for r in runs} == {"success"}
    counts = Counter((a.run, a.task) for a in ran)
    assert len(counts) == 80
    assert set(counts.values()) == {1}, "nobody died, so nothing may run twice"
    assert cut.cuts["after"] > 8
    pool = engine.client.pool("default")
    assert (pool["used"], pool["waiting"], pool["running"]) == (0, 0, 0)
    client.close()


@pytest.mark.parametrize("seed", range(int(os.environ.get("REDSCHED_SEEDS", "25"))))
def test_killed_schedulers_and_workers_lose_nothing(engine: Engine, seed: int) -> None:
    """Beside cut calls: schedulers die and others take over, workers die between any two of their steps."""
    rnd = random.Random(seed)
    cut = Cut(seed, share=0.1)
    engine.register("d", DAG20, max_active_tasks=rnd.choice([3, 64]))
    engine.client.set_pool("default", rnd.choice([4, 128]))
    runs = [engine.client.trigger("d")["run"] for _ in range(3)]
    ran: list[AttemptId] = []
    made = 0

    def scheduler() -> Scheduler:
        nonlocal made
        made += 1
        return Scheduler(cut.wrap(Store.open(engine.settings, "test")), f"s{made}")

    def worker() -> Worker:
        nonlocal made
        made += 1
        return Worker(cut.wrap(Store.open(engine.settings, "test")), f"w{made}", ran)

    schedulers, workers, kills = [scheduler() for _ in range(2)], [worker() for _ in range(2)], 0
    control, pool = engine.store.keys.control, engine.store.keys.pool("default")
    for _ in range(3000):
        for i, one in enumerate(schedulers):
            one._due.pop("beat", None)
            one._due.pop("reap", None)
            step(one)
            if rnd.random() < 0.02:  # kill -9: its heartbeat stops, its shards stand there with its name
                engine.store.client.zadd(control + "schedulers", {one.ownership.name: 1})
                schedulers[i] = scheduler()
        busy = []
        for i, one in enumerate(workers):
            dies = rnd.choice(["start", "report"]) if kills < 12 and rnd.random() < 0.05 else ""
            busy.append(one.turn(dies))
            if dies and busy[-1]:
                kills += 1
                workers[i] = worker()
                for member in engine.store.client.zrange(pool + "lease", 0, -1):
                    engine.store.client.zadd(pool + "lease", {member: 1})
                engine.store.client.hset(pool + "meta", "grace", 0)
                engine.store.client.hset(pool + "meta", "swept", int(_now(engine)))
        if not any(busy) and all(engine.client.run("d", r)["state"] in ("success", "failed") for r in runs):
            break
    shown = [engine.client.run("d", r) for r in runs]
    assert {r["state"] for r in shown} == {"success"}
    executed = Counter((a.run, a.task) for a in ran)
    assert len(executed) == 60, "each task ran"
    for run in shown:
        for index, task in enumerate(run["tasks"].values()):
            assert task["state"] == "success"
            assert task["attempt"] >= 1
            assert executed[run["run"], index] <= task["attempt"], "no attempt was granted twice"
    for one in schedulers:
        one.leader.rested = False
    left = engine.client.pool("default")
    assert (left["waiting"], left["running"]) == (0, 0)
    assert left["used"] == 0
    prefix = engine.store.shard.prefix("d")
    assert engine.store.client.scard(prefix + "busy:d") == 0
    assert engine.store.client.zcard(prefix + "parked:d") == 0


def _now(engine: Engine) -> float:
    seconds, micros = engine.store.client.time()
    return float(seconds * 1000 + micros // 1000)
