"""A DAG may start after another: when a run of that one has succeeded, with its logical date.

The list of runs that ended and are not packed yet is the outbox: followers are started before a run is packed, so a crash
between does it again, and a run's id says which run it follows, so that again is once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from redsched.errors import NotFound
from redsched.keys import dated_run_id
from redsched.store import Store

log = logging.getLogger("redsched.scheduler")


def start_followers(store: Store, runs: Sequence[tuple[str, str]]) -> int:
    """Start what follows these (dag, run) that have ended; returns how many runs were made or were there already."""
    followers = store.control.after()
    wanted = [(dag, run) for dag, run in runs if dag in followers]
    started = 0
    for (dag, run), record in zip(wanted, store.shard.records(wanted) if wanted else (), strict=True):
        if record is None or record.state != "success":
            continue
        for follower in followers[dag]:
            ident = dated_run_id(record.logical) if record.logical is not None else f"after-{run}"[:128]
            try:
                store.shard.create_run(follower, ident, "event", record.logical, "", f"after {dag}/{run}")
                started += 1
            except NotFound:
                log.warning("%s should start after %s, but does not exist", follower, dag)
    return started
