"""What only one process does: take back what silent workers held, and let old runs go.

Every pass is bounded and shows the leader's fence to the pools; a deposed leader is refused there.
"""

from __future__ import annotations

import logging
from collections import deque

from redsched.store import Store

log = logging.getLogger("redsched.scheduler")

DAGS_A_PASS = 50
RUNS_A_PASS = 200
CONSUMER_IDLE_MS = 3_600_000


class Leader:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.rested = False  # set after an outage of Redis
        self._dags: deque[str] = deque()

    def reap(self, fence: int) -> bool:
        """Take back what silent workers held; True if any attempt is under a lease, so that it pays to look again soon.

        Losses are reported to their shards before the pools forget them: a crash between does it again.
        Raises Fenced if a pool has seen a higher fence.
        """
        rested, self.rested = self.rested, False
        leased = False
        for pool in self.store.pool.names():
            held, lost = self.store.pool.reap(pool, fence, rested=rested)
            leased |= held > 0
            if lost:
                self.store.shard.lost(lost)
                self.store.pool.reaped(pool, list(lost))
                for attempt, worker in lost.items():
                    log.warning("%s taken back: worker %s fell silent", attempt, worker)
        return leased

    def tidy(self, fence: int) -> None:
        """Consumers of workers that are long gone leave their groups. Raises Fenced."""
        for pool in self.store.pool.names():
            self.store.pool.tidy(pool, fence, CONSUMER_IDLE_MS)

    @property
    def has_seen_all(self) -> bool:
        """`retain` has been through all DAGs, and begins anew."""
        return not self._dags

    def retain(self, now: int) -> int:
        """Forget runs beyond each DAG's age and count, a few DAGs a pass; returns how many went."""
        if not self._dags:
            self._dags.extend(self.store.shard.all_dags())
        gone = 0
        for _ in range(min(DAGS_A_PASS, len(self._dags))):
            dag = self._dags.popleft()
            for run in self.store.shard.expired(dag, now, RUNS_A_PASS):
                gone += self.store.shard.forget_run(dag, run)
        return gone
