"""Fire times: the lists of the cases, each in one go, step by step, forwards, backwards, and from any base."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redsched.definition.cron import check_schedule
from redsched.definition.model import DagSpec
from redsched.definition.values import parse_instant, zone
from redsched.errors import DefinitionError
from redsched.schedule import Schedule, change_warning, clock_changes, describe, interval, spread_ms

NY, PARIS, LA = "America/New_York", "Europe/Paris", "America/Los_Angeles"


def ms(text: str) -> int:
    return round(parse_instant(text).timestamp() * 1000)


def text(instant: int) -> str:
    return datetime.fromtimestamp(instant / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


def every(first: str, last: str, minutes: int) -> list[str]:
    """All instants from first to last."""
    return [text(at) for at in range(ms(f"{first}Z"), ms(f"{last}Z") + 1, minutes * 60_000)]


def days(times: str, *dates: str) -> list[str]:
    return [f"{date}T{times}" for date in dates]


# (id, expression, zone, from, to (not included), the exact list)
LISTS = [
    (
        "CR-101",
        "0 */2 * * *",
        "America/Toronto",
        "2023-03-12T04:00",
        "2023-03-12T18:00",
        [f"2023-03-12T{h}:00" for h in ("05", "08", "10", "12", "14", "16")],
    ),
    (
        "CR-102a",
        "0 7-21 * * *",
        PARIS,
        "2023-10-28T18:00",
        "2023-10-29T22:00",
        [
            *every("2023-10-28T18:00", "2023-10-28T19:00", 60),
            *every("2023-10-29T06:00", "2023-10-29T20:00", 60),
        ],
    ),
    (
        "CR-102b",
        "0,15,30,45 6-22 * * *",
        "Europe/Brussels",
        "2023-10-28T19:00",
        "2023-10-29T07:00",
        [
            *every("2023-10-28T19:00", "2023-10-28T20:45", 15),
            *every("2023-10-29T05:00", "2023-10-29T06:45", 15),
        ],
    ),
    (
        "CR-103",
        "0 2 * * *",
        LA,
        "2025-03-08T00:00",
        "2025-03-11T00:00",
        ["2025-03-08T10:00", "2025-03-09T10:00", "2025-03-10T09:00"],
    ),
    (
        "CR-104a",
        "30 2 * * *",
        NY,
        "2021-03-13T00:00",
        "2021-03-16T00:00",
        ["2021-03-13T07:30", "2021-03-14T07:00", "2021-03-15T06:30"],
    ),
    (
        "CR-104b",
        "30 1 * * *",
        NY,
        "2021-11-06T00:00",
        "2021-11-09T00:00",
        ["2021-11-06T05:30", "2021-11-07T05:30", "2021-11-08T06:30"],
    ),
    (
        "CR-105a",
        "0 * * * *",
        "America/Chicago",
        "2019-11-03T05:00",
        "2019-11-04T06:00",
        every("2019-11-03T05:00", "2019-11-04T05:00", 60),
    ),
    (
        "CR-105b",
        "*/30 * * * *",
        NY,
        "2021-11-07T04:00",
        "2021-11-07T08:00",
        every("2021-11-07T04:00", "2021-11-07T07:30", 30),
    ),
    (
        "CR-105c",
        "*/30 * * * *",
        NY,
        "2021-03-14T06:00",
        "2021-03-14T09:00",
        every("2021-03-14T06:00", "2021-03-14T08:30", 30),
    ),
    (
        "CR-106 Kolkata",
        "0 * * * *",
        "Asia/Kolkata",
        "2026-02-17T12:00",
        "2026-02-17T16:00",
        every("2026-02-17T12:30", "2026-02-17T15:30", 60),
    ),
    (
        "CR-106 Kathmandu",
        "0 * * * *",
        "Asia/Kathmandu",
        "2026-02-17T12:00",
        "2026-02-17T16:00",
        every("2026-02-17T12:15", "2026-02-17T15:15", 60),
    ),
    (
        "CR-107a",
        "10 3 * * 0",
        "Europe/Prague",
        "2025-10-12T00:00",
        "2025-11-03T00:00",
        ["2025-10-12T01:10", "2025-10-19T01:10", "2025-10-26T02:10", "2025-11-02T02:10"],
    ),
    (
        "CR-108",
        "10 0 * * *",
        "America/Montreal",
        "2023-03-12T05:10:02",
        "2023-03-17T00:00",
        days("04:10", "2023-03-13", "2023-03-14", "2023-03-15", "2023-03-16"),
    ),
    (
        "CR-109a",
        "0 11 1-7 * FRI",
        "UTC",
        "2024-10-11T12:00",
        "2024-11-20T00:00",
        days("11:00", "2024-10-18", "2024-10-25", *(f"2024-11-0{d}" for d in range(1, 9)), "2024-11-15"),
    ),
    (
        "CR-109b",
        "44 17 2 10 6",
        "UTC",
        "2016-10-01T00:00",
        "2016-11-01T00:00",
        days("17:44", *(f"2016-10-{d}" for d in ("01", "02", "08", "15", "22", "29"))),
    ),
    (
        "CR-110",
        "0 0 L * *",
        "UTC",
        "2015-09-30T00:01",
        "2016-04-01T00:00",
        days("00:00", "2015-10-31", "2015-11-30", "2015-12-31", "2016-01-31", "2016-02-29", "2016-03-31"),
    ),
    (
        "CR-111a",
        "0 9 29 2 *",
        "UTC",
        "2016-02-29T09:01",
        "2025-01-01T00:00",
        days("09:00", "2020-02-29", "2024-02-29"),
    ),
    (
        "CR-111c",
        "0 0 29 2 *",
        "UTC",
        "2096-02-29T00:01",
        "2105-01-01T00:00",
        days("00:00", "2104-02-29"),
    ),
    (
        "CR-112",
        "0 0 31 2 1",
        "UTC",
        "2024-01-01T00:00",
        "2025-02-04T00:00",
        days("00:00", "2024-02-05", "2024-02-12", "2024-02-19", "2024-02-26", "2025-02-03"),
    ),
    *(
        (
            f"CR-115 {day}",
            f"0 8 * * {day}",
            "UTC",
            "2024-01-01T00:00",
            "2024-01-29T00:00",
            days("08:00", "2024-01-07", "2024-01-14", "2024-01-21", "2024-01-28"),
        )
        for day in ("7", "SUN", "0", "7-7", "7,0")
    ),
    (
        "CR-115 1-7",
        "0 8 * * 1-7",
        "UTC",
        "2024-01-01T00:00",
        "2024-01-15T00:00",
        every("2024-01-01T08:00", "2024-01-14T08:00", 1440),
    ),
    (
        "5#3,L5",
        "0 8 * * 5#3,L5",
        "UTC",
        "2024-01-01T00:00",
        "2024-04-01T00:00",
        days("08:00", "2024-01-19", "2024-01-26", "2024-02-16", "2024-02-23", "2024-03-15", "2024-03-29"),
    ),
    (
        "CR-118 EST",
        "0 9 * * 1",
        "EST",
        "2020-06-01T00:00",
        "2020-06-20T00:00",
        days("14:00", "2020-06-01", "2020-06-08", "2020-06-15"),
    ),
    (
        "CR-118 New York",
        "0 9 * * 1",
        NY,
        "2020-06-01T00:00",
        "2020-06-20T00:00",
        days("13:00", "2020-06-01", "2020-06-08", "2020-06-15"),
    ),
]
CASES = pytest.mark.parametrize(
    ("cron", "timezone", "start", "end", "right"), [case[1:] for case in LISTS], ids=[c[0] for c in LISTS]
)


@CASES
def test_a_list_in_one_go(cron: str, timezone: str, start: str, end: str, right: list[str]) -> None:
    """Both ends of `between` are included."""
    schedule = Schedule(cron=cron, timezone=timezone)
    assert [text(at) for at in schedule.between(ms(f"{start}Z"), ms(f"{end}Z") - 1)] == right
    first, last = ms(f"{right[0]}Z"), ms(f"{right[-1]}Z")
    assert [text(at) for at in schedule.between(first, last)] == right


@CASES
def test_a_walk_from_utc_and_from_local_bases(
    cron: str, timezone: str, start: str, end: str, right: list[str]
) -> None:
    """Each step begins anew with an instant that is written down in the DAG's zone and read again."""
    schedule = Schedule(cron=cron, timezone=timezone)
    for local in (False, True):
        at, walked = ms(f"{start}Z") - 1, []
        while (following := schedule.next_after(at)) is not None and following < ms(f"{end}Z"):
            moment = datetime.fromtimestamp(following / 1000, zone(timezone) if local else UTC)
            at = ms(moment.isoformat())
            walked.append(text(at))
        assert walked == right


