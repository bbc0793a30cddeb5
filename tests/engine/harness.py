"""The engine without processes: a scheduler that is moved step by step, and a worker that does as it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redsched.client import Client
from redsched.definition.model import DagSpec
from redsched.keys import AttemptId
from redsched.scheduler.loop import Scheduler
from redsched.settings import Settings
from redsched.store import Store
from redsched.store.pool import Hint
from redsched.store.shard import Report

Body = Callable[[AttemptId, str], Report | None]


def spec(dag: str, tasks: dict[str, dict[str, Any]], **more: Any) -> DagSpec:
    """A definition whose tasks are commands that nobody runs."""
    return DagSpec.model_validate(
        {"dag": dag, "tasks": {k: {"run": "true", **v} for k, v in tasks.items()}, **more}
    )


DAG20: dict[str, dict[str, Any]] = {"t0": {}}
DAG20 |= {f"t{i}": {"needs": ["t0"]} for i in range(1, 7)}
DAG20 |= {f"t{7 + i}": {"needs": [f"t{1 + i}", f"t{1 + (i + 1) % 6}"]} for i in range(6)}
DAG20 |= {f"t{13 + i}": {"needs": [f"t{7 + (i + k) % 6}" for k in range(3)]} for i in range(4)}
DAG20 |= {f"t{i}": {"needs": ["t13", "t14", "t15", "t16"]} for i in (17, 18)}
DAG20 |= {"t19": {"needs": ["t17", "t18"]}}


def success(attempt: AttemptId, payload: str) -> Report | None:
    return Report(str(attempt), "success", 1)


@dataclass
class Engine:
    """`url` and `namespace` of a live server; everything else is made when it is asked for."""

    settings: Settings
    started: list[AttemptId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = Store.open(self.settings, "test")
        self.client = Client(settings=self.settings)
        self._scheduler: Scheduler | None = None
        self._nonce = 0
        self.granted: list[Hint] = []

    @property
    def scheduler(self) -> Scheduler:
        if self._scheduler is None:
            self._scheduler = self.new_scheduler("one")
        return self._scheduler

    def new_scheduler(self, name: str) -> Scheduler:
        return Scheduler(Store.open(self.settings, "test"), name)

    def register(self, dag: str, tasks: dict[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
        return self.client.register(spec(dag, tasks, **more))

    def step(self, scheduler: Scheduler | None = None) -> None:
        """Until nothing is left to do without news from outside."""
        one = scheduler or self.scheduler
        one.upkeep()
        while shards := sorted({*one.dispatch.busy(one.redis_now()), *one.wait(0)}):
            one.dispatch.pump(shards, one.redis_now())

    def take(self, count: int = 1000, pool: str = "default", consumer: str = "w1") -> list[Hint]:
        return self.store.pool.read(consumer, [pool], count, 0)

    def grant(self, hints: list[Hint], worker: str = "w1") -> str:
        self._nonce += 1
        nonce = f"n{self._nonce}"
        granted = self.store.pool.start(worker, nonce, hints)
        self.started += [AttemptId.parse(h.attempt_id) for h, ok in zip(hints, granted, strict=True) if ok]
        self.granted = [h for h, ok in zip(hints, granted, strict=True) if ok]
        return nonce

    def work(self, body: Body = success, pool: str = "default", count: int = 1000) -> int:
        """One round of a worker: read, start, run, report, release. A body that returns None is still running."""
        hints = self.take(count, pool)
        if not hints:
            return 0
        nonce = self.grant(hints)
        pairs = [(h, body(AttemptId.parse(h.attempt_id), h.payload)) for h in self.granted]
        done = [(h, r) for h, r in pairs if r is not None]
        self.store.shard.report(1, [r for _, r in done])
        if done:
            self.store.pool.release(nonce, [h for h, _ in done])
        return len(hints)

    def settle(self, body: Body = success, rounds: int = 1000) -> None:
        """Scheduler and worker in turns until nothing moves."""
        for _ in range(rounds):
            self.step()
            if not self.work(body):
                return
        raise AssertionError(f"still busy after {rounds} rounds")

    def states(self, dag: str, run: str = "latest") -> dict[str, str]:
        return {k: t["state"] for k, t in self.client.run(dag, run)["tasks"].items()}

    def close(self) -> None:
        self.store.close()
        self.client.close()
