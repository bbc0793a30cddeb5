"""Why isn't it running? For each task what it waits for, who holds that, and whether it clears by itself or needs a person.

Pure but for `explain`. It can't go round in circles: tasks refer to their upstreams by name, and what holds a limit or a
slot has its place already, so that it can wait only for its pool, a worker or the scheduler.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redsched.edit import CLASS
from redsched.errors import NotFound
from redsched.keys import AttemptId
from redsched.rules import Decision, decide
from redsched.snapshot import LINE, SAMPLE, SHOWN, Limit, Live, Place, Pool, Snapshot, gather
from redsched.states import SETTLED
from redsched.store.pool import SHARE_MINUTES

if TYPE_CHECKING:
    from redsched.client import Client

T = TypeVar("T")

ITSELF: Final = "itself"
PERSON: Final = "person"
# A snapshot is not one moment: what seems to be nowhere has probably moved on, so it is looked at again.
LOOKS: Final = 4
LOOK_AGAIN_S: Final = 0.03
RUNS_LOOKED_AT: Final = 16
ROOTS: Final = 3
NAMED: Final = 50

MUST: Final = {
    "all_success": "all of its upstreams must succeed",
    "all_failed": "all of its upstreams must fail",
    "all_done": "all of its upstreams must have ended",
    "all_skipped": "all of its upstreams must be skipped",
    "one_success": "one of its upstreams must succeed",
    "one_failed": "one of its upstreams must fail",
    "one_done": "one of its upstreams must succeed or fail",
    "none_failed": "none of its upstreams may fail",
    "none_failed_min_one_success": "none of its upstreams may fail and one must succeed",
    "none_skipped": "none of its upstreams may be skipped",
    "all_done_min_one_success": "all of its upstreams must have ended, one of them with success",
    "always": "it waits for nothing",
}
ANY_DECIDES: Final = frozenset({"one_success", "one_failed", "one_done"})


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that a task waits for. `do`: what a person can do about it; never empty if it `clears` by a person."""

    kind: str
    detail: str
    clears: str = ITSELF
    do: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        do = {"do": self.do} if self.do else {}
        return {"kind": self.kind, "detail": self.detail, "clears": self.clears, **do, **self.more}


def explain(client: Client, dag: str, run: str, task: str | None = None) -> list[dict[str, Any]]:
    """What each task that has not started waits for, and why those that ended without success did.

    With `task`, that one first, whatever its state, and then those above it that it waits for. Raises NotFound.
    """
    for _ in range(LOOKS):
        snapshot = client._say(gather, client, dag, run)
        answer = Answer(snapshot, _stuck_runs(client, snapshot))
        if not any(r.kind == "repair" for some in answer.waits for r in some):
            break
        time.sleep(LOOK_AGAIN_S)
    return answer.rows(client._indexes(dag, snapshot.graph.names, [task])[0] if task is not None else None)


def _stuck_runs(client: Client, s: Snapshot) -> dict[str, Reason]:
    """What a person must do before the runs that keep this one in the queue go on, up to the first that goes on itself."""
    if s.record.state != "queued" or s.active < s.max_runs:
        return {}
    stuck: dict[str, Reason] = {}
    for run in s.active_runs[:RUNS_LOOKED_AT]:
        try:
            needs = Answer(client._say(gather, client, s.dag, run)).stuck()
        except NotFound:
            needs = None
        if needs is None:
            break
        stuck[run] = needs
    return stuck