@CASES
def test_a_walk_backwards(cron: str, timezone: str, start: str, end: str, right: list[str]) -> None:
    schedule = Schedule(cron=cron, timezone=timezone)
    at, walked = ms(f"{end}Z"), []
    while (before := schedule.last_before(at)) is not None and before >= ms(f"{start}Z"):
        walked.append(text(before))
        assert schedule.at_or_before(before) == before
        assert schedule.at_or_before(at - 1) == before
        at = before
    assert walked[::-1] == right


def test_steps_around_a_change() -> None:
    """CR-107, CR-102: the next, the one before it, and the latest slot agree; every step moves forward."""
    prague = Schedule(cron="10 3 * * 0", timezone="Europe/Prague")
    following = prague.next_after(ms("2025-10-19T12:00+02:00"))
    assert following == ms("2025-10-26T02:10Z")
    assert prague.last_before(following) == ms("2025-10-19T01:10Z")
    sundays = Schedule(cron="0 0 * * 0", timezone=NY)
    assert sundays.at_or_before(ms("2025-11-03T12:00-05:00")) == ms("2025-11-02T04:00Z")
    assert Schedule(cron="0 7-21 * * *", timezone=PARIS).next_after(ms("2023-10-29T20:00Z")) == ms(
        "2023-10-30T06:00Z"
    )


