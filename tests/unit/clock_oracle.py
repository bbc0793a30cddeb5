"""Fire times by brute force: every UTC minute is turned to local time and its fields are tested by hand.

Shares nothing with redsched.schedule: no cron library, no table of offsets, no search.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
MONTHS = ["", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


def number(word: str, names: list[str]) -> int:
    return names.index(word.lower()) if word.lower() in names else int(word)


def values(field: str, low: int, high: int, names: list[str] = []) -> set[int]:  # noqa: B006
    found: set[int] = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        if span == "*":
            first, last = low, high
        elif "-" in span:
            a, b = span.split("-")
            first, last = number(a, names), number(b, names)
        else:
            first = number(span, names)
            last = high if step else first
        found.update(range(first, last + 1, int(step or 1)))
    return found


class Cron:
    """Does a wall-clock minute match?"""

    def __init__(self, expression: str) -> None:
        minute, hour, self.day_field, month, self.weekday_field = expression.split()
        self.minutes, self.hours = values(minute, 0, 59), values(hour, 0, 23)
        self.months = values(month, 1, 12, MONTHS)
        self.wildcard = minute[0] == "*" or hour[0] == "*"
        self.both = self.day_field[0] == "*" or self.weekday_field[0] == "*"
        self.known: dict[tuple[int, int, int], bool] = {}

    def matches(self, at: datetime) -> bool:
        return at.minute in self.minutes and at.hour in self.hours and self.on_day(at.year, at.month, at.day)

    def on_day(self, year: int, month: int, day: int) -> bool:
        key = (year, month, day)
        if key not in self.known:
            length = calendar.monthrange(year, month)[1]
            by_day = any(self._day(item, day, length) for item in self.day_field.split(","))
            weekday = (calendar.weekday(year, month, day) + 1) % 7
            by_weekday = any(self._weekday(i, weekday, day, length) for i in self.weekday_field.split(","))
            self.known[key] = month in self.months and (
                by_day and by_weekday if self.both else by_day or by_weekday
            )
        return self.known[key]

    def _day(self, item: str, day: int, length: int) -> bool:
        return day == length if item.upper() == "L" else day in values(item, 1, 31)

    def _weekday(self, item: str, weekday: int, day: int, length: int) -> bool:
        name, _, which = item.partition("#")
        if item[0] in "lL":
            name, which = item[1:], "L"
        if which:
            if number(name, WEEKDAYS) % 7 != weekday:
                return False
            return day > length - 7 if which.upper() == "L" else (day - 1) // 7 + 1 == int(which)
        top = 6 if name[0] == "*" else 7
        return weekday in {value % 7 for value in values(name, 0, top, WEEKDAYS)}


@dataclass(frozen=True)
class Minute:
    """A UTC minute, its wall time, and the wall times that the clock passes over just before it."""

    at: int
    local: datetime
    passed_over: tuple[datetime, ...]
    first_time: bool


@lru_cache(maxsize=8)
def minutes(timezone: str, first: int, last: int) -> list[Minute]:
    """From two days before `first`, so that it is known what came before."""
    tz, seen, found = ZoneInfo(timezone), set(), []
    previous: datetime | None = None
    for at in range(first - 2 * 86_400, last + 1, 60):
        local = datetime.fromtimestamp(at, tz).replace(tzinfo=None, fold=0)
        over = []
        while previous is not None and local - previous > (len(over) + 1) * MINUTE:
            over.append(previous + (len(over) + 1) * MINUTE)
        new_over = tuple(missing for missing in over if missing not in seen)
        found.append(Minute(at, local, new_over, local not in seen))
        seen.update(new_over)
        seen.add(local)
        previous = local
    return found


def fire_times(expression: str, timezone: str, first: int, last: int) -> list[int]:
    """In UTC seconds, both ends included; `first` must be a full minute."""
    cron = Cron(expression)
    found = []
    for minute in minutes(timezone, first, last):
        if minute.at < first:
            continue
        if cron.wildcard:
            fires = cron.matches(minute.local)
        else:
            # Each nominal time once: when it is first shown, or when the clock has just passed over it.
            fires = minute.first_time and cron.matches(minute.local)
            fires = fires or any(cron.matches(missing) for missing in minute.passed_over)
        if fires:
            found.append(minute.at)
    return found


def changes(timezone: str, first_year: int, last_year: int) -> Iterator[int]:
    """The instants at which the offset changes: all hours are looked at, then the minutes of those that differ."""
    tz = ZoneInfo(timezone)
    start = int(datetime(first_year, 1, 1, tzinfo=UTC).timestamp())
    end = int(datetime(last_year + 1, 1, 1, tzinfo=UTC).timestamp())
    before = datetime.fromtimestamp(start, tz).utcoffset()
    for hour in range(start, end, 3600):
        after = datetime.fromtimestamp(hour, tz).utcoffset()
        if after != before:
            yield next(
                at
                for at in range(hour - 3540, hour + 1, 60)
                if datetime.fromtimestamp(at, tz).utcoffset() != before
            )
        before = after
