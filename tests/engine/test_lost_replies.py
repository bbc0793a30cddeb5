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

    def turn(self) -> bool:
        hints = say(self.store.pool.read, self.name, ["default"], 7, 0, True)
        hints = hints or say(self.store.pool.read, self.name, ["default"], 7, 0)
        if not hints:
            return False
        self.count += 1
        nonce = f"{self.name}-{self.count}"
        answers = say(self.store.pool.start, self.name, nonce, hints)
        granted = [h for h, ok in zip(hints, answers, strict=True) if ok]
        self.ran += [AttemptId.parse(h.attempt_id) for h in granted]
        if granted:
            say(self.store.shard.report, 1, [Report(h.attempt_id, "success", 1) for h in granted])
            say(self.store.pool.release, nonce, granted)
        return True


def step(scheduler: Scheduler) -> None:
    """One turn of the loop, with what the loop does when Redis is away."""
    try:
        scheduler.upkeep()
        shards = sorted({*scheduler.dispatch.busy(scheduler.redis_now()), *scheduler.wait(0)})
        scheduler.dispatch.pump(shards)
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
    assert cut.cuts["after"] > 20
    pool = engine.client.pool("default")
    assert (pool["used"], pool["waiting"], pool["running"]) == (0, 0, 0)
    client.close()
