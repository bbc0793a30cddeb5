"""The processes of a simulation. The scheduler is the real one; the worker speaks the real worker's protocol, with bodies that
only take time; the person says what people say, through the real client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from redsched.client import Client
from redsched.errors import RedschedError, Unavailable
from redsched.keys import AttemptId
from redsched.scheduler.hooks import BUSY_MS
from redsched.scheduler.loop import Scheduler
from redsched.simulation.bodies import Bodies, Body
from redsched.simulation.network import store
from redsched.simulation.world import Actor, World
from redsched.store import Store
from redsched.store.pool import Hint

NOTICE_MS: Final = 400  # as in worker/supervisor.py: from then on a body is shown as running
FOREVER_MS: Final = 600_000


class Hooks:
    """Of the real ones only this: they are told once. A simulation starts no commands and asks no servers."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def deliver(self, shard: int, now: int) -> int:
        for member, _ in self.store.shard.hooks_due(shard, now, 50):
            self.store.shard.hook_done(shard, member)
        return now + BUSY_MS

    def close(self) -> None:
        pass


def scheduler(world: World, settings: Any, name: str) -> tuple[Actor, Scheduler]:
    """Start a real scheduler; it ends when its `asked_to_stop` is set, or the world kills it."""
    actor: Actor

    def trip(commands: Any) -> Any:
        return world.trip(actor)(commands)

    made = Scheduler(store(settings, trip), name)
    made.dispatch.hooks = Hooks(made.store)  # type: ignore[assignment]
    made.dispatch.together = int(name[-1:], 36) % 2 == 0  # each second one works as on a cluster
    actor = world.start(name, "scheduler", made.run)
    return actor, made


@dataclass(slots=True)
class On:
    """A body that is on."""

    hint: Hint
    nonce: str
    body: Body
    begun: int
    noticed: bool = False

    def ends(self) -> int:
        return self.begun + self.body.ms


