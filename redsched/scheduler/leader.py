"""What only one process does: take back what silent workers held, and let old runs go.

Every pass is bounded and shows the leader's fence to the pools; a deposed leader is refused there.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque

from redsched.store import Store

log = logging.getLogger("redsched.scheduler")

DAGS_A_PASS = 50
RUNS_A_PASS = 200
CONSUMER_IDLE_MS = 3_600_000
# So many losses in a row a task survives (lua/lib/inbox.lua).
POISON = 3
TOLD = 20


class Leader:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.rested = False  # set after an outage of Redis
        self._dags: deque[str] = deque()
        self._silent: set[str] = set()  # told of since the last `miss`
        self._missed_at = time.monotonic()

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
                poison = [i for i, times in self.store.audit.losses(list(lost)).items() if times >= POISON]
                self.store.shard.lost(lost)
                self.store.pool.reaped(pool, list(lost))
                self._tell(lost, poison)
        return leased

    def _tell(self, lost: dict[str, str], poison: list[str]) -> None:
        for attempt, worker in lost.items():
            log.warning("%s taken back: worker %s fell silent", attempt, worker)
        for worker, count in Counter(lost.values()).items():
            self._silent.add(worker)
            text = f"worker {worker} fell silent, {count} attempts are taken back"
            self.store.events.add("worker_lost", text, worker=worker, attempts=count)
        for attempt in poison[:TOLD]:
            text = f"{attempt} has failed: lost with its worker {POISON + 1} times in a row"
            self.store.events.add("poison", text, attempt=attempt, worker=lost[attempt])

    def miss(self) -> None:
        """Workers that fell silent without holding anything are told of, too: once, by when their time was over."""
        now, since = time.monotonic(), self._missed_at
        self._missed_at = now
        for worker in self.store.control.fell_silent(int((now - since) * 1000)):
            if worker not in self._silent:
                self.store.events.add("worker_lost", f"worker {worker} fell silent", worker=worker)
        self._silent.clear()

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