class Answer:
    """The reasons of one snapshot, by task index. `waits` is empty for tasks that run or have ended."""

    def __init__(self, snapshot: Snapshot, stuck_runs: Mapping[str, Reason] | None = None) -> None:
        self.s = snapshot
        self.stuck_runs = stuck_runs or {}
        count = len(snapshot.tasks)
        self.states = [snapshot.of(i).state for i in range(count)]
        self.waits: list[list[Reason]] = [[] for _ in range(count)]
        self.clears = [ITSELF] * count
        self.roots: list[tuple[int, ...]] = [()] * count
        self._memo: dict[tuple[str, str], Any] = {}  # what is the same for all tasks of a pool or at a limit
        self._carried: list[frozenset[str]] = [
            frozenset()
        ] * count  # kinds on the way up that concern all of the run
        for i in snapshot.graph.order:
            self._decide(i)

    def _once(self, what: str, name: str, make: Callable[[], T]) -> T:
        if (what, name) not in self._memo:
            self._memo[what, name] = make()
        made: T = self._memo[what, name]
        return made

    # ---- rows

    def rows(self, task: int | None = None) -> list[dict[str, Any]]:
        if task is not None:
            above = self.s.graph.reach([task], self.s.graph.needs) - {task} if self.waits[task] else set()
            listed = [task, *(i for i in sorted(above) if self.waits[i])]
        else:
            listed = [i for i, state in enumerate(self.states) if self.waits[i] or state in ENDED_BADLY]
        return [self._row(i) for i in listed]

    def _row(self, i: int) -> dict[str, Any]:
        record = self.s.of(i)
        row: dict[str, Any] = {"task": self.s.graph.names[i], "state": self.states[i]}
        if self.waits[i]:
            row["clears"] = self.clears[i]
        row["waits_for"] = [r.row() for r in self.waits[i]]
        if self.states[i] in SETTLED or self.states[i] == "running":
            row["because"] = [r.row() for r in Past(self.s, self.states).reasons(i)]
        if record.attempt:
            row["attempt"] = record.attempt
        if notes := self._notes(i):
            row["notes"] = notes
        return row

    def _notes(self, i: int) -> list[str]:
        record, notes = self.s.of(i), []
        if self.states[i] in SETTLED or self.states[i] == "retrying":
            return []
        if record.losses:
            notes.append(f"it was lost {_times(record.losses)} in a row; after 4 it counts as failed")
        if record.failures:
            last = self.s.record.attempt(i, record.attempt - 1)
            why = f": {last.reason}" if last and last.reason else ""
            notes.append(f"{record.failures} of {self.s.tasks[i].retries + 1} attempts failed before{why}")
        return notes

    def stuck(self) -> Reason | None:
        """What a person must do before anything of this run goes on; None if something does."""
        needs = None
        for i, state in enumerate(self.states):
            if state in SETTLED:
                continue
            if state == "running" or self.clears[i] == ITSELF:
                return None
            needs = needs or next(
                (r for r in self.waits[i] if r.clears == PERSON and r.kind != "upstream"), None
            )
        return needs

    # ---- one task

    def _decide(self, i: int) -> None:
        state = self.states[i]
        if state in SETTLED:
            return
        reasons = self._reasons(i, state)
        self.waits[i] = list({(r.kind, r.detail): r for r in reasons}.values())
        above = [u for u in self.s.graph.needs[i] if self.states[u] not in SETTLED] if state == "none" else []
        carried = {r.kind for r in reasons if r.kind in ("paused", "no_scheduler")}
        self._carried[i] = frozenset(carried.union(*(self._carried[u] for u in above)))
        if any(r.clears == PERSON for r in reasons):
            self.clears[i] = PERSON
        merged = dict.fromkeys(r for u in above for r in self.roots[u])
        self.roots[i] = tuple(merged)[:ROOTS] if above else (i,)

    def _reasons(self, i: int, state: str) -> list[Reason]:
        s = self.s
        if s.frozen and state != "running":
            return [FROZEN, *self._trouble()]
        if state == "none":
            return self._none(i)
        if state == "retrying":
            return self._retrying(i)
        if state == "deferred":
            return [
                Reason("event", "it waits for a time or an event, and holds no slot meanwhile"),
                *self._trouble(),
            ]
        admitted = state != "ready" or i in s.ready or s.attempt(i) in s.places
        if not admitted and (parked := self._parked(i)):
            return parked
        return self._live(s.live(i), i in s.ready)

    def _none(self, i: int) -> list[Reason]:
        s = self.s
        if self._verdict(i) == "wait":
            reasons = [self._upstream(i)]
            carried = frozenset[str]().union(*(self._carried[u] for u in s.graph.needs[i]))
            if s.paused and "paused" not in carried:
                reasons.append(self._paused())
            return reasons + [r for r in self._trouble() if r.kind not in carried]
        if s.record.state == "queued":
            return self._run_queued()
        return self._owner("it waits for no other task any more, and that has to be noted")

    def _verdict(self, i: int) -> Decision:
        s = self.s
        if any(i in s.record.not_chosen(u) for u in s.graph.needs[i] if self.states[u] == "success"):
            return "skipped"
        counts = [0, 0, 0]
        for u in s.graph.needs[i]:
            if self.states[u] in SETTLED:
                counts[CLASS[self.states[u]]] += 1
        return decide(s.graph.rules[i], len(s.graph.needs[i]), *counts)

    def _upstream(self, i: int) -> Reason:
        s, names, rule = self.s, self.s.graph.names, self.s.graph.rules[i]
        open_ = [u for u in s.graph.needs[i] if self.states[u] not in SETTLED]
        needing = [u for u in open_ if self.clears[u] == PERSON]
        person = bool(needing) and (rule not in ANY_DECIDES or len(needing) == len(open_))
        shown = sorted(open_, key=lambda u: self.clears[u] != PERSON)
        roots = [r for r in dict.fromkeys(r for u in shown for r in self.roots[u]) if r not in open_][:ROOTS]
        count = len(s.graph.needs[i])
        ended = f": {count - len(open_)} of {count} have ended" if count > 1 else ""
        begin = f"; that begins with {_listed([self._called(r) for r in roots])}" if roots else ""
        needs = next((w.do for w in self.waits[needing[0]] if w.clears == PERSON), "") if person else ""
        return Reason(
            "upstream",
            f"it waits for {_listed([self._called(u) for u in shown])}; {MUST[rule]}{ended}{begin}",
            PERSON if person else ITSELF,
            needs,
            {
                "task": names[shown[0]],
                "tasks": [{"task": names[u], "state": self.states[u]} for u in shown[:NAMED]],
                "unsettled": len(open_),
                "rule": rule,
                "roots": [names[r] for r in dict.fromkeys(r for u in shown for r in self.roots[u])][:ROOTS],
            },
        )

    def _called(self, i: int) -> str:
        worker = self.s.of(i).worker
        where = f" on {self._worker(worker)}" if self.states[i] == "running" and worker is not None else ""
        state = "waits too" if self.states[i] == "none" else self.states[i]
        return f"{self.s.graph.names[i]} ({state}{where})"

    def _worker(self, number: int) -> str:
        return self.s.worker_names.get(number, f"worker {number}")

    def _retrying(self, i: int) -> list[Reason]:
        from redsched.keys import iso

        s, record = self.s, self.s.of(i)
        last, due = s.record.attempt(i, record.attempt), s.timers.get(i)
        if due is None:
            return [self._repair(i, "the timer of its retry is gone")]
        attempts = s.tasks[i].retries + 1
        why = f": {last.reason}" if last and last.reason else ""
        if due <= s.now:
            return self._owner(
                f"attempt {record.attempt} failed{why}; the next is due and has to be made ready"
            )
        retry = Reason(
            "retry",
            f"attempt {record.attempt} failed{why}; the next, {_ordinal(record.failures)} of {attempts}, "
            f"starts in {_span(due - s.now)}",
            more={
                "until": iso(due),
                "seconds": round((due - s.now) / 1000, 1),
                "failures": record.failures,
                "attempts": attempts,
                "reason": last.reason if last else "",
            },
        )
        return [retry, *([self._paused()] if s.paused else []), *self._trouble()]

    # ---- the run, its DAG, and the limits

    def _paused(self) -> Reason:
        s = self.s
        do = f"redsched dag resume {s.dag}"
        return Reason(
            "paused", f"{s.dag} is paused, so nothing more of it starts", PERSON, do, {"dag": s.dag}
        )

    def _run_queued(self) -> list[Reason]:
        s = self.s
        reasons = [self._paused()] if s.paused else []
        if s.active >= s.max_runs:
            reasons.append(self._run_limit())
        elif s.place is None:
            reasons.append(self._repair(None, "the run is in no queue"))
        elif not reasons:
            return self._owner(f"{s.dag} has room for this run, and it has to be started")
        return reasons + self._trouble()

    def _run_limit(self) -> Reason:
        s = self.s
        place = f"; this run is {_ordinal(s.place)} of {s.queue} in the queue" if s.place is not None else ""
        # Only if all of them were looked at and none goes on, it is up to a person.
        why = next(iter(self.stuck_runs.values())) if 0 < s.active <= len(self.stuck_runs) else None
        return Reason(
            "run_limit",
            f"{s.dag} may have {_many(s.max_runs, 'run')} at a time (max_active_runs), and {_listed(s.active_runs)} "
            f"{'is' if s.active == 1 else 'are'} running{place}{_waits_itself(why, s.active)}",
            PERSON if why else ITSELF,
            why.do if why else "",
            {
                "limit": s.max_runs,
                "active": s.active,
                "holders": list(s.active_runs[:NAMED]),
                "place": _number(s.place),
                "queue": s.queue,
            },
        )

    def _parked(self, i: int) -> list[Reason]:
        """The reasons of a task that a limit holds back; nothing if none does."""
        s, member = self.s, f"{self.s.run}/{i}"
        found = next(((k, x) for k in s.limit_keys(i) if (x := s.limits.get(k)) and member in x.here), None)
        if found is None:
            return []
        key, limit = found
        reasons = [self._paused()] if s.paused else []
        if limit.busy >= limit.most:
            reasons.append(self._limit(key, limit, member))
        elif not reasons:
            return self._owner("the limit that held it back has room again, and it has to be let through")
        return reasons + self._trouble()

    def _limit(self, key: str, limit: Limit, member: str) -> Reason:
        s = self.s
        place = limit.line.index(member) if member in limit.line else None
        why = self._once("limit", key, lambda: self._all_stuck(limit))
        who = [h.task if h.run == s.run else f"{h.task} of run {h.run}" for h in limit.holders[:SHOWN]]
        line = (
            f"it is {_ordinal(place)} of {limit.parked}"
            if place is not None
            else f"it is beyond the first {LINE}"
        )
        return Reason(
            limit.kind,
            f"{_limit_words(s.dag, key, limit)}, and {_listed(who, limit.busy)} {'is' if limit.busy == 1 else 'are'} "
            f"active; {line} in line{_waits_itself(why, limit.busy)}",
            PERSON if why else ITSELF,
            why.do if why else "",
            {
                "limit": limit.most,
                "busy": limit.busy,
                "holders": [{"run": h.run, "task": h.task, "state": h.state} for h in limit.holders[:NAMED]],
                "place": _number(place),
                "waiting": limit.parked,
            },
        )

    def _all_stuck(self, limit: Limit) -> Reason | None:
        """What a person must do, if all holders were looked at and none of them goes on by itself."""
        needs = [
            next((r for r in self._live(h, True) if r.clears == PERSON), None)
            for h in limit.holders
            if limit.busy <= len(limit.holders)
        ]
        return needs[0] if needs and all(needs) else None

    # ---- on the way into its pool, and there

    def _live(self, task: Live, offered: bool) -> list[Reason]:
        """Why a task that is ready or queued, here or in another run, does not run; or a running one does not get on."""
        s = self.s
        place = s.places.get(task.id)
        if place is not None:
            if place.state == "W":
                return self._waiting(task, place)
            return self._on_stream(task, place) if place.state == "Q" else self._granted(task, place)
        if task.id in s.lost:
            return self._owner(
                f"its worker {s.lost[task.id]} fell silent, and a new attempt has to be made ready"
            )
        if task.id in s.done:
            if task.state == "running" and not self._trouble():
                return []  # it ends in this moment
            return self._owner("it has ended, and what became of it has to be noted")
        if task.state == "ready" and offered:
            return self._not_offered(task)
        if s.inbox:
            return self._owner("what became of it has to be noted")
        return [self._repair(AttemptId.parse(task.id).task, f"pool {task.pool} does not know it any more")]

    def _not_offered(self, task: Live) -> list[Reason]:
        pool = self._pool(task)
        if pool.slots is None:
            do = f"redsched pool set {pool.name} --slots N"
            missing = self._pool_reason(pool, "missing", f"pool {pool.name} does not exist", PERSON, do)
            return [missing, *self._trouble()]
        if 0 < pool.slots < task.slots:
            return [self._too_wide(pool, task.slots), *self._trouble()]
        return self._owner(f"it is ready and has to be handed to pool {pool.name}")

    def _pool(self, task: Live) -> Pool:
        return self.s.pools.get(task.pool) or Pool(task.pool, None)

    def _pool_reason(
        self, pool: Pool, problem: str, detail: str, clears: str = ITSELF, do: str = "", **more: Any
    ) -> Reason:
        basics = {"pool": pool.name, "problem": problem, "slots": pool.slots, "used": pool.used}
        return Reason("pool", detail, clears, do, {**basics, **more})

    def _too_wide(self, pool: Pool, slots: int) -> Reason:
        return self._pool_reason(
            pool,
            "too_wide",
            f"it takes {_many(slots, 'slot')}, and pool {pool.name} has only {pool.slots}",
            PERSON,
            f"redsched pool set {pool.name} --slots {slots}",
            needs=slots,
        )

    def _waiting(self, task: Live, place: Place) -> list[Reason]:
        pool = self._pool(task)
        slots = pool.slots or 0
        if slots == 0:
            do = f"redsched pool set {pool.name} --slots N"
            return [
                self._pool_reason(pool, "closed", f"pool {pool.name} is closed: it has 0 slots", PERSON, do)
            ]
        if place.slots > slots:
            return [self._too_wide(pool, place.slots)]
        if pool.first != task.id and pool.first_slots > slots:
            return [self._blocked(pool)]
        silent = all(p.lease is not None and p.lease <= 0 for p in pool.holders.values())
        # What silent workers hold is taken back by a scheduler.
        return [
            self._full(pool, task, place),
            *self._nobody_serves(pool.name),
            *(self._no_scheduler() if silent and pool.holders else []),
        ]

    def _blocked(self, pool: Pool) -> Reason:
        first = AttemptId.parse(pool.first)
        who = self._who(pool.first)
        return self._pool_reason(
            pool,
            "blocked",
            f"before it in pool {pool.name} stands {who}, which takes {pool.first_slots} slots; the pool has only {pool.slots}",
            PERSON,
            f"redsched pool set {pool.name} --slots {pool.first_slots}, or redsched run cancel {first.dag} {first.run}",
            holders=[self._holder(pool.first, None)],
        )

    def _full(self, pool: Pool, task: Live, place: Place) -> Reason:
        free = (pool.slots or 0) - pool.used
        who, holders = self._once("holders", pool.name, lambda: self._held_by(pool))
        if free <= 0:
            what = f"pool {pool.name} is full: {pool.used} of {_many(pool.slots or 0, 'slot')} taken by {who}"
        elif free < place.slots:
            what = f"it takes {place.slots} slots and pool {pool.name} has {free} of {pool.slots} free; the rest is taken by {who}"
        elif pool.first != task.id and pool.first_slots > free:
            what = f"pool {pool.name} has {free} of {pool.slots} slots free, and keeps them for {self._who(pool.first)}, which takes {pool.first_slots}"
        else:
            what = f"pool {pool.name} has {free} of {pool.slots} slots free, and hands them out next"
        before = [g for g, _ in pool.groups[: _index(pool.groups, place.group)]]
        waiting = dict(pool.groups).get(place.group)
        share = pool.given.get(place.group, 0) / max(1, sum(pool.given.values()))
        return self._pool_reason(
            pool,
            "full",
            what + _line_words(place, waiting, before, share if pool.given else None),
            holders=holders,
            group=place.group,
            place=_number(place.rank),
            waiting=waiting,
            waiting_s=None if place.since is None else round((self.s.now - place.since) / 1000, 1),
            groups_before=before,
            groups_waiting=pool.group_count,
            share=round(share, 3),
        )

    def _held_by(self, pool: Pool) -> tuple[str, list[dict[str, Any]]]:
        shown = sorted(pool.holders.items())[:SHOWN]
        who = _listed([self._who(h) for h, _ in shown], _holding(pool))
        return who, [self._holder(h, p) for h, p in shown]

    def _who(self, attempt: str) -> str:
        a = AttemptId.parse(attempt)
        task = self.s.labels.get(attempt, f"task number {a.task}")
        if a.dag != self.s.dag:
            return f"{task} of {a.dag} {a.run}"
        return task if a.run == self.s.run else f"{task} of run {a.run}"

    def _holder(self, attempt: str, place: Place | None) -> dict[str, Any]:
        a = AttemptId.parse(attempt)
        more = {"worker": place.worker or None, "slots": place.slots} if place else {}
        return {"dag": a.dag, "run": a.run, "task": self.s.labels.get(attempt), "attempt": a.attempt, **more}

    # ---- workers

    def _nobody_serves(self, pool: str) -> list[Reason]:
        """Nothing if a live worker takes work from the pool."""
        return self._once("served", pool, lambda: self._served(pool))

    def _served(self, pool: str) -> list[Reason]:
        s = self.s
        serving = [w for w in s.workers if pool in w.pools]
        if any(w.state == "running" for w in serving):
            return []
        do = f"redsched worker --pool {pool}" if pool != "default" else "redsched worker"
        others = (
            f" ({_many(len(s.workers), 'worker')} of other pools live)" if s.workers and not serving else ""
        )
        what = (
            f"{serving[0].name} is stopping, and no other worker serves"
            if serving
            else "no live worker serves"
        )
        return [Reason("no_worker", f"{what} pool {pool}{others}", PERSON, do, {"pool": pool})]

    def _on_stream(self, task: Live, place: Place) -> list[Reason]:
        pool = self._pool(task)
        if nobody := self._nobody_serves(pool.name):
            return nobody
        if task.id in pool.delivered:
            return self._delivered(pool, *pool.delivered[task.id])
        serving = [w for w in self.s.workers if pool.name in w.pools and w.state == "running"]
        many, busy = sum(w.concurrency for w in serving), sum(w.running for w in serving)
        names = _listed([w.name for w in serving])
        more = {
            "pool": pool.name,
            "workers": [w.name for w in serving[:NAMED]],
            "busy": busy,
            "concurrency": many,
        }
        if task.id not in pool.stream and len(pool.stream) < LINE:
            if pool.has_group:
                index = AttemptId.parse(task.id).task
                return [self._repair(index, f"the stream of pool {pool.name} has lost it")]
            return [
                Reason(
                    "worker",
                    f"{names} puts it on the stream of pool {pool.name} again at its next look",
                    more=more,
                )
            ]
        if busy < many or not many:
            return [
                Reason(
                    "worker",
                    f"it has its slot in pool {pool.name}, and {names} is about to take it",
                    more=more,
                )
            ]
        runs = [h for h, p in sorted(pool.holders.items()) if p.state == "R"]
        what = f", with {_listed([self._who(h) for h in runs[:SHOWN]], len(runs))}" if runs else ""
        more["holders"] = [self._holder(h, pool.holders[h]) for h in runs[:SHOWN]]
        where = f"all {_many(many, 'place')} of {names}" if many > 1 else f"the only place of {names}"
        return [
            Reason(
                "workers_busy",
                f"it has its slot in pool {pool.name}, but {where} {'are' if many > 1 else 'is'} busy{what}",
                more=more,
            )
        ]

    def _delivered(self, pool: Pool, consumer: str, ago: int) -> list[Reason]:
        lease = self.s.worker_lease_ms
        back = f"; if it does not, it is put on the stream again within {_span(lease)}" if ago > 1000 else ""
        detail = f"worker {consumer} was handed it {_span(ago)} ago and has not begun it yet{back}"
        more = {"pool": pool.name, "worker": consumer, "seconds": round(ago / 1000, 1)}
        return [Reason("worker", detail, more=more), *(self._no_scheduler() if ago > lease else [])]

    def _granted(self, task: Live, place: Place) -> list[Reason]:
        lease = self.s.worker_lease_ms if place.lease is None else place.lease
        silent = max(0, self.s.worker_lease_ms - lease)
        more = {"worker": place.worker, "pool": task.pool, "silent_s": round(silent / 1000, 1)}
        if lease > self.s.worker_lease_ms / 2:
            if task.state == "running":
                return []
            verb = "is stopping it" if place.state == "S" else "has taken it and starts it"
            return [Reason("worker", f"worker {place.worker} {verb}", more=more)]
        when = f"in {_span(lease)}, if it stays silent," if lease > 0 else "next"
        detail = f"worker {place.worker} has it and has been silent for {_span(silent)}; {when} it is taken back, and a new attempt starts"
        return [Reason("worker_silent", detail, more=more), *self._no_scheduler()]

    # ---- the scheduler

    def _no_scheduler(self) -> list[Reason]:
        if any(left > 0 for left in self.s.schedulers.values()):
            return []
        do = "redsched scheduler"
        return [Reason("no_scheduler", "no scheduler is alive", PERSON, do, self._shard())]

    def _shard(self) -> dict[str, Any]:
        s = self.s
        left = s.schedulers.get(s.owner)
        return {
            "shard": s.shard,
            "owner": s.owner or None,
            "lease_left_s": None if left is None else round(left / 1000, 1),
            "inbox": s.inbox,
        }

    def _trouble(self) -> list[Reason]:
        """What is wrong with the scheduler that must act on this run; nothing if it is alive."""
        s = self.s
        if nobody := self._no_scheduler():
            return nobody
        if s.schedulers.get(s.owner, 0) > 0:
            return []
        who = f"its scheduler {s.owner} has fallen silent" if s.owner else f"nobody has shard {s.shard} yet"
        alive = sum(left > 0 for left in s.schedulers.values())
        detail = (
            f"{who}; one of {alive} that live takes over within seconds"
            if alive > 1
            else f"{who}; the one that lives takes over within seconds"
        )
        return [Reason("take_over", detail, more=self._shard())]

    def _owner(self, what: str) -> list[Reason]:
        """`what` is the scheduler's to do: what is wrong with it, or else that it is about to act."""
        s = self.s
        waited = s.now - s.inbox_since if s.inbox_since is not None else 0
        age = f", the oldest for {_span(waited)}" if waited > 1000 else ""
        backlog = (
            f" ({_many(s.inbox, 'entry waits', 'entries wait')} in the inbox of shard {s.shard}{age})"
            if s.inbox
            else ""
        )
        if trouble := self._trouble():
            return [replace(r, detail=f"{what}{backlog}, but {r.detail}") for r in trouble]
        return [
            Reason("scheduler", f"{what}{backlog}; scheduler {s.owner} does that next", more=self._shard())
        ]

    def _repair(self, i: int | None, what: str) -> Reason:
        """Redis has lost something (a failover, a hand on its keys): nothing is under way, so a person has to act."""
        s = self.s
        if i is None:
            do = f"redsched run cancel {s.dag} {s.run}, then redsched run clear {s.dag} {s.run}"
        else:
            do = f"redsched run clear {s.dag} {s.run} {s.graph.names[i]}"
        return Reason("repair", f"{what}; Redis has lost a part of its state", PERSON, do)


