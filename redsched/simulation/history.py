"""One seed from its first call to its end: processes die and are replaced, faults stop, and then everything must have ended."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from redsched.edit import Graph
from redsched.simulation.audit import Audit
from redsched.simulation.bodies import drawn
from redsched.simulation.cast import Cast
from redsched.simulation.network import store
from redsched.simulation.processes import Person
from redsched.simulation.reference import differences
from redsched.simulation.scenario import Scenario, draw
from redsched.simulation.server import Server
from redsched.simulation.watch import Watch
from redsched.simulation.world import EPOCH_MS, NONE, Broken, World, ends_in_order, hosts_clock
from redsched.store.codec import RunRecord, TaskRecord

PATIENCE_MS = 1_800_000
LOOK_EVERY_MS = 1000
DRAIN_MS = 180_000


@dataclass
class History:
    """What a seed did."""

    seed: int
    calls: int = 0
    runs: int = 0
    executions: int = 0
    simulated_s: float = 0.0
    digest: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    trouble: str = ""
    trace: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """What replays it."""
        return f"python -m redsched.simulation --seed {self.seed} --trace"


def simulate(server: Server, seed: int, faults: str | None = None, *, trace: bool = False) -> History:
    """Run one seed on an empty server; whatever is wrong is in `trouble`."""
    server.fresh()
    scenario = draw(seed, faults)
    world = World(server, seed, scenario.faults, trace=trace)
    play = _Play(world, scenario)
    logger = logging.getLogger("redsched")
    level, logger.level = logger.level, logging.CRITICAL + 1
    try:
        with hosts_clock(world), ends_in_order(world):
            try:
                play.run()
            except Broken as broken:
                play.history.trouble = str(broken)
            finally:
                world.end()
    finally:
        logger.level = level
    return play.told()


class _Play:
    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world, self.scenario = world, scenario
        self.rnd = Random(f"play {scenario.seed}")
        self.bodies = drawn(scenario.seed, scenario.character, scenario.specs.__getitem__)
        self.history = History(scenario.seed)
        self.audit = Audit(world.server, scenario.settings.namespace)
        self.watch = Watch(world, self.audit.sizes)
        self.people = Person(world, scenario.settings, scenario.acts, scenario.seed)
        self.cast = Cast(world, scenario.settings, self.bodies, self.people, self.rnd)
        self.unsure = False  # whether Redis has lost writes
        self.store = store(scenario.settings, world.trip(world.home))
        world.on_reply, world.on_call = self.watch.reply, self._look
        world.on_restart = self._lost

    # ---- the story

    def run(self) -> None:
        for _ in range(self.scenario.schedulers):
            self.cast.add_scheduler()
        for pools, width in self.scenario.workers:
            self.cast.add_worker(pools, width)
        self.cast.add_person()
        quiet_at, end = EPOCH_MS + self.scenario.faults_ms, EPOCH_MS + PATIENCE_MS
        while not (self.people.done and self.world.now >= quiet_at and self._all_ended()):
            self._breathe()
            if self.world.now >= quiet_at:
                self.world.faults = NONE
                self._close_again()
            elif self.scenario.faults.kill and self.rnd.random() < 0.02:
                self.cast.stop_one()
            if self.world.now > end:
                raise Broken(f"not over after {PATIENCE_MS // 60_000} simulated minutes: {self._still()}")
        self._drain()
        self._judge()

    def _breathe(self) -> None:
        self.world.breathe(self.world.now + LOOK_EVERY_MS)

    def _drain(self) -> None:
        """Slots that dead workers held come back, and finished runs are packed."""
        end = self.world.now + DRAIN_MS
        while left := self._held():
            self._breathe()
            if self.world.now > end:
                raise Broken(f"pools still hold {left} after all runs have ended")

    def _close_again(self) -> None:
        """A restart of Redis may have forgotten what the person said last."""
        if self.people.done and self.unsure:
            self.unsure, self.people.done, self.people.at = False, False, self.scenario.closing
            self.cast.add_person()

    def _lost(self) -> None:
        self.unsure = True
        self.audit.forget(self.world.happened["writes lost"] > 0)
        self.watch.forget()

    # ---- judging

    def _look(self) -> None:
        if self.world.calls % self.scenario.audit_every == 0:
            self._must_be_right()

    def _must_be_right(self) -> None:
        if wrong := self.audit.look():
            raise Broken("; ".join(wrong[:5]) + (f" (and {len(wrong) - 5} more)" if len(wrong) > 5 else ""))

    def _count(self, *names: str) -> int:
        base = [self.store.keys.shard(s) for s in range(self.scenario.settings.shards)]
        return sum(self.world.server.raw([("ZCARD", b + n) for b in base for n in names]))

    def _all_ended(self) -> bool:
        """And nobody wants to make more."""
        base = [self.store.keys.shard(s) for s in range(self.scenario.settings.shards)]
        inbox = sum(self.world.server.raw([("XLEN", b + "inbox") for b in base]))
        return not inbox and not self._count(
            "queued_runs", "running_runs", "backfill_look", "slots", "ended", "hooks"
        )

    def _still(self) -> str:
        names = ("queued_runs", "running_runs", "backfill_look", "slots", "ended", "hooks", "outbox")
        counts = {n: self._count(n) for n in names}
        return ", ".join(f"{n} {name}" for name, n in counts.items() if n)

    def _held(self) -> int:
        pools = self.world.server.raw([("SMEMBERS", self.store.keys.control + "pools")])[0]
        keys = [self.store.keys.pool(p.decode()) for p in sorted(pools)]
        return sum(self.world.server.raw([("HLEN", k + n) for k in keys for n in ("entries", "lost")]))

    def _judge(self) -> None:
        """Everything has ended: the state is right, nothing is left behind, and each run ended as the reference says."""
        self._must_be_right()
        wrong = []
        for dag in self.store.shard.all_dags():
            for run in self.store.shard.run_ids(dag, 0, 1000):
                wrong += self._differences(dag, run)
            wrong += self._left_behind(dag)
        if not self.world.happened["writes lost"]:
            repairs = [e.text for e in self.store.events.last(100) if e.kind == "audit"]
            wrong += [f"the audit in the background had to: {text}" for text in repairs]
        if wrong:
            raise Broken("; ".join(wrong[:5]))

    def _differences(self, dag: str, run: str) -> list[str]:
        record = self.store.shard.record(dag, run)
        self.history.runs += 1
        spec, names = self.store.shard.plan(dag, record.digest)
        plain = (dag, run) not in self.scenario.edited and not record.edits
        wrong = list(differences(dag, run, record, Graph.of(spec, names), spec, self.bodies, plain=plain))
        wrong += self._accepted(dag, run, record) if plain else []
        causes = ("kill", "pause", "restart", "stop")
        if not any(self.world.happened[cause] for cause in causes):
            lost = [n for n, text in record.tries.items() if text.startswith("lost")]
            wrong += [f"{dag}/{run}: attempts {lost} were lost, and nobody died"] if lost else []
        return wrong

    def _accepted(self, dag: str, run: str, record: RunRecord) -> Iterator[str]:
        """What settled a task is the report of its own last attempt, and of no other."""
        for index, task in _settled_by_bodies(record):
            at = record.created + (task.ended or 0)
            attempt = f"{dag}/{run}/{index}/{task.attempt}"
            if at not in self.watch.reported.get(attempt, ()):
                yield f"{attempt} is {task.state} by a report of {at}, which is none of its own"

    def _left_behind(self, dag: str) -> list[str]:
        prefix = self.store.shard.prefix(dag)
        keys = self.world.server.raw([("KEYS", "{*")])[0]
        kinds = ("busy", "parked", "active", "queue", "ready")
        left = [
            k.decode()
            for k in keys
            if k.decode().startswith(tuple(f"{prefix}{kind}:{dag}" for kind in kinds))
        ]
        return [f"{key} is left behind" for key in sorted(left)]

    def told(self) -> History:
        history, world = self.history, self.world
        history.calls, history.digest, history.trace = world.calls, world.digest, world.trace
        history.simulated_s = (world.now - EPOCH_MS) / 1000
        history.happened, history.executions = world.happened, self.cast.executions
        history.happened["refused"] += self.watch.refused
        return history


def _settled_by_bodies(record: RunRecord) -> Iterator[tuple[int, TaskRecord]]:
    for index in record.tasks:
        task, tried = record.task(index), record.attempt(index, record.task(index).attempt)
        by_worker = tried is None or (tried.outcome != "lost" and not tried.reason.startswith("timeout: its"))
        if task.attempt and by_worker and task.state in ("success", "failed", "skipped"):
            yield index, task
