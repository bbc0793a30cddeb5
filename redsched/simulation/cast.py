"""Who takes part: schedulers and workers come, are told to go, or die and are replaced a while later."""

from __future__ import annotations

from random import Random

from redsched.keys import AttemptId
from redsched.scheduler.loop import Scheduler
from redsched.settings import Settings
from redsched.simulation.bodies import Bodies
from redsched.simulation.processes import Person, Worker, scheduler
from redsched.simulation.world import Actor, World


class Cast:
    def __init__(self, world: World, settings: Settings, bodies: Bodies, person: Person, rnd: Random) -> None:
        self.world, self.settings, self.bodies, self.person, self.rnd = world, settings, bodies, person, rnd
        self.schedulers: dict[Actor, Scheduler] = {}
        self.workers: dict[str, Worker] = {}
        self.executions = 0
        self._named = 0
        world.on_death = self.replace

    def name(self, letter: str) -> str:
        self._named += 1
        return f"{letter}{self._named}"

    def add_scheduler(self, after_ms: int = 0) -> None:
        actor, made = scheduler(self.world, self.settings, self.name("s"))
        actor.wake_at = self.world.now + after_ms
        self.schedulers[actor] = made

    def add_worker(self, pools: tuple[str, ...], width: int, name: str = "", after_ms: int = 0) -> None:
        name = name or self.name("w")
        made = Worker.start(self.world, self.settings, name, pools, width, self.bodies)
        made.ran = self._ran
        self.world.actors[-1].wake_at = self.world.now + after_ms
        self.workers[name] = made

    def add_person(self, after_ms: int = 0) -> None:
        self.person.start(self.name("p"), after_ms)

    def replace(self, actor: Actor) -> None:
        """Another process comes, a while after one has gone. A worker may come back under its name."""
        after = self.rnd.choice((0, 10, 500, 4000))
        if actor.kind == "scheduler":
            self.schedulers.pop(actor, None)
            self.add_scheduler(after)
        elif actor.kind == "worker":
            old = self.workers.pop(actor.name)
            name = actor.name if self.rnd.random() < 0.5 else ""
            self.add_worker(tuple(old.pools), old.width, name, after)
        elif not self.person.done:
            self.add_person(after)

    def stop_one(self) -> None:
        """SIGTERM: it ends in order."""
        if self.rnd.random() < 0.5 and self.schedulers:
            actor = self.rnd.choice(list(self.schedulers))
            self.schedulers[actor].asked_to_stop = True
            actor.wake_at = self.world.now
        elif self.workers:
            self.workers[self.rnd.choice(list(self.workers))].stopping = True
        self.world.happened["stop"] += 1

    def _ran(self, attempt: AttemptId, worker: str) -> None:
        self.executions += 1
