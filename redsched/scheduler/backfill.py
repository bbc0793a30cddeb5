"""Backfills: their runs are made one by one, as the backfill's own limit and the DAG's allow, never all at once.

A date that has a run already is left alone, or run again, as `on_existing` says; a run in flight is never made again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from redsched.edit import Edit, Graph, Now, plan_clear, select
from redsched.editing import edit_run
from redsched.errors import Conflict, NotFound
from redsched.keys import dated_run_id
from redsched.scheduler.calendar import read
from redsched.states import ENDED
from redsched.store import Store
from redsched.store.pool import Offer
from redsched.store.shard import DueBackfill

log = logging.getLogger("redsched.scheduler")

BACKFILLS_A_PASS = 20
RUNS_A_STEP = 16
# When nothing can be made now, look again: another run of the DAG may have ended meanwhile.
LOOK_AGAIN_MS = 2000


def next_dates(due: DueBackfill) -> tuple[list[int], int | None]:
    """(the dates to deal with now, where it goes on or None)."""
    fields = due.fields
    cursor = int(fields["cursor"]) if fields.get("cursor") else None
    first, last = int(fields["first"]), int(fields["last"])
    schedule, _ = read(fields["schedule"])
    newest = fields.get("order") == "newest"
    dates: list[int] = []
    while cursor is not None and len(dates) < min(due.room, RUNS_A_STEP):
        dates.append(cursor)
        following = schedule.last_before(cursor) if newest else schedule.next_after(cursor)
        cursor = following if following is not None and first <= following <= last else None
    return dates, cursor


class Backfills:
    """Moves the backfills of one shard on."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def step(self, shard: int, token: str, now: int, pools: Sequence[str] = ()) -> list[Offer]:
        """Offers of the runs that were made. Raises Fenced."""
        offers: list[Offer] = []
        for due in self.store.shard.backfill_due(shard, token, BACKFILLS_A_PASS):
            dates, cursor = next_dates(due)
            runs = [(ms, dated_run_id(ms)) for ms in dates]
            look = now if cursor is not None and len(dates) == RUNS_A_STEP else now + LOOK_AGAIN_MS
            # Before the cursor goes on: so none is lost if we die here, and the backfill isn't over while they run.
            for run in self._existing(due, dates):
                self._again(shard, token, due, run)
            offers += self.store.shard.backfill_step(shard, token, due, cursor, look, runs, pools)[1]
        return offers

    def _existing(self, due: DueBackfill, dates: list[int]) -> list[str]:
        """The runs that may have to run again."""
        if not dates or due.fields.get("on_existing", "skip") == "skip":
            return []
        wanted = set(dates)
        known = self.store.shard.dated_runs(due.dag, min(dates), max(dates))
        return [run for ms, run in known if ms in wanted]

    def _again(self, shard: int, token: str, due: DueBackfill, run: str) -> None:
        """Run an existing run again: all of it, or what failed in it."""
        only_failed = due.fields["on_existing"] == "failed"
        try:
            record = self.store.shard.record(due.dag, run)
            if record.state not in ENDED or (only_failed and record.state == "success"):
                return
            self.store.shard.unpack_run(due.dag, run)
            if not self.store.shard.backfill_adopt(shard, token, due, run):
                return

            def plan(graph: Graph, now: Now) -> Edit:
                return plan_clear(graph, now, select(graph, now, None, only_failed=only_failed))

            if edit_run(self.store, due.dag, run, plan).edit.changes:
                return
            refusal = "nothing in it is to run again"
        except (NotFound, Conflict) as error:
            refusal = str(error)
        log.warning("backfill %s: run %s of %s is left as it is: %s", due.id, run, due.dag, refusal)
        self.store.shard.backfill_adopt(shard, token, due, run, wanted=False)
