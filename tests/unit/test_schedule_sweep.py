"""Fire times of every zone around every change of its clocks, against brute force.

A seeded sample runs always; all of it with REDSCHED_SWEEP=1 (some minutes, see the number at the end with -s).
"""

from __future__ import annotations

import itertools
import os
import random
import time
import zoneinfo
from bisect import bisect_left, bisect_right
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redsched.definition.cron import check_schedule, read_fields
from redsched.errors import DefinitionError
from redsched.schedule import Schedule, clock_changes, describe

from .clock_oracle import MONTHS, WEEKDAYS, Cron, changes, fire_times, values

YEARS = (2024, 2037)
HOUR, DAY = 3600, 86_400
ZONES = sorted(zoneinfo.available_timezones() - {"localtime"})
ALL = os.environ.get("REDSCHED_SWEEP", "0") not in ("", "0")


def expressions(timezone: str, change: int, rng: random.Random) -> list[str]:
    """Fixed times before, in, at the end of and after the span; lists over it; wildcards of all kinds; random ones."""
    tz = zoneinfo.ZoneInfo(timezone)
    before, after = (datetime.fromtimestamp(change + d, tz) for d in (-60, 0))
    hour, other = after.hour, before.hour
    return [
        f"{after.minute} {hour} * * *",
        f"{before.minute} {other} * * *",
        f"30 {(other + 1) % 24} * * *",
        f"{rng.randrange(60)} {rng.choice((hour, other, (other + 1) % 24))} * * *",
        f"0,30 {','.join(sorted({str(h % 24) for h in (hour - 1, hour, other, other + 1)}))} * * *",
        "0 0 * * *",
        "59 23 * * *",
        f"0-59/{rng.choice((7, 15, 20))} 0-23 * * *",
        "0 * * * *",
        f"*/{rng.choice((5, 7, 15, 30))} * * * *",
        f"*/20 {hour},{(other + 1) % 24} * * *",
        f"{rng.randrange(60)} */{rng.choice((2, 3, 5))} * * *",
        f"{rng.randrange(60)} {rng.randrange(24)} {rng.randrange(1, 29)} * {rng.randrange(8)}",
    ]