FROZEN: Final = Reason(
    "edit", "a clear or a mark of this run is being carried out, and until that is done nothing starts"
)
FAILED: Final = frozenset({"failed", "upstream_failed", "cancelled"})
SKIPPED: Final = frozenset({"skipped"})
# Which upstreams make a rule skip its task, where that is not those that were skipped themselves.
AGAINST: Final = {
    "all_failed": frozenset({"success", "skipped"}),
    "all_skipped": FAILED | {"success"},
    "one_failed": frozenset({"success", "skipped"}),
}
ENDED_BADLY: Final = SETTLED - {"success"}


class Past:
    """Why a task ended without success, and what can be done about it."""

    def __init__(self, snapshot: Snapshot, states: Sequence[str]) -> None:
        self.s, self.states = snapshot, states

    def reasons(self, i: int) -> list[Reason]:
        state = self.states[i]
        if state in ("failed", "skipped") and self.s.record.marked(i):
            return [self._reason("marked", f"a person marked it {state}", self._clear(i))]
        look = {
            "failed": self._failed,
            "skipped": self._skipped,
            "upstream_failed": self._upstream_failed,
            "cancelled": self._cancelled,
            "running": self._running,
        }
        return [look[state](i)] if state in look else []

    @staticmethod
    def _reason(kind: str, detail: str, do: str, **more: Any) -> Reason:
        return Reason(kind, detail, PERSON, do, more)

    def _clear(self, i: int, *more: str) -> str:
        return " ".join(("redsched run clear", self.s.dag, self.s.run, self.s.graph.names[i], *more))

    def _running(self, i: int) -> Reason:
        record = self.s.of(i)
        where = (
            ""
            if record.worker is None
            else " on " + self.s.worker_names.get(record.worker, str(record.worker))
        )
        since = (
            ""
            if record.started is None
            else f" for {_span(self.s.now - self.s.record.created - record.started)}"
        )
        return Reason("running", f"it has been running{where}{since}")

    def _failed(self, i: int) -> Reason:
        s, record, task = self.s, self.s.of(i), self.s.tasks[i]
        last = s.record.attempt(i, record.attempt)
        why = last.reason if last else ""
        logs = f"redsched run logs {s.dag} {s.run} {s.graph.names[i]}"
        do = f"{logs}; when the cause is gone: {self._clear(i, '--downstream')}"
        if last and last.outcome == "lost":
            detail = f"it was lost {_times(record.losses)} in a row ({why}), so it is not tried again; something may kill its worker, like too little memory"
            return self._reason("lost", detail, do, losses=record.losses, reason=why)
        if record.failures > task.retries:
            used = f"all {task.retries + 1} attempts failed" if task.retries else "it has no retries"
        else:
            used = "it failed for good, so its retries are not used"
        allowed = "; it may fail (allow_failure), so it does not fail the run" if task.allow_failure else ""
        detail = f"attempt {record.attempt} failed{f': {why}' if why else ''}; {used}{allowed}"
        return self._reason(
            "failed", detail, do, reason=why, failures=record.failures, attempts=task.retries + 1
        )

    def _skipped(self, i: int) -> Reason:
        s, record, names = self.s, self.s.of(i), self.s.graph.names
        if record.attempt:
            last = s.record.attempt(i, record.attempt)
            why = f": {last.reason}" if last and last.reason else ""
            return self._reason("skipped", f"its body asked to be skipped{why}", self._clear(i))
        branches = [
            names[u] for u in s.graph.needs[i] if self.states[u] == "success" and i in s.record.not_chosen(u)
        ]
        if branches:
            do = f"redsched run clear {s.dag} {s.run} {branches[0]} --downstream"
            detail = f"{_listed(branches)} chose other tasks; its choice stands until it is cleared, too"
            return self._reason("branch", detail, do, task=branches[0])
        return self._by_rule(i, "skipped")

    def _upstream_failed(self, i: int) -> Reason:
        return self._by_rule(i, "failed")

    def _by_rule(self, i: int, kind: str) -> Reason:
        s, names, rule = self.s, self.s.graph.names, self.s.graph.rules[i]
        needs, bad = s.graph.needs[i], FAILED if kind == "failed" else AGAINST.get(rule, SKIPPED)
        guilty = [u for u in needs if self.states[u] in bad] or list(needs)
        roots = guilty if any(self.states[u] == "success" for u in guilty) else self._origins(guilty, bad)
        begin = [names[r] for r in roots if r not in guilty]
        tail = f"; that began with {_listed(begin)}" if begin else ""
        who = _listed([f"{names[u]} ({self.states[u]})" for u in guilty])
        what = "it can't run" if kind == "failed" else "it was skipped"
        # A task that stands by for a failure has nothing to do when all went well.
        do = (
            ""
            if roots == guilty and "success" in bad
            else self._clear(roots[0] if roots else i, "--downstream")
        )
        return self._reason(
            "upstream" if kind == "failed" else "rule",
            f"{what} because of {who}: {MUST[rule]} ({rule}){tail}",
            do,
            task=names[guilty[0]] if guilty else None,
            rule=rule,
            upstreams=dict(Counter(self.states[u] for u in needs)),
            roots=[names[r] for r in roots[:ROOTS]],
        )

    def _origins(self, start: Sequence[int], bad: frozenset[str]) -> list[int]:
        """Where it began: the first tasks above that ended so on their own."""
        found: list[int] = []
        seen, todo = set(start), list(start)
        while todo and len(found) < ROOTS:
            u = todo.pop(0)
            above = [x for x in self.s.graph.needs[u] if self.states[x] in bad and x not in seen]
            if self.states[u] == "failed" or not any(self.states[x] in bad for x in self.s.graph.needs[u]):
                found.append(u)
            else:
                seen.update(above)
                todo += above
        return found

    def _cancelled(self, i: int) -> Reason:
        s = self.s
        begun = "it was stopped" if s.of(i).attempt else "it had not begun"
        return self._reason(
            "cancelled", f"the run was cancelled; {begun}", f"redsched run clear {s.dag} {s.run}"
        )