def test_leap_days() -> None:
    """CR-111 (b): backwards too, from one and from before one."""
    schedule = Schedule(cron="15 22 29 2 *")
    assert schedule.last_before(ms("2024-02-29T00:00Z")) == ms("2020-02-29T22:15Z")
    assert schedule.last_before(ms("2020-02-29T22:15Z")) == ms("2016-02-29T22:15Z")
    assert Schedule(cron="0 0 29 2 *").last_before(ms("2104-02-29T00:00Z")) == ms("2096-02-29T00:00Z")


@pytest.mark.parametrize("name", ["Eastern", "UTC+2", ""])
def test_unknown_zones_are_never_utc(name: str) -> None:
    """CR-118."""
    with pytest.raises(DefinitionError, match="no known time zone"):
        zone(name)


def test_a_gap_of_a_day() -> None:
    """Samoa had no 30 December 2011: its midnight becomes one with that of the 31st."""
    schedule = Schedule(cron="0 0 * * *", timezone="Pacific/Apia")
    found = schedule.between(ms("2011-12-29T00:00Z"), ms("2012-01-01T00:00Z"))
    assert [text(at) for at in found] == ["2011-12-29T10:00", "2011-12-30T10:00", "2011-12-31T10:00"]


def test_what_only_a_gap_would_hold_ends_with_none() -> None:
    """A wildcard job at 02:00 on the second Sunday of March never comes in New York, and soon says so."""
    schedule = Schedule(cron="*/30 2 * 3 0#2", timezone=NY)
    begun = datetime.now(UTC)
    assert schedule.next_after(ms("2026-01-01T00:00Z")) is None
    assert schedule.last_before(ms("2057-01-01T00:00Z")) is None
    assert datetime.now(UTC) - begun < timedelta(seconds=2)


# ---- bounds, distances, storage


def test_start_and_end_are_included() -> None:
    """BF-107: nothing before the one, nothing after the other, in every direction."""
    schedule = Schedule(cron="@hourly", start_ms=ms("2015-01-01T00:00Z"), end_ms=ms("2015-01-01T02:00Z"))
    right = ["2015-01-01T00:00", "2015-01-01T01:00", "2015-01-01T02:00"]
    assert [text(at) for at in schedule.between(0, ms("2030-01-01T00:00Z"))] == right
    assert schedule.next_after(0) == ms("2015-01-01T00:00Z")
    assert schedule.next_after(ms("2015-01-01T02:00Z")) is None
    assert schedule.last_before(ms("2030-01-01T00:00Z")) == ms("2015-01-01T02:00Z")
    assert schedule.last_before(ms("2015-01-01T00:00Z")) is None