def check(cron: str, timezone: str, first: int, last: int) -> None:
    """In one go, strictly rising, step by step forwards and backwards, from bases anywhere: the list of the oracle."""
    right = fire_times(cron, timezone, first, last)
    schedule = Schedule(cron=cron, timezone=timezone)
    found = [ms // 1000 for ms in schedule.between(first * 1000, last * 1000)]
    assert found == right, (cron, timezone)
    assert all(a < b for a, b in itertools.pairwise(found))
    at, walked = first * 1000 - 1, []
    while (following := schedule.next_after(at)) is not None and following <= last * 1000:
        walked.append(following // 1000)
        at = following
    assert walked == right, (cron, timezone)
    at, walked = last * 1000 + 1, []
    while (before := schedule.last_before(at)) is not None and before >= first * 1000:
        walked.append(before // 1000)
        at = before
    assert walked[::-1] == right, (cron, timezone)
    middle = (first + last) // 2
    for base in (
        *range(first, last, 7 * HOUR + 60),
        *range(middle - 2 * HOUR, middle + 2 * HOUR, 10 * 60 + 1),
    ):
        after, before = bisect_right(right, base), bisect_left(right, base)
        if after < len(right):
            assert schedule.next_after(base * 1000) == right[after] * 1000, (cron, timezone, base)
        if before > 0:
            assert schedule.last_before(base * 1000) == right[before - 1] * 1000, (cron, timezone, base)


def sweep(timezone: str, found: list[int], rng: random.Random) -> int:
    count = 0
    for change in found:
        for cron in expressions(timezone, change, rng):
            check(cron, timezone, change - 36 * HOUR, change + 36 * HOUR)
            count += 1
    return count


def test_a_sample_of_zones_and_changes() -> None:
    rng = random.Random(4)
    count = 0
    while count < 50 * 13:
        timezone, year = rng.choice(ZONES), rng.randint(*YEARS)
        count += sweep(timezone, list(changes(timezone, year, year)), rng)


@pytest.mark.parametrize(
    ("timezone", "year"),
    [
        ("Australia/Lord_Howe", 2026),  # half an hour
        ("America/Nuuk", 2026),  # the gap is 23:00 to midnight: a nominal time ends on the next day
        ("Africa/Casablanca", 2027),  # around Ramadan
        ("Europe/Dublin", 2026),  # winter is its summer time
        ("Antarctica/Troll", 2026),  # two hours
        ("Pacific/Apia", 2011),  # a whole day left out
        ("Pacific/Kwajalein", 1969),  # a whole day twice
        ("Asia/Pyongyang", 2015),  # half an hour back, for good
        ("America/Caracas", 2016),
        ("Asia/Gaza", 2040),  # two changes within a week
    ],
)
def test_strange_changes(timezone: str, year: int) -> None:
    found = list(changes(timezone, year, year))
    assert found
    assert sweep(timezone, found, random.Random(year))


@pytest.mark.skipif(not ALL, reason="some minutes; set REDSCHED_SWEEP=1")
def test_every_zone_and_every_change() -> None:
    begun, count, spans = time.monotonic(), 0, 0
    for timezone in ZONES:
        rng = random.Random(timezone)
        found = list(changes(timezone, *YEARS))
        spans += len(found)
        count += sweep(timezone, found or [1_767_225_600 + rng.randrange(300) * DAY], rng)
    took = time.monotonic() - begun
    print(f"\n{len(ZONES)} zones, {spans} changes, {count} expressions in {took:.0f} s")


# ---- random expressions


def items(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda ab: f"{min(ab)}-{max(ab)}")
    stepped = st.tuples(st.one_of(spans, st.just("*"), number.map(str)), st.integers(1, high - low)).map(
        lambda x: f"{x[0]}/{x[1]}"
    )
    one = st.one_of(number.map(str), spans, stepped, st.just("*"))
    return st.lists(one, min_size=1, max_size=3).map(",".join)


NAMED = st.sampled_from([*MONTHS[1:], "jan-mar", "SEP-DEC/2"])
NTH = st.tuples(st.integers(0, 7), st.integers(1, 5)).map(lambda x: f"{x[0]}#{x[1]}")
LASTS = st.one_of(
    st.integers(0, 7).map(lambda d: f"L{d}"), st.just("5#L"), st.sampled_from(["LFRI", "sun#2"])
)
MINUTES, HOURS = items(0, 59), items(0, 23)
DAYS_OF_MONTH = st.one_of(st.just("*"), items(1, 31), st.just("L"), items(1, 31).map("L,".__add__))
MONTH_FIELDS = st.one_of(st.just("*"), items(1, 12), NAMED)
WEEKDAY_FIELDS = st.one_of(
    st.just("*"),
    items(0, 7),
    st.sampled_from([*WEEKDAYS, "MON-FRI", "sat,sun", "1-7", "7-7"]),
    st.lists(st.one_of(NTH, LASTS), min_size=1, max_size=3).map(",".join),
)


def taken(cron: str) -> bool:
    """Too wide steps and days that never come are refused, and so not our matter here."""
    try:
        check_schedule(cron)
    except DefinitionError:
        return False
    return True


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.tuples(MINUTES, HOURS, DAYS_OF_MONTH, MONTH_FIELDS, WEEKDAY_FIELDS).map(" ".join))
def test_fields_are_read_as_written(cron: str) -> None:
    """Two readers agree: croniter's numbers as we use them, and those of the oracle."""
    if not taken(cron):
        return
    fields, right = read_fields(cron), Cron(cron)
    assert set(fields.minutes) == right.minutes
    assert set(fields.hours) == right.hours
    assert set(fields.months) == right.months
    assert (fields.wildcard, fields.either) == (right.wildcard, not right.both)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.tuples(st.just("0 12"), DAYS_OF_MONTH, MONTH_FIELDS, WEEKDAY_FIELDS).map(" ".join),
    st.integers(1990, 2090),
)
def test_days_of_a_year(cron: str, year: int) -> None:
    """L, #, names, either and both: the days on which noon comes."""
    if not taken(cron):
        return
    first = int(datetime(year, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")).timestamp())
    right = Cron(cron)
    days = [datetime.fromtimestamp(first + n * DAY, zoneinfo.ZoneInfo("UTC")) for n in range(365)]
    wanted = [int(d.timestamp()) + 12 * HOUR for d in days if right.on_day(d.year, d.month, d.day)]
    schedule = Schedule(cron=cron)
    assert [ms // 1000 for ms in schedule.between(first * 1000, (first + 365 * DAY) * 1000 - 1)] == wanted


CHANGING = [
    "Europe/Paris",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Nuuk",
    "Asia/Kathmandu",
    "UTC",
]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.tuples(MINUTES, HOURS, st.just("*"), st.just("*"), st.one_of(st.just("*"), items(0, 7))).map(" ".join),
    st.sampled_from(CHANGING),
    st.integers(2000, 2060),
    st.integers(0, 400 * DAY // 60),
    st.booleans(),
)
def test_random_expressions(cron: str, timezone: str, year: int, minute: int, near: bool) -> None:
    if not taken(cron):
        return
    found = list(changes(timezone, year, year)) if near else []
    middle = found[minute % len(found)] if found else 946_684_800 + (year - 2000) * 366 * DAY + minute * 60
    check(cron, timezone, middle - DAY, middle + DAY)


# ---- marks


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(CHANGING),
    st.integers(2020, 2050),
    st.integers(0, 23),
    st.sampled_from(["0", "30", "0,30"]),
)
def test_every_nominal_time_is_shown_once(timezone: str, year: int, hour: int, minutes: str) -> None:
    """Through all changes of two years: what the fire times stand for is every nominal time, once, in order."""
    schedule = Schedule(cron=f"{minutes} {hour} * * *", timezone=timezone)
    first = int(datetime(year, 1, 1, 12, tzinfo=zoneinfo.ZoneInfo("UTC")).timestamp()) * 1000
    fires = [describe(schedule, ms) for ms in schedule.between(first, first + 731 * DAY * 1000)]
    nominal = [wanted for fire in fires for wanted in fire.nominal]
    per_day = len(values(minutes, 0, 59))
    assert nominal == sorted(set(nominal))
    assert all(wanted.hour == hour and wanted.minute in values(minutes, 0, 59) for wanted in nominal)
    assert len(nominal) in range(731 * per_day - per_day, 731 * per_day + per_day + 1)
    marked = [fire.ms for fire in fires if fire.moved or fire.merged or fire.fold]
    assert marked == [fire.ms for fire in clock_changes(schedule, first) if fire.ms <= fires[-1].ms]
