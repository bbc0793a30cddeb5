"""Fire times: which instants a schedule has, in which order, and what a change of the clocks does to them.

Pure. Instants are UTC milliseconds, exact to the second. A *nominal* time is what the fields match: a minute on the wall
clock, counted in seconds since 1970 as if there were no zones.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from redsched.definition.cron import LAST, Fields, read_fields
from redsched.definition.values import instant_text, zone

if TYPE_CHECKING:
    from redsched.definition.model import DagSpec

DAY: Final = 86_400
# A search ends here: two 29 Februaries on the same weekday lie at most 40 years apart.
FARTHEST: Final = 50 * 366 * DAY
# The years 1 and 9999 are left out, so that every local time near a bound can be written.
FIRST: Final = (date(2, 1, 1).toordinal() - date(1970, 1, 1).toordinal()) * DAY
FINAL: Final = (date(9998, 12, 31).toordinal() - date(1970, 1, 1).toordinal()) * DAY
_EPOCH: Final = date(1970, 1, 1).toordinal()
_NAMED: Final = 3  # nominal times that a note names


# ── schedules ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron expression in a zone, or a fixed distance from an anchor; `start_ms` and `end_ms` belong to it."""

    cron: str | None = None
    every_ms: int | None = None
    anchor_ms: int = 0
    timezone: str = "UTC"
    start_ms: int | None = None
    end_ms: int | None = None

    @classmethod
    def of(cls, dag: DagSpec, registered_ms: int) -> Schedule | None:
        """The schedule of a DAG; None if it has none that a clock knows. `registered_ms`: of its first version."""
        start, end = _ms(dag.start), _ms(dag.end)
        if dag.schedule is None or hasattr(dag.schedule, "after"):
            return None
        if isinstance(dag.schedule, str):
            return cls(cron=dag.schedule, timezone=dag.timezone, start_ms=start, end_ms=end)
        anchor = registered_ms // 1_000 * 1_000 if start is None else start
        every = dag.schedule.every
        return cls(every_ms=every, anchor_ms=anchor, timezone=dag.timezone, start_ms=start, end_ms=end)

    def to_stored(self) -> dict[str, Any]:
        """As small JSON."""
        stored = {
            "cron": self.cron,
            "every": self.every_ms,
            "anchor": self.anchor_ms if self.every_ms else None,
            "timezone": self.timezone,
            "start": self.start_ms,
            "end": self.end_ms,
        }
        return {name: value for name, value in stored.items() if value is not None}

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> Schedule:
        """What `to_stored` gave; other keys don't matter."""
        return cls(
            cron=stored.get("cron"),
            every_ms=stored.get("every"),
            anchor_ms=stored.get("anchor", 0),
            timezone=stored.get("timezone", "UTC"),
            start_ms=stored.get("start"),
            end_ms=stored.get("end"),
        )

    def next_after(self, instant_ms: int) -> int | None:
        """The first fire time after the instant; None if there is none within 50 years."""
        if self.start_ms is not None and instant_ms < self.start_ms:
            instant_ms = self.start_ms - 1
        found = self._next(instant_ms)
        return found if found is None or self.end_ms is None or found <= self.end_ms else None

    def last_before(self, instant_ms: int) -> int | None:
        """The last fire time before the instant; None if there is none within 50 years."""
        if self.end_ms is not None and instant_ms > self.end_ms:
            instant_ms = self.end_ms + 1
        found = self._last(instant_ms)
        return found if found is None or self.start_ms is None or found >= self.start_ms else None

    def at_or_before(self, instant_ms: int) -> int | None:
        """The last fire time up to the instant, which may be one itself."""
        return self.last_before(instant_ms + 1)

    def between(self, first_ms: int, last_ms: int) -> Iterator[int]:
        """All fire times from `first_ms` to `last_ms`, both included, in rising order."""
        first = first_ms if self.start_ms is None else max(first_ms, self.start_ms)
        last = last_ms if self.end_ms is None else min(last_ms, self.end_ms)
        if self.every_ms is not None:
            yield from range(first + (self.anchor_ms - first) % self.every_ms, last + 1, self.every_ms)
        elif self.cron is not None:
            for second in _rising(self.cron, self.timezone, -(-first // 1_000), last // 1_000):
                yield second * 1_000

    def fires_at(self, instant_ms: int) -> bool:
        return self.at_or_before(instant_ms) == instant_ms

    def _next(self, ms: int) -> int | None:
        if self.every_ms is not None:
            found = ms + self.every_ms - (ms - self.anchor_ms) % self.every_ms
            return found if found <= FINAL * 1_000 else None
        if self.cron is None:
            return None
        second = _next_second(self.cron, self.timezone, ms // 1_000 + 1)
        return None if second is None else second * 1_000

    def _last(self, ms: int) -> int | None:
        if self.every_ms is not None:
            found = ms - 1 - (ms - 1 - self.anchor_ms) % self.every_ms
            return found if found >= FIRST * 1_000 else None
        if self.cron is None:
            return None
        second = _last_second(self.cron, self.timezone, -(-ms // 1_000) - 1)
        return None if second is None else second * 1_000


def interval(schedule: Schedule, logical_ms: int) -> tuple[int, int]:
    """The data interval of a slot: from the slot before it (even one before `start`) up to the slot itself."""
    before = schedule._last(logical_ms)
    return (logical_ms if before is None else before), logical_ms


def spread_ms(dag: str, window_ms: int | None) -> int:
    """How much later than its slots this DAG starts: less than the window, whole seconds, always the same."""
    unit = 1_000 if window_ms and window_ms >= 1_000 else 1
    return zlib.crc32(dag.encode()) % (window_ms // unit) * unit if window_ms else 0


def _ms(instant: str | None) -> int | None:
    return None if instant is None else round(datetime.fromisoformat(instant).timestamp() * 1_000)


# ── what a change of the clocks does ─────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Fire:
    """A fire time as people see it. `fold`: 1 or 2 if its wall time comes twice, first or second pass.

    `nominal`: the wall times that it stands for; not `local` alone when a gap moved some. `skipped`: it does not come.
    """

    ms: int
    local: datetime
    offset: str
    nominal: tuple[datetime, ...]
    fold: int = 0
    fixed: bool = True
    skipped: bool = False

    @property
    def moved(self) -> bool:
        return any(wanted != self.local for wanted in self.nominal)

    @property
    def merged(self) -> bool:
        return len(self.nominal) > 1

    @property
    def note(self) -> str:
        """What the clocks did to it, in words; empty on all other days."""
        if self.skipped:
            return f"left out: {self._names(self.nominal)} {_not_exist(self.nominal)}"
        if self.moved:
            gone = tuple(wanted for wanted in self.nominal if wanted != self.local)
            merged = f", one run for {len(self.nominal)} times" if self.merged else ""
            return f"moved: {self._names(gone)} {_not_exist(gone)}{merged}"
        if self.fold:
            what = ("first", "second")[self.fold - 1]
            return f"{what} pass of two" + (", the only one that counts" if self.fixed else "")
        return ""

    def _names(self, times: tuple[datetime, ...]) -> str:
        days = {wanted.date() for wanted in (*times, self.local)}
        form = "%H:%M" if len(days) == 1 else "%Y-%m-%d %H:%M"
        names = [wanted.strftime(form) for wanted in times[:_NAMED]]
        return ", ".join(names) + (f" and {len(times) - _NAMED} more" if len(times) > _NAMED else "")


def _not_exist(times: tuple[datetime, ...]) -> str:
    return "does not exist" if len(times) == 1 else "do not exist"


def describe(schedule: Schedule, instant_ms: int) -> Fire:
    """A fire time of this schedule, with all that `dag next` shows of it."""
    second = instant_ms // 1_000
    local = datetime.fromtimestamp(second, zone(schedule.timezone))
    wall = local.replace(tzinfo=None, fold=0)
    if schedule.cron is None:
        return Fire(instant_ms, wall, _offset(local), (wall,), fixed=False)
    fields = read_fields(schedule.cron)
    nominal = () if fields.wildcard else tuple(_naive(at) for at in _nominal(schedule, second))
    return Fire(instant_ms, wall, _offset(local), nominal or (wall,), _fold(local), fixed=not fields.wildcard)


def clock_changes(schedule: Schedule, from_ms: int, years: int = 2) -> list[Fire]:
    """The fire times that changes of the clocks touch in the coming years: moved, merged, in a repeated span, left out.

    A wildcard job that runs in every hour just goes on, so nothing touches it.
    """
    if schedule.cron is None or _goes_on(read_fields(schedule.cron)):
        return []
    found: list[Fire] = []
    first = from_ms // 1_000
    for at, before, after in _changes(schedule.timezone, first, first + years * 366 * DAY):
        size = abs(after - before)
        near = (describe(schedule, ms) for ms in schedule.between((at - size) * 1_000, (at + size) * 1_000))
        found += [fire for fire in near if fire.ms >= from_ms and (fire.moved or fire.merged or fire.fold)]
        if after > before:
            found += _left_out(schedule, at, before, after)
    return found


def change_warning(schedule: Schedule, from_ms: int, years: int = 2) -> str | None:
    """A sentence on the fire times that changes of the clocks touch; None if there are none."""
    found = clock_changes(schedule, from_ms, years)
    if not found:
        return None
    shown = [f"{instant_text(utc(f.ms))} ({f.local:%Y-%m-%d %H:%M}{f.offset}: {f.note})" for f in found[:2]]
    more = f"; and {len(found) - 2} more" if len(found) > 2 else ""
    return f"clocks change in {schedule.timezone}: {'; '.join(shown)}{more}"


def _goes_on(fields: Fields) -> bool:
    return fields.wildcard and len(fields.hours) == 24


def _left_out(schedule: Schedule, at: int, before: int, after: int) -> list[Fire]:
    """The times of a wildcard job in a gap, as one fire that does not come."""
    assert schedule.cron is not None
    wall = _wall(schedule.cron)
    if not wall.wildcard or not _in_bounds(schedule, at * 1_000):
        return []
    gone = tuple(_naive(wanted) for wanted in wall.rising(at + before, at + after))
    local = datetime.fromtimestamp(at, zone(schedule.timezone))
    shown = local.replace(tzinfo=None, fold=0)
    return [Fire(at * 1_000, shown, _offset(local), gone, fixed=False, skipped=True)] if gone else []


def _in_bounds(schedule: Schedule, ms: int) -> bool:
    start, end = schedule.start_ms, schedule.end_ms
    return (start is None or start <= ms) and (end is None or ms <= end)


def _fold(local: datetime) -> int:
    if local.fold:
        return 2
    return 1 if local.replace(fold=1).utcoffset() != local.utcoffset() else 0


def _offset(local: datetime) -> str:
    return local.isoformat()[len(local.replace(tzinfo=None).isoformat()) :]


def _naive(second: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(seconds=second)  # noqa: DTZ001 - a wall time has no zone


def utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)


# ── the search ───────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=8_192)
def _next_second(cron: str, timezone: str, first: int) -> int | None:
    """Equal expressions in the same zone are computed once, however many DAGs have them."""
    return next(_rising(cron, timezone, first, first + FARTHEST), None)


@lru_cache(maxsize=8_192)
def _last_second(cron: str, timezone: str, last: int) -> int | None:
    return next(_falling(cron, timezone, last - FARTHEST, last), None)


def _rising(cron: str, timezone: str, first: int, last: int) -> Iterator[int]:
    """The fire times from `first` to `last`, both included."""
    wall = _wall(cron)
    first, last = max(first, FIRST), min(last, FINAL)
    if first > last:
        return
    if wall.wildcard:
        for start, end, offset in _segments(timezone, first, last):
            for wanted in wall.rising(start + offset, end + offset):
                yield wanted - offset
        return
    previous = None
    for wanted in wall.rising(_reached(timezone, first - 1), _reached(timezone, last)):
        at = _arrival(timezone, wanted)
        if at != previous:  # because several times in one gap are one fire time
            yield at
        previous = at


def _falling(cron: str, timezone: str, first: int, last: int) -> Iterator[int]:
    """The same fire times from the last to the first."""
    wall = _wall(cron)
    first, last = max(first, FIRST), min(last, FINAL)
    if first > last:
        return
    if wall.wildcard:
        for start, end, offset in _segments(timezone, first, last, falling=True):
            for wanted in wall.falling(start + offset, end + offset):
                yield wanted - offset
        return
    previous = None
    for wanted in wall.falling(_reached(timezone, first - 1), _reached(timezone, last)):
        at = _arrival(timezone, wanted)
        if at != previous:
            yield at
        previous = at


def _nominal(schedule: Schedule, second: int) -> Iterator[int]:
    """The nominal times of a fixed-time job that this instant stands for."""
    assert schedule.cron is not None
    low, high = _reached(schedule.timezone, second - 1), _reached(schedule.timezone, second)
    return _wall(schedule.cron).rising(low, high)


# ── the wall clock: minutes and days that the fields match, without zones ────────────────────────


@dataclass(frozen=True, slots=True)
class _Wall:
    """`minutes` of the day, and the days of a month counted from 1970, both rising."""

    wildcard: bool
    minutes: tuple[int, ...]
    days: Callable[[int], tuple[int, ...]]

    def rising(self, first: int, end: int) -> Iterator[int]:
        """The matching minutes from `first` up to but not including `end`."""
        day, minute = first // DAY, -(-(first % DAY) // 60)
        index = bisect_left(self.minutes, minute)
        month, last_month = _month(day), _month(end // DAY)
        while month <= last_month:
            days = self.days(month)
            for found in days[bisect_left(days, day) :]:
                midnight = found * DAY
                for i in range(index if found == day else 0, len(self.minutes)):
                    at = midnight + self.minutes[i] * 60
                    if at >= end:
                        return
                    yield at
            month += 1

    def falling(self, first: int, end: int) -> Iterator[int]:
        """The same minutes from the last to the first."""
        day, minute = (end - 1) // DAY, (end - 1) % DAY // 60
        index = bisect_right(self.minutes, minute)
        month, first_month = _month(day), _month(first // DAY)
        while month >= first_month:
            days = self.days(month)
            for found in reversed(days[: bisect_right(days, day)]):
                midnight = found * DAY
                for i in range((index if found == day else len(self.minutes)) - 1, -1, -1):
                    at = midnight + self.minutes[i] * 60
                    if at < first:
                        return
                    yield at
            month -= 1


@lru_cache(maxsize=65_536)  # small ones: their minutes and days are shared
def _wall(cron: str) -> _Wall:
    fields = read_fields(cron)
    rule = (fields.days, fields.last_day, fields.months, fields.weekdays, fields.nth, fields.either)
    return _Wall(fields.wildcard, _minutes(fields.minutes, fields.hours), _days(*rule))


@lru_cache(maxsize=1_024)
def _minutes(minutes: tuple[int, ...], hours: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(hour * 60 + minute for hour in hours for minute in minutes)


@lru_cache(maxsize=1_024)
def _days(
    days: tuple[int, ...],
    last_day: bool,
    months: tuple[int, ...],
    weekdays: tuple[int, ...],
    nth: tuple[tuple[int, tuple[int, ...]], ...],
    either: bool,
) -> Callable[[int], tuple[int, ...]]:
    """The matching days of a month (year * 12 + month - 1), remembered."""
    numbers = dict(nth)

    @lru_cache(maxsize=1_024)
    def of_month(month: int) -> tuple[int, ...]:
        if month % 12 + 1 not in months:
            return ()
        first, size = _first_day(month), _first_day(month + 1) - _first_day(month)
        found = []
        for day in range(1, size + 1):
            by_day = day in days or (last_day and day == size)
            weekday = (first + day + 3) % 7  # because 1 January 1970 was a Thursday
            by_weekday = weekday in weekdays
            if by_weekday and numbers:
                of_day = numbers.get(weekday, ())
                by_weekday = (day + 6) // 7 in of_day or (LAST in of_day and day + 7 > size)
            if (by_day or by_weekday) if either else (by_day and by_weekday):
                found.append(first + day - 1)
        return tuple(found)

    return of_month


def _month(day: int) -> int:
    moment = date.fromordinal(day + _EPOCH)
    return moment.year * 12 + moment.month - 1


def _first_day(month: int) -> int:
    return date(month // 12, month % 12 + 1, 1).toordinal() - _EPOCH


# ── zones: stretches of time with one offset ─────────────────────────────────────────────────────

BLOCK: Final = 1 << 28  # about 8.5 years
_MARGIN: Final = 4 * DAY  # more than any offset and any change of it


@dataclass(frozen=True, slots=True)
class _Stretches:
    """From `starts[i]` on the local time is UTC + `offsets[i]`; until the end of it, local times below `reach[i]` came by."""

    starts: tuple[int, ...]
    offsets: tuple[int, ...]
    reach: tuple[int, ...]


@lru_cache(maxsize=2_048)
def _stretches(timezone: str, block: int) -> _Stretches:
    """Of the block and a margin around it. Changes are found by looking once a day: no two ever lay closer than three."""
    tz = zone(timezone)
    first = max(block * BLOCK - _MARGIN, FIRST - _MARGIN)
    last = min((block + 1) * BLOCK + _MARGIN, FINAL + _MARGIN)
    starts, offsets = [first], [_offset_at(tz, first)]
    for day in range(first, last, DAY):
        until = min(day + DAY, last)
        if (offset := _offset_at(tz, until)) != offsets[-1]:
            starts.append(_change_in(tz, day, until, offset))
            offsets.append(offset)
    reach: list[int] = []
    for end, offset in zip([*starts[1:], last], offsets, strict=True):
        reach.append(max(end + offset, reach[-1]) if reach else end + offset)
    return _Stretches(tuple(starts), tuple(offsets), tuple(reach))


def _offset_at(tz: tzinfo, second: int) -> int:
    offset = datetime.fromtimestamp(second, tz).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def _change_in(tz: tzinfo, low: int, high: int, offset: int) -> int:
    """The first second after `low` that has the offset of `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _offset_at(tz, middle) == offset else (middle, high)
    return high


def _segments(
    timezone: str, first: int, last: int, *, falling: bool = False
) -> Iterator[tuple[int, int, int]]:
    """(start, end, offset) of the stretches between two instants; the last instant is included, `end` is not."""
    blocks = range(first // BLOCK, last // BLOCK + 1)
    for block in reversed(blocks) if falling else blocks:
        table = _stretches(timezone, block)
        low, high = max(first, block * BLOCK), min(last + 1, (block + 1) * BLOCK)
        i, j = bisect_right(table.starts, low) - 1, bisect_left(table.starts, high)
        for k in reversed(range(i, j)) if falling else range(i, j):
            end = table.starts[k + 1] if k + 1 < len(table.starts) else high
            yield max(low, table.starts[k]), min(high, end), table.offsets[k]


def _changes(timezone: str, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """(instant, offset before, offset after) of the changes between two instants."""
    before: int | None = None
    for start, _, offset in _segments(timezone, first, last):
        if before is not None and offset != before:
            yield start, before, offset
        before = offset


def _reached(timezone: str, second: int) -> int:
    """The end of the local times that came by until then, this second included: all below it did."""
    table = _stretches(timezone, second // BLOCK)
    i = bisect_right(table.starts, second) - 1
    here = second + table.offsets[i] + 1
    return max(here, table.reach[i - 1]) if i else here


def _arrival(timezone: str, wanted: int) -> int:
    """The first instant at which the wall clock showed this time or, where it never did, a later one."""
    table = _stretches(timezone, wanted // BLOCK)
    i = bisect_right(table.reach, wanted)
    return max(table.starts[i], wanted - table.offsets[i])
