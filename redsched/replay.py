"""A run on a clock of its own: tasks of given durations through the graph, its pools and its limits.

Pure: a discrete-event replay that admits as `lua/lib/run.lua` and `lua/lib/pool.lua` do, for one run that has the pools
to itself. Times are whole milliseconds since the run began.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from redsched.edit import CLASS, Graph
from redsched.rules import decide

# As lua/lib/pool.lua: so many in line are looked at for one that fits.
LOOK: Final = 8


@dataclass(frozen=True, slots=True)
class Span:
    """A task in a run: it waited for upstream until `ready`, ran from `started` to `ended`.

    `retrying` is the part of ready → started from the first attempt's start until the last one was ready.
    `ran` is false for what was settled by its rule or by a person.
    """

    state: str
    ready: int
    started: int
    ended: int
    retrying: int = 0
    ran: bool = True

    @property
    def slot(self) -> int:
        return self.started - self.ready - self.retrying

    @property
    def running(self) -> int:
        return self.ended - self.started


@dataclass(frozen=True, slots=True)
class Job:
    """What a replay needs to know of a task. `lag` goes by before it is ready, `delay` and `retrying` after that and
    before it asks for a slot; then it waits as long as its pool and its limits make it, and runs.
    """

    running: int
    lag: int = 0
    delay: int = 0
    retrying: int = 0
    state: str = "success"
    ran: bool = True
    pool: str = "default"
    slots: int = 1
    priority: int = 0
    key: str = ""
    key_limit: int = 0


def replay(
    graph: Graph, jobs: Sequence[Job], pools: Mapping[str, int] | None = None, limit: int | None = None
) -> list[Span]:
    """Run the jobs on a clock of their own. `pools`: slots by name, a pool that is not named has no bound;
    `limit`: how many tasks are active at a time (`max_active_tasks`).
    """
    return _Replay(graph, jobs, pools or {}, limit).run()


class _Replay:
    """Events by time; at each time first all that happens, then the pools give out what is free."""

    def __init__(
        self, graph: Graph, jobs: Sequence[Job], pools: Mapping[str, int], limit: int | None
    ) -> None:
        self.graph, self.jobs, self.pools = graph, jobs, pools
        self.free = dict(pools)
        self.limits = {"": limit} if limit is not None else {}
        self.limits |= {f"key:{j.key}": j.key_limit for j in jobs if j.key and j.key_limit}
        if min([1, *pools.values(), *(x for x in self.limits.values() if x is not None)]) < 1:
            raise ValueError("a replay needs at least one slot in each pool")
        self.active: Counter[str] = Counter()
        self.parked: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.waiting: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self.passed: Counter[str] = Counter()
        self.touched: set[str] = set()
        self.events: list[tuple[int, int, int]] = []  # time, 0 end or 1 ask, task
        self.counts = [[0, 0, 0] for _ in jobs]
        self.ready: list[int | None] = [None] * len(jobs)
        self.started = [0] * len(jobs)
        self.ended = [0] * len(jobs)
        self.asked = 0

    def run(self) -> list[Span]:
        for i, needs in enumerate(self.graph.needs):
            if not needs or self.graph.rules[i] == "always":
                self.decided(i, 0)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, kind, i = heappop(self.events)
                if kind:
                    self.ask(i)
                else:
                    self.end(i, now)
            self.admit(now)
        return [
            Span(j.state, r or 0, s, e, j.retrying, j.ran)
            for j, r, s, e in zip(self.jobs, self.ready, self.started, self.ended, strict=True)
        ]

    def decided(self, index: int, now: int) -> None:
        job = self.jobs[index]
        at = self.ready[index] = now + job.lag
        if job.ran:
            heappush(self.events, (at + job.delay + job.retrying, 1, index))
        else:
            self.started[index] = at
            heappush(self.events, (at, 0, index))

    def end(self, index: int, now: int) -> None:
        job, self.ended[index] = self.jobs[index], now
        if job.ran:
            if job.pool in self.free:
                self.free[job.pool] += self.width(job)
            self.touched.add(job.pool)
            self.leave(job)
        kind = CLASS[job.state]
        for child in self.graph.downstream[index]:
            if self.ready[child] is None:
                self.counts[child][kind] += 1
                n = len(self.graph.needs[child])
                if decide(self.graph.rules[child], n, *self.counts[child]) != "wait":
                    self.decided(child, now)

    def width(self, job: Job) -> int:
        return min(job.slots, self.pools[job.pool])

    # As in lua/lib/run.lua: places under the limits first, and without them no place in the pool's line.

    def limits_of(self, job: Job) -> Iterator[str]:
        if "" in self.limits:
            yield ""
        if job.key and job.key_limit:
            yield f"key:{job.key}"

    def full(self, name: str) -> bool:
        return self.active[name] >= (self.limits[name] or 0)

    def ask(self, index: int) -> None:
        job = self.jobs[index]
        for name in self.limits_of(job):
            if self.full(name):
                heappush(self.parked[name], (-job.priority, index))
                return
        self.active.update(self.limits_of(job))
        self.asked += 1
        insort(self.waiting[job.pool], (-job.priority, self.asked, index))
        self.touched.add(job.pool)

    def leave(self, job: Job) -> None:
        names = list(self.limits_of(job))
        self.active.subtract(names)
        for name in names:
            while self.parked[name] and not self.full(name):
                self.ask(heappop(self.parked[name])[1])

    # As in lua/lib/pool.lua: the first in line, or one that fits before it, until so much was given past it.

    def admit(self, now: int) -> None:
        for pool in self.touched:
            line = self.waiting[pool]
            while (at := self.next_in_line(pool, line)) is not None:
                index = line.pop(at)[2]
                self.started[index] = now
                heappush(self.events, (now + self.jobs[index].running, 0, index))
        self.touched.clear()

    def next_in_line(self, pool: str, line: Sequence[tuple[int, int, int]]) -> int | None:
        if not line or pool not in self.free:
            return 0 if line else None
        for at in range(min(LOOK, len(line))):
            width = self.width(self.jobs[line[at][2]])
            if width <= self.free[pool]:
                self.passed[pool] = self.passed[pool] + width if at else 0
                self.free[pool] -= width
                return at
            if self.passed[pool] >= self.pools[pool]:
                return None
        return None
