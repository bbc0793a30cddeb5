"""Virtual bodies: what an attempt does and how long it takes, decided by the seed and the attempt alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from redsched.definition.model import DagSpec
from redsched.keys import AttemptId
from redsched.store.shard import Report

Kind = Literal["success", "failed", "skipped", "branch"]


@dataclass(frozen=True, slots=True)
class Body:
    """What an attempt will do if nobody stops it. `skip`: the direct downstream tasks it does not choose."""

    kind: Kind
    ms: int
    skip: tuple[int, ...] = ()
    final: bool = False
    retry_ms: int | None = None
    timed_out: bool = False

    def report(self, attempt_id: str, ms: int) -> Report:
        if self.kind == "skipped":
            return Report(attempt_id, "skipped", ms, "asked to be skipped")
        if self.kind == "failed":
            reason = "timeout" if self.timed_out else "failed"
            return Report(attempt_id, "failed", ms, reason, final=self.final, retry_ms=self.retry_ms)
        return Report(attempt_id, "success", ms, result='"done"', skip=self.skip)


Bodies = Callable[[AttemptId], Body]


@dataclass(frozen=True)
class Character:
    """How the bodies of a scenario are: shares of failures, skips and branches, and durations."""

    fail: float = 0.0
    skip: float = 0.0
    branch: float = 0.0
    durations: Sequence[int] = (20,)


def drawn(seed: int, character: Character, specs: Callable[[str], DagSpec]) -> Bodies:
    """Bodies of a seed. The same attempt always does the same, whoever runs it and how often."""

    def body(attempt: AttemptId) -> Body:
        rnd = Random(f"{seed}/{attempt.dag}/{attempt.run}/{attempt.task}/{attempt.attempt}")
        spec = specs(attempt.dag)
        names = list(spec.tasks)
        task = spec.tasks[names[attempt.task]]
        ms = rnd.choice(character.durations)
        if task.timeout is not None and ms > task.timeout:
            return Body("failed", task.timeout, timed_out=True)
        roll = rnd.random()
        if roll < character.fail:
            final = rnd.random() < 0.1
            retry_ms = rnd.choice((None, None, None, 300))
            return Body("failed", ms, final=final, retry_ms=retry_ms)
        if roll < character.fail + character.skip:
            return Body("skipped", ms)
        if roll < character.fail + character.skip + character.branch:
            return _branch(rnd, spec, names, attempt.task, ms)
        return Body("success", ms)

    return body


def _branch(rnd: Random, spec: DagSpec, names: list[str], index: int, ms: int) -> Body:
    from redsched.definition.plan import not_chosen

    needs = {name: task.needs for name, task in spec.tasks.items()}
    direct = [n for n in names if names[index] in needs[n]]
    if not direct:
        return Body("success", ms)
    chosen = [n for n in direct if rnd.random() < 0.5]
    left = not_chosen(needs, names[index], chosen)
    return Body("branch", ms, skip=tuple(names.index(n) for n in left))
