"""One loop of one thread: lease upkeep, inboxes (blocking, nothing polls), timers, offers, packing, leader work.

The lease is renewed by the loop that does the work, so a wedged scheduler loses its shards. Redis' clock decides; the
host's monotonic clock only says when to look again.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

from redsched.doctor import check_server
from redsched.errors import Fenced, Resharded, Unavailable
from redsched.scheduler.audit import Audit
from redsched.scheduler.dispatch import Dispatch
from redsched.scheduler.followers import start_followers
from redsched.scheduler.leader import Leader
from redsched.scheduler.ownership import Ownership, fence
from redsched.settings import Settings
from redsched.store import Store
from redsched.store.shard import Ended

log = logging.getLogger("redsched.scheduler")

PACK_BATCH = 200
RETAIN_EVERY_S = 60.0
REOFFER_EVERY_S = 2.0
# Runs that ended and are not packed, although nobody said so: they were unpacked for an edit that never came.
SWEEP_EVERY_S = 600.0


def scheduler_name() -> str:
    """Unique for each process start, because a name that comes back must not inherit anything."""
    return f"{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(2)}"


class Stop(BaseException):
    """Raised by the signal handler, only while the loop waits."""


class Scheduler:
    """`run()` until `stop` is set; then hand everything over."""

    def __init__(self, store: Store, name: str | None = None, stop: threading.Event | None = None) -> None:
        self.store = store
        self.ownership = Ownership(store, name or scheduler_name())
        self.dispatch = Dispatch(store, self.ownership)
        self.leader = Leader(store)
        self.audit = Audit(store, self.ownership)
        self.stop = stop or threading.Event()
        self.asked_to_stop = (
            False  # by a signal: an Event must not be set by the thread that may be waiting on it
        )
        self.waiting = False
        self._idle = False  # nothing came while it last waited
        self._due: dict[str, float] = {}
        self._to_pack: set[int] = set()
        self._clock_ahead = 0.0  # Redis' clock minus the monotonic one, in ms

    # ---- time

    def redis_now(self) -> int:
        return int(time.monotonic() * 1000 + self._clock_ahead)

    def _is_due(self, what: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every_s
        return True

    # ---- the loop

    def run(self) -> None:
        log.info("scheduler %s started", self.ownership.name)
        self.store.events.add("scheduler_joined", f"scheduler {self.ownership.name} started")
        pause, away_since = 0.0, 0.0
        while not self.stopping:
            try:
                if pause:
                    self._sleep(pause)  # here, because a signal ends it with Stop
                self.turn()
                if pause:
                    log.info("Redis is back after %.1f s", time.monotonic() - away_since)
                    self.audit.outage(time.monotonic() - away_since)
                    pause, self.leader.rested = 0.0, True
            except Unavailable as error:
                if isinstance(error, Resharded):
                    self.ownership.drop_all(str(error))
                    self.dispatch.sync()
                self.doubt()
                if not pause:
                    away_since = time.monotonic()
                    log.warning("%s; trying again until it is back", error)
                pause = min(2.0, pause * 2 or 0.05)
            except Stop:
                break
        self._hand_over()

    def turn(self) -> None:
        """Upkeep, then whatever is there; waits only if nothing is."""
        self.upkeep()
        shards = self.dispatch.busy(self.redis_now())
        if not shards:
            shards = self.wait(self._wait_ms())
            self._idle = not shards
        elif news := self.wait(0):
            shards = list({*shards, *news})
        if shards:
            # To take a shard over is nothing that happened in it.
            self.audit.happened(s for s in shards if not self.dispatch.state(s).recover)
            for run in self.dispatch.pump(shards, self.redis_now()):
                self._note_ended(run)

    def doubt(self) -> None:
        """A reply was lost: look again at all that it may have told."""
        self.dispatch.doubt()
        self._to_pack |= set(self.ownership.tokens)

    def upkeep(self) -> None:
        if time.monotonic() >= self._next_beat():
            self._due["beat"] = time.monotonic() + self.store.settings.lease_ms / 3000
            beat = self.ownership.beat()
            self._clock_ahead = beat.now - time.monotonic() * 1000
            self.dispatch.sync()
            # Of a shard that is new to us: what has ended there may not be packed, and what follows it not started.
            self._to_pack |= set(self.ownership.tokens) - set(self.dispatch.states)
            for shard in self.ownership.tokens:
                self.dispatch.state(shard)
        if self._is_due("reoffer", REOFFER_EVERY_S):
            self._each(
                self.dispatch.reoffer, [s for s, x in self.dispatch.states.items() if x.outbox and not x.more]
            )
        if self._is_due("sweep", SWEEP_EVERY_S):
            self._to_pack |= set(self.ownership.tokens)
        if self._is_due("pack", 1.0):
            self._each(self._pack, list(self._to_pack))
        if self.ownership.leads():
            self._lead(fence(self.ownership.leader))
        self.audit.step()

    def _next_beat(self) -> float:
        """Three in a lease; two when nothing happens; more while shards are on their way to us, and one soon after
        another's lease has ended. By the monotonic clock.
        """
        lease_s = self.store.settings.lease_ms / 1000
        more = -1 if self.ownership.short else 1 if self._idle else 0
        wanted = self._due.get("beat", 0.0) + more * lease_s / 6
        if self.ownership.look_at:
            ended = (self.ownership.look_at - self._clock_ahead) / 1000
            wanted = min(wanted, ended + lease_s / 12)
        return wanted

    def _lead(self, token: int) -> None:
        lease_s = self.store.settings.worker_lease_ms / 1000
        try:
            if self._is_due("reap", lease_s * 0.8) and self.leader.reap(token):
                self._due["reap"] -= lease_s * 0.6  # because somebody runs something, and may die
            if self._is_due("retain", RETAIN_EVERY_S):
                if not self.leader.retain(self.redis_now()) and self.leader.has_seen_all:
                    self._due["retain"] += RETAIN_EVERY_S * 9
                self.leader.tidy(token)
                self.leader.miss()
        except Fenced as refusal:
            self.ownership.resign(refusal)

    def _each(self, work: Callable[[int], None], shards: list[int]) -> None:
        for shard in shards:
            if shard in self.ownership.tokens:
                try:
                    work(shard)
                except Fenced as refusal:
                    self.dispatch.deposed(shard, refusal)

    def _pack(self, shard: int) -> None:
        runs = self.store.shard.to_pack(shard, PACK_BATCH)
        if runs:
            start_followers(self.store, runs)
            self.store.shard.pack(shard, self.ownership.tokens[shard], runs)
        if len(runs) < PACK_BATCH:
            self._to_pack.discard(shard)

    def _note_ended(self, ended: Ended) -> None:
        self._to_pack.add(self.store.shard.of(ended.run.partition("/")[0]))
        level = logging.INFO if ended.state == "success" else logging.WARNING
        log.log(level, "run %s %s in %.1f s", ended.run, ended.state, ended.ms / 1000)

    # ---- waiting

    def _wait_ms(self) -> int:
        wait = max(0.0, self._next_beat() - time.monotonic()) * 1000
        wait = min(wait, self.audit.wait_s() * 1000)
        timer = self.dispatch.next_timer()
        if timer:
            wait = min(wait, max(0, timer - self.redis_now()))
        return int(min(wait, self.store.clients.block_ms)) + 1

    def wait(self, ms: int) -> list[int]:
        """Shards whose inbox holds something; what was applied is off the inbox, so reading starts at 0."""
        shards = list(self.ownership.tokens)
        if not shards:
            self._sleep(ms / 1000)
            return []
        return self.store.shard.wait(shards, ms, self._reading)

    @property
    def stopping(self) -> bool:
        return self.asked_to_stop or self.stop.is_set()

    def _reading(self, reading: bool) -> None:
        self.waiting = reading
        if reading and self.stopping:
            raise Stop

    def _sleep(self, seconds: float) -> None:
        self._reading(True)
        time.sleep(seconds)
        self._reading(False)

    def _hand_over(self) -> None:
        self.dispatch.hooks.close()
        try:
            self.ownership.leave()
        except Unavailable as error:
            log.warning("could not hand over, others take the shards when the lease is over: %s", error)
        self.store.events.add("scheduler_left", f"scheduler {self.ownership.name} stopped")
        log.info("scheduler %s stopped", self.ownership.name)


def run_scheduler(settings: Settings, *, stop: threading.Event | None = None, name: str | None = None) -> int:
    """A scheduler process: until SIGTERM or SIGINT, or until `stop` is set. Returns the exit code.

    Raises Unavailable if Redis can't be reached at the start, or is one that would lose state.
    """
    store = Store.open(settings, "scheduler")
    scheduler = Scheduler(store, name, stop)

    def on_signal(number: int, frame: FrameType | None) -> None:
        scheduler.asked_to_stop = True
        if scheduler.waiting:
            scheduler.waiting = False
            raise Stop

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
    try:
        for warning in check_server(store):
            log.warning("%s", warning)
        scheduler.run()
    finally:
        store.close()
    return 0
