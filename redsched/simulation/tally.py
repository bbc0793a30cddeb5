"""What a simulated day comes to: lines before pools, waits, the longest runs, what was late or left out, the critical hour. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from redsched.keys import iso
from redsched.states import ENDED
from redsched.store.codec import RunRecord

DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
SHOWN: Final = 10
# A run that began later than this after its slot had to wait for an earlier one of its DAG.
AT_ONCE_MS: Final = 5000
# A task that begins sooner than this was handed over, and did not stand in line.
HANDED_MS: Final = 1000


class TaskTimes(NamedTuple):
    """When a task was ready, began and ended (ms); None: not by the end of the day."""

    pool: str
    slots: int
    ready: int
    started: int | None
    ended: int | None


@dataclass
class Tally:
    day_ms: int
    slots: dict[str, int]
    tasks: list[TaskTimes] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    runs: list[tuple[int, str, str, int]] = field(default_factory=list)
    late: list[dict[str, Any]] = field(default_factory=list)
    queued: list[dict[str, Any]] = field(default_factory=list)
    skips: list[dict[str, Any]] = field(default_factory=list)

    @property
    def end_ms(self) -> int:
        return self.day_ms + DAY_MS

    # ---- what is told

    def task(self, times: TaskTimes) -> None:
        self.tasks.append(times)

    def skipped(self, dag: str, ms: int, reason: str) -> None:
        self.skips.append({"dag": dag, "logical_date": iso(ms), "reason": reason})

    def run(self, dag: str, run: str, record: RunRecord) -> None:
        self.states[record.state] += 1
        due = record.logical if record.logical is not None else record.created
        begun = record.started or self.end_ms
        if begun - due > AT_ONCE_MS:
            self.queued.append({"dag": dag, "run": run, "waited_s": _s(begun - due)})
        if record.started:
            ended = (record.ended if record.state in ENDED else None) or self.end_ms
            self.runs.append((ended - record.started, dag, run, record.started))
        if record.late:
            self.late.append({"dag": dag, "run": run, "state": record.state})

    # ---- what it comes to

    def told(self) -> dict[str, Any]:
        longest = sorted(self.runs, key=lambda r: (-r[0], r[1], r[2]))[:SHOWN]
        return {
            "runs": {"total": self.states.total(), **dict(sorted(self.states.items()))},
            "tasks": len(self.tasks),
            "waits": _waits(self._waited(t) for t in self.tasks),
            "pools": [self._pool(name) for name in self.slots],
            "critical_hour": self._critical(),
            "longest_runs": [
                {"dag": dag, "run": run, "started_at": iso(at), "seconds": _s(ms)}
                for ms, dag, run, at in longest
            ],
            "late": self.late,
            "queued_runs": sorted(self.queued, key=lambda r: -r["waited_s"]),
            "skipped_slots": sorted(self.skips, key=lambda r: (r["logical_date"], r["dag"])),
        }

    def _waited(self, t: TaskTimes) -> int:
        return (self.end_ms if t.started is None else t.started) - t.ready

    def _pool(self, name: str) -> dict[str, Any]:
        mine = [t for t in self.tasks if t.pool == name]
        stood = [t for t in mine if self._waited(t) >= HANDED_MS]
        waiting, at = _peak((t.ready, t.ready + self._waited(t), 1) for t in stood)
        used, _ = _peak(self._use(t) for t in mine)
        busy = sum((end - start) * slots for start, end, slots in map(self._use, mine))
        return {
            "pool": name,
            "slots": self.slots[name],
            "tasks": len(mine),
            "peak_used": used,
            "use": round(busy / (self.slots[name] * DAY_MS), 4) if self.slots[name] else 0.0,
            "peak_waiting": waiting,
            "peak_waiting_at": iso(at) if waiting else None,
            "waits": _waits(self._waited(t) for t in mine),
        }

    def _use(self, t: TaskTimes) -> tuple[int, int, int]:
        if t.started is None:
            return self.end_ms, self.end_ms, t.slots
        return t.started, min(self.end_ms, self.end_ms if t.ended is None else t.ended), t.slots

    def _critical(self) -> dict[str, Any] | None:
        """The hour in which most was waited; where nobody waits, the one in which most runs."""
        hours = []
        for start in range(self.day_ms, self.end_ms, HOUR_MS):
            waited = sum(_within(start, t.ready, t.ready + self._waited(t)) for t in self.tasks)
            used = sum(_within(start, a, b) * slots for a, b, slots in map(self._use, self.tasks))
            hours.append((waited, used, -start))
        waited, used, start = max(hours)
        begun = sum(t.started is not None and 0 <= t.started + start < HOUR_MS for t in self.tasks)
        return (
            {"hour": iso(-start), "started": begun, "waited_s": _s(waited), "used_s": _s(used)}
            if self.tasks
            else None
        )


def _s(ms: int) -> float:
    return round(ms / 1000, 3)


def _within(start: int, first: int, last: int) -> int:
    """How much of first…last lies in the hour that begins at `start`."""
    return max(0, min(last, start + HOUR_MS) - max(first, start))


def _peak(spans: Iterable[tuple[int, int, int]]) -> tuple[int, int]:
    """(the greatest weight at a time, when it was first reached); a span does not touch its end."""
    changes: Counter[int] = Counter()
    for first, last, weight in spans:
        if first < last:
            changes[first] += weight
            changes[last] -= weight
    most, at, now = 0, 0, 0
    for ms in sorted(changes):
        now += changes[ms]
        if now > most:
            most, at = now, ms
    return most, at


def _waits(found: Iterable[int]) -> dict[str, float | None]:
    waits = sorted(found)
    return {"p50_s": _part(waits, 0.5), "p95_s": _part(waits, 0.95), "max_s": _part(waits, 1.0)}


def _part(waits: Sequence[int], share: float) -> float | None:
    """The smallest wait that so many did not exceed."""
    if not waits:
        return None
    return _s(waits[max(0, -(-int(len(waits) * share * 1000) // 1000) - 1)])