@dataclass
class Worker:
    """See the module. `width` bodies at a time."""

    world: World
    store: Store
    name: str
    pools: Sequence[str]
    width: int
    bodies: Bodies
    stopping: bool = False
    on: list[On] = field(default_factory=list)
    number: int = 0
    nonces: int = 0
    next_renewal: int = 0
    ran: Callable[[AttemptId, str], None] = lambda attempt, worker: None

    @classmethod
    def start(
        cls, world: World, settings: Any, name: str, pools: Sequence[str], width: int, bodies: Bodies
    ) -> Worker:
        actor: Actor

        def trip(commands: Any) -> Any:
            return world.trip(actor)(commands)

        made = cls(world, store(settings, trip), name, pools, width, bodies)
        actor = world.start(name, "worker", made.run)
        return made

    @property
    def consumer(self) -> str:
        return f"{self.name}.0"

    def run(self) -> None:
        """Until it is asked to stop. What was delivered to this consumer earlier comes first."""
        info = {"pools": list(self.pools), "concurrency": self.width}
        self.number = self.say(self.store.control.worker_beat, self.name, info)
        self.next_renewal = self.world.now + self._interval()
        history = True
        while not self.stopping:
            self._end_bodies()
            self._notice()
            self._renew()
            hints = self._read(history)
            history = hints is None
            if hints:
                self._begin(hints)
        self._leave()

    def say(self, call: Callable[..., Any], *args: Any) -> Any:
        pause = 0.05
        while True:
            try:
                return call(*args)
            except Unavailable:
                self.world.sleep(pause)
                pause = min(2.0, pause * 2)

    def _interval(self) -> int:
        return self.store.settings.worker_lease_ms // 5

    def _read(self, history: bool) -> list[Hint] | None:
        """None: the reply was lost, and may have brought hints."""
        room = self.width - len(self.on)
        due = min([o.ends() for o in self.on], default=self.world.now + FOREVER_MS)
        due = min([due, *(o.begun + NOTICE_MS for o in self.on if not o.noticed)])
        wait = max(1, min(due, self.next_renewal if self.on else due) - self.world.now)
        if room <= 0 and not history:
            self.world.sleep(wait / 1000)
            return []
        try:
            return self.store.pool.read(self.consumer, self.pools, max(1, room), wait, history)
        except Unavailable:
            self.world.sleep(0.05)
            return None

    def _begin(self, hints: list[Hint]) -> None:
        self.nonces += 1
        nonce = f"{self.name}-{self.world.calls}-{self.nonces}"
        answers = self.say(self.store.pool.start, self.name, nonce, hints)
        for hint, granted in zip(hints, answers, strict=True):
            if granted:
                attempt = AttemptId.parse(hint.attempt_id)
                self.ran(attempt, self.name)
                self.on.append(On(hint, nonce, self.bodies(attempt), self.world.now))

    def _end_bodies(self) -> None:
        """Report, then release."""
        over = [o for o in self.on if o.ends() <= self.world.now]
        if not over:
            return
        reports = [o.body.report(o.hint.attempt_id, o.body.ms) for o in over]
        self.say(self.store.shard.report, self.number, reports)
        self._release(over)

    def _release(self, some: list[On]) -> None:
        self.on = [o for o in self.on if o not in some]
        for nonce in dict.fromkeys(o.nonce for o in some):
            self.say(self.store.pool.release, nonce, [o.hint for o in some if o.nonce == nonce])

    def _notice(self) -> None:
        fresh = [o for o in self.on if not o.noticed and self.world.now - o.begun >= NOTICE_MS]
        if fresh:
            self.say(
                self.store.shard.running,
                self.number,
                [(o.hint.attempt_id, self.world.now - o.begun) for o in fresh],
            )
            for o in fresh:
                o.noticed = True

    def _renew(self) -> None:
        """The answer names what is not wanted any more: it is stopped, and its slot given back."""
        if self.world.now < self.next_renewal:
            return
        self.next_renewal = self.world.now + self._interval()
        for pool in self.pools:
            ids = [o.hint.attempt_id for o in self.on if o.hint.pool == pool]
            unwanted = set(self.say(self.store.pool.heartbeat, self.name, pool, ids)) if ids else set()
            gone = [o for o in self.on if o.hint.attempt_id in unwanted]
            if gone:
                self._release(gone)

    def _leave(self) -> None:
        """Nothing stays behind under its name: what is on is stopped and given back."""
        for o in self.on:
            self.say(self.store.pool.give_back, self.name, o.nonce, [o.hint])
        while rest := self.say(self.store.pool.read, self.consumer, self.pools, 64, 0, True):
            self.say(self.store.pool.give_back, self.name, "left", rest)
        self.say(self.store.pool.leave, self.consumer, self.pools)


class SimClient(Client):
    """The real client, whose patience is the world's."""

    def __init__(self, world: World, made: Store) -> None:
        super().__init__(settings=made.settings)
        self.store, self.world = made, world

    def _say(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        pause = 0.05
        while True:
            try:
                return call(*args, **kwargs)
            except Unavailable:
                self.world.sleep(pause)
                pause = min(1.0, pause * 2)


Act = Callable[[Client, Random], Any]


@dataclass
class Person:
    """Does one act after the other, each at its time. A refusal (there is nothing like that any more) is an answer, too."""

    world: World
    settings: Any
    acts: list[tuple[int, str, Act]]
    seed: int
    done: bool = False
    at: int = 0

    def start(self, name: str, after_ms: int = 0) -> Actor:
        actor: Actor

        def trip(commands: Any) -> Any:
            return self.world.trip(actor)(commands)

        client = SimClient(self.world, store(self.settings, trip))
        actor = self.world.start(name, "person", lambda: self.run(client, actor), after_ms)
        return actor

    def run(self, client: Client, actor: Actor) -> None:
        """From where an earlier one was killed: the act that it was at is done again."""
        while self.at < len(self.acts):
            at, what, act = self.acts[self.at]
            if self.world.now < at:
                self.world.wait(actor, at)
            self.world.note(actor, f"will {what}")
            try:
                act(client, Random(f"{self.seed}/{self.at}"))
            except Unavailable:  # then a person says it again
                self.world.sleep(0.5)
                continue
            except RedschedError as refusal:
                self.world.note(actor, f"refused: {refusal}")
            self.at += 1
        self.done = True
