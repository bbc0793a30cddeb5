"""Carrying out an edit: look at the run, plan, commit if it is still so, else look again.

Between the pure planner (`redsched/edit.py`) and the scripts; the client and backfills use it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redsched.edit import Edit, Graph, Now
from redsched.errors import Conflict
from redsched.states import ENDED
from redsched.store import Store
from redsched.store.codec import RunRecord, decode_record

# How long to wait until the owner has carried out a big edit, and how often to plan anew.
PATIENCE_S = 10.0
TRIES = 200

Plan = Callable[[Graph, Now], Edit]
Say = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Edited:
    """What an edit did, or in a dry run would do. `stopped`: attempts that are (or would be) stopped."""

    edit: Edit
    names: tuple[str, ...]
    run_state: str
    stopped: int
    version: int


def once(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


def edit_run(
    store: Store, dag: str, run: str, plan: Plan, *, dry_run: bool = False, say: Say = once
) -> Edited:
    """Raises NotFound, or Conflict if the run changes too fast to be edited. `say` may say calls again."""
    for again in range(TRIES):
        nonce = secrets.token_hex(6)
        record: RunRecord = say(store.shard.record, dag, run)
        graph = Graph.of(*say(store.shard.plan, dag, record.digest))
        edit = plan(graph, now_of(record, len(graph.names)))
        if dry_run or not edit.changes:
            state = _state_after(store, dag, record, edit, say)
            return Edited(edit, graph.names, state, _live(record, edit), record.version)
        seen = f"{record.state}/{record.left}/{record.edits}"
        word, state, stopped = say(store.shard.edit_run, dag, run, seen, nonce, edit.changes)
        if word == "STAGED":
            word, state, stopped = "OK", thawed(store, dag, run, say), _live(record, edit)
        if word == "OK":
            say(store.shard.revoke_stops, store.shard.of(dag))
            return Edited(edit, graph.names, state, stopped, record.version)
        if word == "PACKED":
            say(store.shard.unpack_run, dag, run)
        else:
            time.sleep(min(0.05, 0.001 * again))
    raise Conflict(f"run {run} of DAG {dag} changes too fast to be edited; try again")


def now_of(record: RunRecord, size: int) -> Now:
    """What the planner needs to know of a run."""
    tasks = [decode_record(record.tasks.get(i)) for i in range(size)]
    return Now(
        states=tuple(t.state for t in tasks),
        by_rule=tuple(t.attempt == 0 and not record.marked(i) for i, t in enumerate(tasks)),
        not_chosen={i: c for i in range(size) if (c := record.not_chosen(i))},
        fresh=record.state == "queued" or (record.state in ENDED and record.left > 0),
    )


def thawed(store: Store, dag: str, run: str, say: Say = once) -> str:
    """The run's state when its owner has carried out a big edit; `running` if no owner does within the patience."""
    end, pause = time.monotonic() + PATIENCE_S, 0.005
    while time.monotonic() < end:
        frozen, state = say(store.shard.frozen, dag, run)
        if not frozen:
            return str(state)
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)
    return "running"


def _live(record: RunRecord, edit: Edit) -> int:
    live = ("ready", "queued", "running")
    return sum(decode_record(record.tasks.get(i)).state in live for i in edit.changes)


def _state_after(store: Store, dag: str, record: RunRecord, edit: Edit, say: Say) -> str:
    if not edit.changes or (edit.run_state == "running" and record.state in ("running", "queued")):
        return record.state
    if edit.run_state == "running":
        return "running" if say(store.shard.room, dag) else "queued"
    return "ended"