def test_every_counts_real_seconds_from_its_anchor() -> None:
    """Through a change of the clocks, forwards and backwards, and before the anchor too."""
    anchor = ms("2026-01-01T00:00:07Z")
    schedule = Schedule(every_ms=900_000, anchor_ms=anchor, timezone=PARIS)
    first, last = ms("2026-03-29T00:00Z"), ms("2026-03-29T03:00Z")
    found = list(schedule.between(first, last))
    assert found == [at for at in range(first, last + 1, 1000) if (at - anchor) % 900_000 == 0]
    assert [schedule.next_after(at) for at in found[:-1]] == found[1:]
    assert [schedule.last_before(at) for at in found[1:]] == found[:-1]
    assert schedule.next_after(anchor - 1) == anchor and schedule.last_before(anchor) == anchor - 900_000
    assert clock_changes(schedule, first) == []


def spec_of(**more: Any) -> DagSpec:
    return DagSpec.model_validate({"dag": "orders", "tasks": {"a": {"run": "true"}}, **more})


def test_the_schedule_of_a_dag() -> None:
    """The anchor of `every` is `start`, or else the second of the first registration; stored, it comes back equal."""
    registered = ms("2026-05-01T12:00:03Z") + 250
    plain = Schedule.of(spec_of(schedule={"every": "15m"}), registered)
    assert plain is not None and plain.next_after(registered) == ms("2026-05-01T12:15:03Z")
    begun = Schedule.of(spec_of(schedule={"every": "15m"}, start="2026-05-02"), registered)
    assert begun is not None and begun.next_after(registered) == ms("2026-05-02T00:00Z")
    cron = Schedule.of(spec_of(schedule="@daily", timezone=PARIS, end="2026-05-03"), registered)
    assert cron is not None and cron.next_after(registered) == ms("2026-05-01T22:00Z")
    assert [text(at) for at in cron.between(registered, registered * 2)] == days(
        "22:00", "2026-05-01", "2026-05-02"
    )
    for schedule in (plain, begun, cron):
        assert Schedule.from_stored({**json.loads(json.dumps(schedule.to_stored())), "other": 1}) == schedule
    assert Schedule.of(spec_of(), 0) is None
    assert Schedule.of(spec_of(schedule={"after": "other"}), 0) is None


@pytest.mark.parametrize(
    ("cron", "timezone"), [("0 0 * * *", PARIS), ("*/7 * * * *", "UTC"), ("0 0 29 2 *", NY)]
)
def test_the_ends_of_time(cron: str, timezone: str) -> None:
    """No instant that can be written makes it stumble."""
    schedule = Schedule(cron=cron, timezone=timezone)
    for year in (1, 2, 1901, 2038, 2400, 9998, 9999):
        for at in (ms(f"{year:04}-01-02T00:00Z"), ms(f"{year:04}-12-30T00:00Z")):
            following, before = schedule.next_after(at), schedule.last_before(at)
            assert following is None or following > at
            assert before is None or before < at
    assert Schedule(every_ms=1000).next_after(ms("9999-12-30T00:00Z")) is None


def test_the_interval_of_a_slot() -> None:
    """From the slot before up to the slot; the first one too, and 23 hours on the day of the change."""
    daily = Schedule(cron="0 0 * * *", timezone=PARIS, start_ms=ms("2026-03-29T22:00Z"))
    assert interval(daily, ms("2026-03-29T22:00Z")) == (ms("2026-03-28T23:00Z"), ms("2026-03-29T22:00Z"))
    assert interval(Schedule(every_ms=60_000), 600_000) == (540_000, 600_000)
    assert interval(Schedule(), 5) == (5, 5)


def test_spread() -> None:
    """The same on every host, below the window, whole seconds, and not the same for all."""
    found = {spread_ms(f"dag-{n}", 600_000) for n in range(500)}
    assert spread_ms("nightly", 600_000) == 306_000
    assert min(found) >= 0 and max(found) < 600_000 and len(found) > 200
    assert all(n % 1000 == 0 for n in found)
    assert spread_ms("nightly", None) == 0 and spread_ms("nightly", 1) == 0


# ---- marks


