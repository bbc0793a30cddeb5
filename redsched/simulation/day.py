"""A day of somebody's own DAGs, in seconds: real scheduler, real scripts, a simulated clock, bodies that only take time.

What is told afterwards is read from the runs' own records: waits from ready to start, the longest lines before the pools,
late runs, slots that became no run and why.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from redsched.definition.model import DagSpec
from redsched.errors import DefinitionError, RedschedError
from redsched.keys import AttemptId, iso
from redsched.schedule import Schedule
from redsched.settings import Settings
from redsched.simulation.bodies import Bodies, Body
from redsched.simulation.cast import Cast
from redsched.simulation.network import store
from redsched.simulation.processes import Act, Person
from redsched.simulation.server import private_server
from redsched.simulation.tally import DAY_MS, Tally, TaskTimes
from redsched.simulation.world import NONE, Broken, Faults, World, ends_in_order, hosts_clock
from redsched.store.codec import RunRecord
from redsched.store.pool import DEFAULT_POOL, DEFAULT_SLOTS

# DAGs are registered so long before midnight, so that the slot of 00:00 is one of the day's.
BEFORE_MS: Final = 30_000
LOOK_EVERY_MS: Final = 600_000
# A share of a task's duration by which each attempt is shorter or longer.
SPREAD: Final = 0.5
# Rates of faults a call, with some 50,000 calls a day: a few a day, and one every few minutes.
RATES: Final = {
    "none": NONE,
    "some": Faults(
        delay=0.05, drop=0.0005, lose=0.0005, kill=0.0001, pause=0.0001, restart=0.00002, hint=0.0005
    ),
    "many": Faults(delay=0.1, drop=0.005, lose=0.005, kill=0.001, pause=0.001, restart=0.0002, hint=0.005),
}
FAILS: Final = {"none": 0.0, "some": 0.01, "many": 0.05}


@dataclass(frozen=True)
class Wish:
    """What to simulate. `durations`: ms by `dag.task`, `dag`, or '' for all others; `pools`: slots of pools that no DAG names."""

    day_ms: int
    seed: int = 0
    faults: str = "none"
    durations: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, int] = field(default_factory=dict)

    def duration(self, dag: str, task: str) -> int:
        known = self.durations
        return known.get(f"{dag}.{task}", known.get(dag, known.get("", 60_000)))


def simulate_day(specs: Sequence[DagSpec], wish: Wish) -> dict[str, Any]:
    """The day, JSON-ready. Raises DefinitionError for a pool without slots, RedschedError if the simulation found a defect."""
    with private_server() as server:
        server.keeps = False
        server.fresh()
        play = _Day(World(server, wish.seed, RATES[wish.faults]), specs, wish)
        logger = logging.getLogger("redsched")
        level, logger.level = logger.level, logging.CRITICAL + 1
        try:
            with hosts_clock(play.world), ends_in_order(play.world):
                try:
                    play.run()
                finally:
                    play.world.end()
                return play.told()
        except Broken as broken:
            raise RedschedError(f"the simulation found a defect of redsched: {broken}") from None
        finally:
            logger.level = level


class _Day:
    def __init__(self, world: World, specs: Sequence[DagSpec], wish: Wish) -> None:
        self.world, self.wish = world, wish
        world.now, world.forgetful = wish.day_ms - BEFORE_MS, False
        world.most_calls = 5_000_000
        calm = wish.faults == "none"
        settings = Settings(
            redis="unix:///simulation",
            namespace="sim",
            shards=1 if calm else 4,
            # Longer than the defaults, because a lease that is renewed all day long is most of the work; without faults for nothing.
            lease_ms=600_000 if calm else 30_000,
            worker_lease_ms=600_000 if calm else 60_000,
            retention_runs=100_000_000,
        )
        self.specs = {spec.dag: _running(spec, world.now) for spec in specs}
        self.slots = _slots(specs, wish.pools)
        person = Person(world, settings, self._acts(), wish.seed)
        self.cast = Cast(world, settings, self._bodies(), person, Random(f"day {wish.seed}"))
        self.store = store(settings, world.trip(world.home))
        self.calm = calm

    def _acts(self) -> list[tuple[int, str, Act]]:
        def pool(name: str, slots: int) -> Act:
            return lambda client, _: client.set_pool(name, slots)

        def register(spec: DagSpec) -> Act:
            return lambda client, _: client.register(spec)

        pools = [(self.world.now, f"set pool {n}", pool(n, s)) for n, s in self.slots.items()]
        return pools + [(self.world.now, f"register {s.dag}", register(s)) for s in self.specs.values()]

    def _bodies(self) -> Bodies:
        names = {dag: list(spec.tasks) for dag, spec in self.specs.items()}
        fails = FAILS[self.wish.faults]

        def body(attempt: AttemptId) -> Body:
            rnd = Random(f"{self.wish.seed}/{attempt}")
            task = names[attempt.dag][attempt.task]
            ms = int(self.wish.duration(attempt.dag, task) * rnd.uniform(1 - SPREAD, 1 + SPREAD))
            timeout = self.specs[attempt.dag].tasks[task].timeout
            if timeout is not None and ms > timeout:
                return Body("failed", timeout, timed_out=True)
            return Body("failed" if rnd.random() < fails else "success", ms)

        return body

    def run(self) -> None:
        """Until midnight. Enough workers for all slots, because the pools are what is asked about."""
        for _ in range(1 if self.calm else 2):
            self.cast.add_scheduler()
        count = 1 if self.calm else 2
        for _ in range(count):
            self.cast.add_worker(tuple(self.slots), -(-sum(self.slots.values()) // count))
        self.cast.add_person()
        end = self.wish.day_ms + DAY_MS
        while self.world.now < end:
            self.world.breathe(min(end, self.world.now + LOOK_EVERY_MS))

    def told(self) -> dict[str, Any]:
        tally = Tally(self.wish.day_ms, self.slots)
        for dag in self.specs:
            for ms, reason in self.store.shard.skips(dag, 1000):
                if ms >= self.wish.day_ms:
                    tally.skipped(dag, ms, reason)
            for run in reversed(self.store.shard.run_ids(dag, 0, 1_000_000)):
                self._tell_run(tally, dag, run, self.store.shard.record(dag, run))
        happened = {k: n for k, n in self.world.happened.items() if n and k not in ("delay", "writes lost")}
        return {
            "day": iso(self.wish.day_ms),
            "seed": self.wish.seed,
            "faults": self.wish.faults,
            "dags": len(self.specs),
            "unscheduled": [dag for dag, spec in self.specs.items() if spec.schedule is None],
            **tally.told(),
            "happened": happened,
        }

    def _tell_run(self, tally: Tally, dag: str, run: str, record: RunRecord) -> None:
        spec = self.specs[dag]
        if (record.logical or record.created) < self.wish.day_ms:
            return
        tally.run(dag, run, record)
        for i, task in enumerate(spec.tasks.values()):
            found = record.task(i)
            if found.ready is not None and found.state != "cancelled":
                at = [
                    None if ms is None else record.created + ms
                    for ms in (found.ready, found.started, found.ended)
                ]
                tally.task(TaskTimes(task.pool, task.pool_slots, at[0] or 0, at[1], at[2]))


def _running(spec: DagSpec, now: int) -> DagSpec:
    """The DAG as if it had been registered long ago: a start in the past makes no runs for the past on this day."""
    schedule = Schedule.of(spec, now)
    first = schedule.next_after(now) if schedule else None
    if spec.start is None or schedule is None or first is None or (schedule.start_ms or 0) >= now:
        return spec
    return DagSpec.model_validate({**spec.written(), "start": iso(first)})


def _slots(specs: Sequence[DagSpec], given: Mapping[str, int]) -> dict[str, int]:
    """The slots of each pool that is used."""
    known = {DEFAULT_POOL: DEFAULT_SLOTS}
    for spec in specs:
        known |= spec.pools
    known |= given
    used = {task.pool: (spec.dag, name) for spec in specs for name, task in spec.tasks.items()}
    for pool, (dag, task) in used.items():
        if pool not in known:
            raise DefinitionError(
                f"DAG {dag!r}, task {task!r}: nothing says how many slots pool {pool!r} has; say --pool {pool}=N"
            )
    return {pool: known[pool] for pool in sorted(used)}
