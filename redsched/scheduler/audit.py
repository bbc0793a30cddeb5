"""The audit in the background: each owner counts its shards again, the leader the pools, slowly and in small steps.

What it repairs is an event. One without a failover of Redis behind it is a defect, and says so. People ask for a round
of their own (`doctor --audit`, `--fix`) through the control cell, because only an owner writes in its shard.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from redsched.auditing import Findings, PoolRound, Scope, Shapes, ShardRound, Steps, everything, live_runs
from redsched.errors import Fenced, RedschedError, Unavailable
from redsched.scheduler.balance import holder
from redsched.scheduler.ownership import Ownership, fence
from redsched.store import Store

log = logging.getLogger("redsched.scheduler")

# A shard in which something happens is looked at so often, others so rarely; a round takes as long as it takes.
ROUND_S, IDLE_ROUND_S = 60.0, 600.0
# A start is no time for it, neither is a failover.
FIRST_S = 5.0
# A step may take this part of a scheduler's time; on a person's request more.
SHARE, ASKED_SHARE = 0.04, 0.5
# Requests are looked for so often where something happens (a request makes something happen), and so rarely elsewhere.
ASK_EVERY_S, IDLE_ASK_S = 1.0, 60.0
IDLE_S = 1.0
DAGS_A_ROUND = 100
EVENTS_A_ROUND = 20
FAILOVER_MS = 3_600_000
FIX_PATIENCE_S = 60.0
FIXES = 3


@dataclass(slots=True)
class Round:
    """One that is under way."""

    cell: str
    work: ShardRound | PoolRound
    steps: Steps[None]
    asked: str = ""


class Audit:
    """Does a step of a round whenever it may; costs nothing where nothing happens."""

    def __init__(self, store: Store, ownership: Ownership) -> None:
        self.store = store
        self.ownership = ownership
        self.shapes = Shapes(store)
        self._round: Round | None = None
        self._next = 0.0
        self._asked_at = self._ask_at = 0.0
        self._over: dict[str, float] = {}  # cell -> when its last round was over
        self._busy: set[int] = set()
        self._pools: list[str] = []
        self._pools_at = 0.0
        self._cursors: dict[int, int] = {}

    def happened(self, shards: Iterable[int]) -> None:
        """Something was done in these shards: they are looked at in a while."""
        self._busy.update(shards)
        self._ask_at = min(self._ask_at, self._asked_at + ASK_EVERY_S)

    def outage(self, seconds: float) -> None:
        """Redis was away: perhaps another one answers now, which lacks the last writes. Everything is looked at soon."""
        self._busy.update(range(self.store.shards))
        self._over.clear()
        self.store.events.add("redis", f"Redis is back after {seconds:.1f} s, says {self.ownership.name}")

    def wait_s(self) -> float:
        """When the round that is under way goes on; long if there is none."""
        return max(0.0, self._next - time.monotonic()) if self._round else IDLE_ROUND_S

    def step(self) -> None:
        """Raises Unavailable; the round is then begun anew."""
        now = time.monotonic()
        if now < self._next:
            return
        current, self._round = self._current(now), None
        if current is None:
            self._next = now + IDLE_S
            return
        pause, again = self._go(current)
        if again:
            self._round = current
        spent = time.monotonic() - now
        self._next = now + spent + max(pause, spent / (ASKED_SHARE if current.asked else SHARE))

    def _current(self, now: float) -> Round | None:
        """The round that is under way, if the shard is still ours as it was; a request goes before one of our own."""
        current = self._round
        if current and isinstance(current.work, ShardRound):
            current = current if self.ownership.tokens.get(current.work.shard) == current.work.token else None
        if current and current.asked:
            return current
        return self._requested(now) or current or self._own(now)

    def _go(self, current: Round) -> tuple[float, bool]:
        """One step: (how long to wait before the next, whether there is one)."""
        try:
            return next(current.steps), True
        except StopIteration:
            self._end(current)
        except Unavailable:
            raise
        except Fenced as refusal:
            if isinstance(current.work, ShardRound):
                self.ownership.deposed(current.work.shard, refusal)
            elif self.ownership.leads() and current.work.fence == fence(self.ownership.leader):
                self.ownership.resign(refusal)
        except RedschedError as error:  # because an audit must never stop what it looks at
            log.error("audit of %s given up: %s", current.cell, error)
            if current.asked:
                self.store.audit.served(current.cell)
        return 0.0, False

    # ---- which round

    def _requested(self, now: float) -> Round | None:
        if now < self._ask_at:
            return None
        self._asked_at, self._ask_at = now, now + IDLE_ASK_S
        for cell, asked in self.store.audit.requests().items():
            if found := self._asked(cell, asked):
                self._ask_at = now + ASK_EVERY_S  # there may be more
                return found
        return None

    def _own(self, now: float) -> Round | None:
        due = self._due(now)
        if not due:
            return None
        # In turn: a long round of one keeps no other waiting for ever.
        cell = min(due, key=self._over.__getitem__)
        kind, _, name = cell.partition(":")
        return self._of_pool(name) if kind == "p" else self._of_shard(int(name), self._background(int(name)))

    def _due(self, now: float) -> list[str]:
        cells = {f"s:{x}": ROUND_S if x in self._busy else IDLE_ROUND_S for x in self.ownership.tokens}
        if self.ownership.leads():
            if now >= self._pools_at:
                self._pools, self._pools_at = self.store.pool.names(), now + ROUND_S
            cells |= {f"p:{pool}": ROUND_S for pool in self._pools}
        for cell, every_s in cells.items():
            if cell not in self._over:
                self._over[cell] = now - every_s + FIRST_S + self._apart(cell, every_s)
        return [c for c, every_s in cells.items() if now - self._over[c] >= every_s]

    def _apart(self, cell: str, every_s: float) -> float:
        """Shards in which nothing happens take their first turns spread over a round: a start is no time for all of them."""
        return 0.0 if every_s == ROUND_S else every_s * int(cell[2:]) / self.store.shards

    def _asked(self, cell: str, asked: str) -> Round | None:
        kind, _, name = cell.partition(":")
        if kind == "p":
            return self._of_pool(name, asked) if self.ownership.leads() else None
        if int(name) not in self.ownership.tokens:
            return None
        return self._of_shard(int(name), scope_of(json.loads(asked)), asked)

    def _background(self, shard: int) -> Scope:
        """Live runs with their DAGs; and where something happens some of the other DAGs, in turn."""
        dags: list[str] = []
        if shard in self._busy:
            cursor = self._cursors.get(shard, 0)
            self._cursors[shard], dags = self.store.audit.some_dags(shard, cursor, DAGS_A_ROUND)
        return Scope(live_runs(self.store, shard), {dag: set() for dag in dags})

    def _of_shard(self, shard: int, scope: Scope, asked: str = "") -> Round:
        work = ShardRound(self.store, shard, self.shapes, self.ownership.tokens[shard])
        return Round(f"s:{shard}", work, work.steps(scope), asked)

    def _of_pool(self, pool: str, asked: str = "") -> Round:
        work = PoolRound(self.store, pool, fence(self.ownership.leader))
        return Round(f"p:{pool}", work, work.steps(), asked)

    # ---- its end

    def _end(self, current: Round) -> None:
        self._over[current.cell] = time.monotonic()
        found = current.work.findings
        if isinstance(current.work, ShardRound) and not current.asked:
            seen_all = not self._cursors.get(current.work.shard)  # of its DAGs, round by round
            if seen_all and not found.looked:
                self._busy.discard(current.work.shard)
        if found.differences:
            tell(self.store, found)
        if current.asked:
            self.store.audit.served(current.cell)


def tell(store: Store, found: Findings) -> None:
    """What was repaired, as events that say whether a failover explains them."""
    expected = failover_seen(store)
    why = (
        "as after a failover"
        if expected
        else "no failover of Redis was seen: this is a defect, please report it"
    )
    for d in found.repaired[:EVENTS_A_ROUND]:
        log.warning("audit repaired %s (%s)", d, why)
        store.events.add("audit", f"repaired {d} ({why})", expected=expected, **d.shown())
    if (more := len(found.repaired) - EVENTS_A_ROUND) > 0:
        store.events.add("audit", f"repaired {more} more differences in {found.repaired[0].cell} ({why})")
    for d in found.left[:EVENTS_A_ROUND]:
        log.error("audit found, and could not repair, %s", d)


def failover_seen(store: Store) -> bool:
    """Whether a scheduler found Redis away within the last hour."""
    since = store.control.now() - FAILOVER_MS
    return any(e.kind == "redis" and e.ms >= since for e in store.events.last(1000))


# ---- asked by a person


def audit(store: Store, *, fix: bool = False, sleep: Callable[[float], None] = time.sleep) -> Findings:
    """Everything counted again. `fix`: what differs is repaired by the owners, or by us if no scheduler is alive."""
    scopes, pools = everything(store), store.pool.names()
    found, cells = _look(store, scopes, pools, sleep)
    if not fix or not found.differences:
        return found
    for _ in range(FIXES):  # a repair can show what was hidden
        if any(left > 0 for left in store.control.schedulers().values()):
            _ask_owners(store, cells, sleep)
        else:
            _repair_alone(store, cells, sleep)
        again, cells = _look(store, everything(store), pools, sleep)
        found.differences += [d for d in again.differences if d not in found.differences]
        found.unsure = again.unsure
        if not again.differences:
            break
    found.repaired = [d for d in found.differences if d not in again.differences]
    return found


Cells = dict[str, dict[str, Any]]


def scope_of(asked: dict[str, Any]) -> Scope:
    return Scope([(d, r) for d, r in asked["runs"]], {d: set(n) for d, n in asked["dags"].items()})


def _look(
    store: Store, scopes: dict[int, Scope], pools: list[str], sleep: Callable[[float], None]
) -> tuple[Findings, Cells]:
    """All rounds one after the other, without repairing; (what they came to, what to ask the owners for)."""
    found, cells, shapes = Findings(), Cells(), Shapes(store)
    work: list[tuple[str, ShardRound | PoolRound, Steps[None]]] = []
    for shard, scope in scopes.items():
        one = ShardRound(store, shard, shapes)
        work.append((f"s:{shard}", one, one.steps(scope)))
    for pool in pools:
        other = PoolRound(store, pool)
        work.append((f"p:{pool}", other, other.steps()))
    for cell, round_, steps in work:
        for pause in steps:
            sleep(pause)
        if round_.findings.differences:
            cells[cell] = _named(round_.findings, scopes.get(int(cell[2:])) if cell[0] == "s" else None)
        found.looked += round_.findings.looked if cell[0] == "s" else 0
        found.differences += round_.findings.differences
        found.unsure |= round_.findings.unsure
    return found, cells


def _named(found: Findings, scope: Scope | None) -> dict[str, Any]:
    runs = {(d.dag, d.run) for d in found.differences if d.dag and d.run}
    dags = {d.dag for d in found.differences if d.dag}
    return {
        "runs": sorted(runs),
        "dags": {dag: sorted(scope.dags.get(dag, ())) if scope else [] for dag in sorted(dags)},
    }


def _ask_owners(store: Store, cells: Cells, sleep: Callable[[float], None]) -> None:
    """They answer by taking the request away; a shard without an owner gets one within seconds."""
    store.audit.request(cells)
    for shard in range(store.shards):
        store.audit.wake(shard)
    end = time.monotonic() + FIX_PATIENCE_S
    while time.monotonic() < end and set(store.audit.requests()) & set(cells):
        sleep(0.2)


def _repair_alone(store: Store, cells: Cells, sleep: Callable[[float], None]) -> None:
    """Nobody is alive: be the owner of each shard for a moment. A scheduler that starts meanwhile waits until we have left."""
    name = f"doctor:{socket.gethostname()[:40]}:{os.getpid()}"
    owners = store.control.owners()
    try:
        for cell, asked in cells.items():
            kind, _, place = cell.partition(":")
            beat = store.control.beat(name, store.settings.lease_ms)
            if kind == "s":
                before = holder(owners.get(int(place), ""))
                _repair_shard(store, int(place), scope_of(asked), name, before, sleep)
            elif holder(beat.leader) == name:
                pool = PoolRound(store, place, fence(beat.leader))
                for pause in pool.steps():
                    sleep(pause)
                tell(store, pool.findings)
    finally:
        store.control.leave(name)


def _repair_shard(
    store: Store, shard: int, scope: Scope, name: str, before: str, sleep: Callable[[float], None]
) -> None:
    mine, token = store.shard.acquire(shard, name, before)
    if not mine:
        return
    try:
        work = ShardRound(store, shard, Shapes(store), token)
        for pause in work.steps(scope):
            store.control.beat(name, store.settings.lease_ms, look=False)
            while store.shard.advance(shard, token, 200).more:
                pass
            sleep(pause)
        while store.shard.advance(shard, token, 200).more:
            pass
        store.shard.revoke_stops(shard)
        tell(store, work.findings)
    finally:
        store.shard.release(shard, token)
        store.control.note_owner(shard, "")