def notes(cron: str, timezone: str, *instants: str) -> list[str]:
    schedule = Schedule(cron=cron, timezone=timezone)
    return [describe(schedule, ms(f"{at}Z")).note for at in instants]


def test_what_is_said_of_a_fire_time() -> None:
    gap, first, second = "2026-03-08T07:00", "2026-11-01T05:30", "2026-11-01T06:30"
    assert notes("30 2 * * *", NY, gap) == ["moved: 02:30 does not exist"]
    assert notes("0,15,30,45 2 * * *", NY, gap) == [
        "moved: 02:00, 02:15, 02:30 and 1 more do not exist, one run for 4 times"
    ]
    assert notes("30 2,3 * * *", NY, gap, "2026-03-08T07:30") == ["moved: 02:30 does not exist", ""]
    assert notes("30 1 * * *", NY, first) == ["first pass of two, the only one that counts"]
    assert notes("*/30 * * * *", NY, first, second) == ["first pass of two", "second pass of two"]
    assert notes("0 3 * * *", NY, gap, "2026-11-01T08:00") == ["", ""]
    fire = describe(Schedule(cron="0 2,3 * * *", timezone=NY), ms(f"{gap}Z"))
    assert (fire.moved, fire.merged, fire.fold, fire.offset) == (True, True, 0, "-04:00")
    assert [wanted.hour for wanted in fire.nominal] == [2, 3] and fire.local.hour == 3


def test_what_clock_changes_touch() -> None:
    """In two years: moved and first passes of fixed times; what a wildcard job with fixed hours leaves out or does twice."""
    begin = ms("2026-01-01T00:00Z")

    def found(cron: str, timezone: str = NY) -> list[str]:
        return [text(fire.ms) for fire in clock_changes(Schedule(cron=cron, timezone=timezone), begin)]

    assert found("30 2 * * *") == ["2026-03-08T07:00", "2027-03-14T07:00"]
    assert found("30 1 * * *") == ["2026-11-01T05:30", "2027-11-07T05:30"]
    assert found("*/30 2 * * *") == ["2026-03-08T07:00", "2027-03-14T07:00"]
    assert found("*/30 1 * * *")[:4] == [f"2026-11-01T{at}" for at in ("05:00", "05:30", "06:00", "06:30")]
    assert (
        found("0 * * * *") == found("*/15 * * * *") == found("0 5 * * *") == found("30 2 * * *", "UTC") == []
    )
    assert change_warning(Schedule(cron="0 5 * * *", timezone=NY), begin) is None
    warning = change_warning(Schedule(cron="30 2 * * *", timezone=NY), begin)
    assert warning is not None and "2026-03-08T07:00:00Z (2026-03-08 03:00-04:00: moved: 02:30" in warning
    ended = Schedule(cron="*/30 2 * * *", timezone=NY, end_ms=ms("2026-03-01T00:00Z"))
    assert clock_changes(ended, begin) == []


# ---- what croniter alone reads otherwise


@pytest.mark.parametrize(
    ("cron", "same"),
    [
        ("5-5 7-7 * * *", "5 7 * * *"),
        ("0 0 * * 7-7", "0 0 * * 0"),
        ("0 0 * * 7/1", "0 0 * * 0"),
        ("0 0 * * 5/2", "0 0 * * 5,7"),
        ("0 0 * * LFRI", "0 0 * * L5"),
        ("0 0 * * 5#L", "0 0 * * L5"),
        ("0 0 * * SUN#2", "0 0 * * 7#2"),
        ("@weekly", "0 0 * * 0"),
    ],
)
def test_other_ways_to_write_it(cron: str, same: str) -> None:
    first, last = ms("2026-01-01T00:00Z"), ms("2027-01-01T00:00Z")
    found = list(Schedule(cron=cron).between(first, last))
    assert found and found == list(Schedule(cron=same).between(first, last))


@pytest.mark.parametrize("cron", ["0 0 */30 * 1#2", "0 0 */29 2 1#5"])
def test_day_fields_without_a_common_day_are_refused(cron: str) -> None:
    with pytest.raises(DefinitionError, match="can never fire: its day fields have no day in common"):
        check_schedule(cron)


def test_plain_days_beside_numbered_ones_are_refused() -> None:
    with pytest.raises(DefinitionError, match="mixes plain days with # or L"):
        check_schedule("0 8 * * 1,5#3")