# ---- words


def _listed(names: Iterable[str], count: int | None = None) -> str:
    """`a, b, c and 4 more`; `count` is how many there are if not all are known."""
    known = list(names)
    more = max(len(known), count or 0) - min(3, len(known))
    shown = known[:3]
    if not shown:
        return _many(count or 0, "other")
    if more:
        return f"{', '.join(shown)} and {more} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _many(count: int, word: str, words: str = "") -> str:
    return f"{count} {word if count == 1 else words or word + 's'}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _ordinal(place: int | None) -> str:
    """Places count from 0, people from 1."""
    n = (place or 0) + 1
    tail = "th" if 10 < n % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{tail}"


def _number(place: int | None) -> int | None:
    return None if place is None else place + 1


def _span(ms: float) -> str:
    """0.4 s, 12 s, 5 min, 3 h 05 min, 2 d 4 h"""
    seconds = max(0.0, ms / 1000)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    return (
        f"{minutes // 60} h {minutes % 60:02d} min"
        if minutes < 1440
        else f"{minutes // 1440} d {minutes % 1440 // 60} h"
    )


def _limit_words(dag: str, key: str, limit: Limit) -> str:
    if limit.kind == "dag_limit":
        return f"{dag} may have {_many(limit.most, 'task')} at a time (max_active_tasks)"
    if limit.kind == "task_limit":
        return f"it may run {_times(limit.most)} at a time over all runs (max_active)"
    value = key.partition(":key:")[2]
    return f"only {_many(limit.most, 'task')} with the concurrency key {value!r} may run at a time"


def _waits_itself(why: Reason | None, count: int) -> str:
    return f"; {'that one needs' if count == 1 else 'these need'} a person: {why.detail}" if why else ""


def _line_words(place: Place, waiting: int | None, before: Sequence[str], share: float | None) -> str:
    of = f" of {waiting}" if waiting else ""
    where = f"{_ordinal(place.rank)}{of}" if place.rank is not None else "far back"
    turn = f", after the turn of {_listed(before)}" if before else ""
    got = (
        ""
        if share is None
        else f"; {place.group} got {100 * share:.0f} % of the slots given in the last {SHARE_MINUTES} minutes"
    )
    return f"; it is {where} in the line of {place.group}{turn}{got}"


def _index(groups: Sequence[tuple[str, int]], name: str) -> int:
    return next((at for at, (group, _) in enumerate(groups) if group == name), len(groups))


def _holding(pool: Pool) -> int:
    """How many tasks hold slots: known if the sample has them all."""
    whole = sum(p.slots for p in pool.holders.values()) >= pool.used
    return len(pool.holders) if whole else max(pool.used, SAMPLE)
