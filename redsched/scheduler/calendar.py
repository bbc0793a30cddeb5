"""Slots become runs: which of a DAG's due slots run, which are only recorded, and when to look again.

The decision is pure (`decide`); the owner of the shard carries it out in one script that also moves the index.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from redsched.errors import DefinitionError
from redsched.keys import dated_run_id
from redsched.store import Store
from redsched.store.pool import Offer
from redsched.store.shard import Due, Ended, Firing

if TYPE_CHECKING:
    from redsched.schedule import Schedule

log = logging.getLogger("redsched.scheduler")

DAGS_A_CALL = 150
# Runs of one DAG that a pass makes when it catches up; the queue of the DAG bounds the rest.
RUNS_A_PASS = 16
QUEUE_ROOM = 100
# Slots that one pass walks: an outage of a year at one a minute is worked off in slices.
WALK = 2000
LOOK_AGAIN_MS = 2000
UNREADABLE_MS = 600_000


@dataclass(frozen=True, slots=True)
class Decision:
    """`following` is the next slot not dealt with, None if there is none; `look` when to deal with it."""

    runs: list[int]
    skips: list[tuple[int, str]]
    following: int | None
    look: int


def decide(
    next_after: Callable[[int], int | None], slot: int, now: int, *, catchup: bool, queued: int, spread: int
) -> Decision:
    """What becomes of the slots from `slot` to `now`. Without catchup only the latest runs, the others leave a record."""
    due: list[int] = []
    following: int | None = slot
    while following is not None and following + spread <= now and len(due) < WALK:
        due.append(following)
        following = next_after(following)
    if catchup:
        room = max(0, min(RUNS_A_PASS, QUEUE_ROOM - queued))
        runs, rest = due[:room], due[room:]
        if rest:
            return Decision(runs, [], rest[0], now + LOOK_AGAIN_MS if room < RUNS_A_PASS else now)
        return Decision(runs, [], following, _look(following, spread))
    if len(due) == WALK and following is not None and following + spread <= now:
        return Decision([], [(ms, "missed") for ms in due], following, now)
    missed = [(ms, "missed: nobody was there, or the DAG was paused (catchup is off)") for ms in due[:-1]]
    return Decision(due[-1:], missed, following, _look(following, spread))


def _look(following: int | None, spread: int) -> int:
    return 0 if following is None else following + spread


@lru_cache(maxsize=100_000)
def read(text: str) -> tuple[Schedule, dict[str, Any]]:
    """The schedule of a DAG as it is stored with it; equal ones are read once."""
    from redsched.schedule import Schedule

    stored = json.loads(text)
    return Schedule.from_stored(stored), stored


class Calendar:
    """Fires the due slots of one shard, some DAGs a call."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def fire(self, shard: int, token: str, pools: Sequence[str] = ()) -> tuple[list[Offer], list[Ended], int]:
        """(offers of the new runs, runs that ended by it, when to look next or 0). Raises Fenced."""
        now, look, due = self.store.shard.due(shard, token, DAGS_A_CALL)
        if not due:
            return [], [], look
        _, offers, ended, look = self.store.shard.fire(shard, token, [firing(d, now) for d in due], pools)
        return offers, ended, look


def firing(due: Due, now: int) -> Firing:
    """What becomes of the due slots of one DAG. One whose zone is not known here any more stops nobody else."""
    try:
        schedule, stored = read(due.schedule)
    except DefinitionError as error:
        log.error("DAG %s: its schedule can't be read, it is looked at again later: %s", due.dag, error)
        return Firing(due.dag, due.slot, due.slot, now + UNREADABLE_MS, "queue", [], [])
    decision = decide(
        schedule.next_after,
        due.slot,
        now,
        catchup=bool(stored.get("catchup")),
        queued=due.queued,
        spread=int(stored.get("offset", 0)),
    )
    runs = [(ms, dated_run_id(ms)) for ms in decision.runs]
    overlap = str(stored.get("overlap", "queue"))
    return Firing(due.dag, due.slot, decision.following, decision.look, overlap, runs, decision.skips)
