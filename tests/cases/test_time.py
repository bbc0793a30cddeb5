"""CR-101 to CR-118, DF-112: fire times as the commands list, walk and plan them, and schedules that are refused.

No scheduler runs, except for what DF-112 starts: previews and plans need none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from redsched.definition.model import DagSpec
from tests.processes import Site, line, until

from .commands import Commands
from .conftest import Make

SECOND = timedelta(seconds=1)
NEW_YORK = "America/New_York"


class Window(NamedTuple):
    """What a schedule must give from `first` up to but not including `end`."""

    name: str
    schedule: str
    zone: str
    first: str
    end: str
    fires: list[str]


def at(day: str, times: str) -> list[str]:
    return [f"{day}T{time}:00Z" for time in times.split()]


def on(time: str, days: str) -> list[str]:
    return [f"{day}T{time}:00Z" for day in days.split()]


def every(minutes: int, first: str, count: int) -> list[str]:
    start = datetime.fromisoformat(first)
    return [written(start + i * timedelta(minutes=minutes)) for i in range(count)]


def written(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def of_month(month: str, days: Iterable[int]) -> str:
    return " ".join(f"{month}-{day:02d}" for day in days)


JANUARY = ("2024-01-01T00:00Z", "2024-02-01T00:00Z")
SUNDAYS = on("08:00", of_month("2024-01", (7, 14, 21, 28)))
EVERY_DAY = on("08:00", of_month("2024-01", range(1, 32)))
JUNE = ("2020-06-01T00:00Z", "2020-06-20T00:00Z")
FIRST_WEEK = f"2024-10-18 2024-10-25 {of_month('2024-11', range(1, 9))} 2024-11-15"
WINDOWS = [
    Window("cr101", "0 */2 * * *", "America/Toronto", "2023-03-12T04:00Z", "2023-03-12T18:00Z",
           at("2023-03-12", "05:00 08:00 10:00 12:00 14:00 16:00")),
    Window("cr102a", "0 7-21 * * *", "Europe/Paris", "2023-10-28T18:00Z", "2023-10-29T22:00Z",
           at("2023-10-28", "18:00 19:00") + every(60, "2023-10-29T06:00Z", 15)),
    Window("cr102a.next", "0 7-21 * * *", "Europe/Paris", "2023-10-29T20:00:01Z", "2023-10-30T06:00:01Z",
           ["2023-10-30T06:00:00Z"]),
    Window("cr102b", "0,15,30,45 6-22 * * *", "Europe/Brussels", "2023-10-28T19:00Z", "2023-10-29T07:00Z",
           every(15, "2023-10-28T19:00Z", 8) + every(15, "2023-10-29T05:00Z", 8)),
    Window("cr103", "0 2 * * *", "America/Los_Angeles", "2025-03-08T00:00Z", "2025-03-11T00:00Z",
           ["2025-03-08T10:00:00Z", "2025-03-09T10:00:00Z", "2025-03-10T09:00:00Z"]),
    Window("cr104a", "30 2 * * *", NEW_YORK, "2021-03-13T00:00Z", "2021-03-16T00:00Z",
           ["2021-03-13T07:30:00Z", "2021-03-14T07:00:00Z", "2021-03-15T06:30:00Z"]),
    Window("cr104b", "30 1 * * *", NEW_YORK, "2021-11-06T00:00Z", "2021-11-09T00:00Z",
           ["2021-11-06T05:30:00Z", "2021-11-07T05:30:00Z", "2021-11-08T06:30:00Z"]),
    Window("cr105a", "0 * * * *", "America/Chicago", "2019-11-03T05:00Z", "2019-11-04T06:00Z",
           every(60, "2019-11-03T05:00Z", 25)),
    Window("cr105b", "*/30 * * * *", NEW_YORK, "2021-11-07T04:00Z", "2021-11-07T08:00Z",
           every(30, "2021-11-07T04:00Z", 8)),
    Window("cr105c", "*/30 * * * *", NEW_YORK, "2021-03-14T06:00Z", "2021-03-14T09:00Z",
           every(30, "2021-03-14T06:00Z", 6)),
    Window("cr106.kolkata", "0 * * * *", "Asia/Kolkata", "2026-02-17T12:00Z", "2026-02-17T16:00Z",
           every(60, "2026-02-17T12:30Z", 4)),
    Window("cr106.kathmandu", "0 * * * *", "Asia/Kathmandu", "2026-02-17T12:00Z", "2026-02-17T16:00Z",
           every(60, "2026-02-17T12:15Z", 4)),
    Window("cr107a", "10 3 * * 0", "Europe/Prague", "2025-10-12T00:00Z", "2025-11-03T00:00Z",
           ["2025-10-12T01:10:00Z", "2025-10-19T01:10:00Z", "2025-10-26T02:10:00Z", "2025-11-02T02:10:00Z"]),
    Window("cr107b", "0 0 * * 0", NEW_YORK, "2025-10-30T00:00Z", "2025-11-03T17:00:01Z",
           ["2025-11-02T04:00:00Z"]),
    Window("cr108", "10 0 * * *", "America/Montreal", "2023-03-12T05:10:02Z", "2023-03-16T05:00Z",
           on("04:10", of_month("2023-03", range(13, 17)))),
    Window("cr109a", "0 11 1-7 * FRI", "UTC", "2024-10-11T12:00Z", "2024-11-20T00:00Z",
           on("11:00", FIRST_WEEK)),
    Window("cr109b", "44 17 2 10 6", "UTC", "2016-10-01T00:00Z", "2016-11-01T00:00Z",
           on("17:44", of_month("2016-10", (1, 2, 8, 15, 22, 29)))),
    Window("cr110", "0 0 L * *", "UTC", "2015-09-30T00:00:01Z", "2016-04-01T00:00Z",
           on("00:00", "2015-10-31 2015-11-30 2015-12-31 2016-01-31 2016-02-29 2016-03-31")),
    Window("cr111a", "0 9 29 2 *", "UTC", "2016-02-29T09:00:01Z", "2024-03-01T00:00Z",
           on("09:00", "2020-02-29 2024-02-29")),
    Window("cr111b", "15 22 29 2 *", "UTC", "2016-03-01T00:00Z", "2024-02-29T00:00:01Z",
           ["2020-02-29T22:15:00Z"]),
    Window("cr111c", "0 0 29 2 *", "UTC", "2096-02-29T00:01Z", "2104-02-29T00:00:01Z",
           ["2104-02-29T00:00:00Z"]),
    Window("cr112", "0 0 31 2 1", "UTC", "2024-01-01T00:00Z", "2025-02-03T00:00:01Z",
           on("00:00", "2024-02-05 2024-02-12 2024-02-19 2024-02-26 2025-02-03")),
    Window("cr115.7", "0 8 * * 7", "UTC", *JANUARY, SUNDAYS),
    Window("cr115.sun", "0 8 * * SUN", "UTC", *JANUARY, SUNDAYS),
    Window("cr115.0", "0 8 * * 0", "UTC", *JANUARY, SUNDAYS),
    Window("cr115.1-7", "0 8 * * 1-7", "UTC", *JANUARY, EVERY_DAY),
    Window("cr118.est", "0 9 * * 1", "EST", *JUNE, on("14:00", "2020-06-01 2020-06-08 2020-06-15")),
    Window("cr118.new_york", "0 9 * * 1", NEW_YORK, *JUNE, on("13:00", "2020-06-01 2020-06-08 2020-06-15")),
]  # fmt: skip

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Refusal(NamedTuple):
    """`said`: the message names these, and the value that was written."""

    name: str
    schedule: str
    zone: str
    said: tuple[str, ...]


NEVER = ("0 0 31 2 *", "0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6 *")
REFUSALS = [
    *(Refusal(f"cr112.{i}", text, "UTC", ("schedule", "can never fire")) for i, text in enumerate(NEVER)),
    Refusal("cr113.0", "*/0 * * * *", "UTC", ("schedule", "the minute field '*/0' has the step 0")),
    Refusal("cr113.1", "5-5/0 * * * *", "UTC", ("schedule", "the minute field '5-5/0' has the step 0")),
    Refusal("cr113.2", "59-0/0 * * * *", "UTC", ("schedule", "the minute field '59-0/0' has the step 0")),
    Refusal("cr113.3", "0 */0 * * *", "UTC", ("schedule", "the hour field '*/0' has the step 0")),
    Refusal("cr114.six", "0 */5 * * * *", "UTC", ("schedule", "expected 5 fields", "got 6")),
    Refusal("cr114.seconds", "*/30 * * * * *", "UTC", ("schedule", "expected 5 fields", "got 6")),
    Refusal("cr114.seven", "0 0 1 1 * 0 2030", "UTC", ("schedule", "expected 5 fields", "got 7")),
    Refusal("cr115.mon-sun", "0 8 * * Mon-Sun", "UTC", ("schedule", "day of week", "write 1-7")),
    Refusal("cr115.8", "0 8 * * 8", "UTC", ("schedule", "day of week", "can't be 8")),
    Refusal("cr116.reboot", "@reboot", "UTC", ("schedule", "is not known")),
    Refusal("cr116.every", "@every_5m", "UTC", ("schedule", "is not known")),
    Refusal("cr116.case", "@Daily", "UTC", ("schedule", "is not known; write @daily")),
    Refusal("cr116.once", "@once", "UTC", ("schedule", "is not known")),
    Refusal("cr117", "H/5 * * * *", "UTC", ("schedule", "minute", "hashed values (H) are not supported")),
    Refusal("cr118.eastern", "0 9 * * 1", "Eastern", ("timezone", "'Eastern'")),
    Refusal("cr118.offset", "0 9 * * 1", "UTC+2", ("timezone", "'UTC+2'")),
    Refusal("cr118.empty", "0 9 * * 1", "", ("timezone", "''")),
]


def document(dag: str, schedule: str, zone: str, **more: Any) -> str:
    """JSON is YAML."""
    return json.dumps(
        {"dag": dag, "schedule": schedule, "timezone": zone, "tasks": {"a": {"run": line()}}, **more}
    )


@pytest.fixture(scope="module")
def site(make_shared: Make) -> Site:
    return make_shared()


@pytest.fixture(scope="module")
def run(site: Site) -> Iterator[Commands]:
    """All windows are registered, by one command."""
    folder = site.folder / "good"
    folder.mkdir()
    texts = {w.name: document(w.name, w.schedule, w.zone) for w in WINDOWS}
    for name, text in NICKNAMES.items():
        texts |= {
            x: document(x, t, "Europe/Paris") for x, t in ((name[1:], name), (f"{name[1:]}.five", text))
        }
    (folder / "all.yaml").write_text("\n---\n".join(texts.values()))
    with Commands(site) as made:
        rows = made.json("dag", "register", "good")
        assert {row["dag"] for row in rows} == texts.keys()
        yield made


def inclusive(end: str) -> str:
    """The last second of a half-open window."""
    return written(datetime.fromisoformat(end) - SECOND)


def bases(window: Window) -> list[str]:
    """The same instant in UTC, in the zone with its offset, and as plain local time where that is one instant."""
    local = datetime.fromisoformat(window.first).astimezone(ZoneInfo(window.zone))
    plain = local.replace(tzinfo=None, fold=0)
    once = plain.replace(tzinfo=local.tzinfo) == plain.replace(tzinfo=local.tzinfo, fold=1)
    return [window.first, local.isoformat(), *([plain.isoformat()] if once else [])]


of_windows = pytest.mark.parametrize("window", WINDOWS, ids=lambda w: w.name)


@of_windows
def test_listed(run: Commands, window: Window) -> None:
    """In one go, from a base in UTC, from the same one in the zone, and for people."""
    options = ["dag", "next", window.name, "--to", inclusive(window.end), "--from"]
    *lists, shown = run.at_once(
        [*([*options, base, "--json"] for base in bases(window)), [*options, window.first]]
    )
    assert [json.loads(done.out) for done in lists] == [window.fires] * len(lists)
    assert [row.split()[0] for row in shown.out.splitlines()[1:]] == window.fires


@of_windows
def test_walked(run: Commands, window: Window) -> None:
    """From each fire time to the next, each step a new process; the last step finds the first one after the window."""
    found = []
    base = datetime.fromisoformat(window.first)
    end = datetime.fromisoformat(window.end)
    while True:
        (step,) = run.json("dag", "next", window.name, "--from", base.isoformat(), "-n", "1")
        fire = datetime.fromisoformat(step)
        assert fire >= base
        if fire >= end:
            break
        found.append(step)
        base = fire + SECOND
    assert found == window.fires


@of_windows
def test_planned(run: Commands, window: Window) -> None:
    """The plan of a backfill; newest first it is found by walking back."""
    options = ["backfill", "start", window.name, "--from", window.first, "--to", inclusive(window.end)]
    plans = run.at_once(
        [[*options, "--dry-run", "--json", "--order", order] for order in ("oldest", "newest")]
    )
    oldest, newest = (json.loads(done.out) for done in plans)
    assert oldest["dates"] == window.fires
    assert newest["dates"] == window.fires[::-1]
    assert oldest["count"] == newest["count"] == oldest["runs"] == len(window.fires)


def test_cr_107_next_and_the_one_before_agree(run: Commands) -> None:
    """Before: the first date of a plan that begins with the newest."""
    assert run.json("dag", "next", "cr107a", "--from", "2025-10-19T12:00", "-n", "1") == [
        "2025-10-26T02:10:00Z"
    ]
    plans = [
        run.json("backfill", "start", dag, "--dry-run", "--order", "newest", "--from", first, "--to", last)
        for dag, first, last in (
            ("cr107a", "2025-09-01", "2025-10-26T02:09:59Z"),
            ("cr107b", "2025-09-01", "2025-11-03T12:00"),
        )
    ]
    assert [p["dates"][0] for p in plans] == ["2025-10-19T01:10:00Z", "2025-11-02T04:00:00Z"]


def test_cr_111_a_dag_whose_next_run_is_years_off_stays_enabled(run: Commands) -> None:
    shown = run.json("dag", "show", "cr111a")
    now = datetime.now(UTC)
    leap = next(
        y for y in range(now.year, now.year + 9) if y % 4 == 0 and datetime(y, 2, 29, 9, tzinfo=UTC) > now
    )
    assert (shown["paused"], shown["next"]) == (False, f"{leap}-02-29T09:00:00Z")


@pytest.mark.parametrize("name", NICKNAMES)
def test_cr_116_names_equal_their_five_fields_in_the_zone(run: Commands, name: str) -> None:
    dag = name[1:]
    options = ["--from", "2026-03-28", "-n", "6", "--json"]
    named, five = run.at_once([["dag", "next", x, *options] for x in (dag, f"{dag}.five")])
    assert named == five
    for fire in json.loads(named.out):
        local = datetime.fromisoformat(fire).astimezone(ZoneInfo("Europe/Paris"))
        assert local.minute == 0 and (name == "@hourly" or local.hour == 0)


def test_an_interval_keeps_its_anchor_however_slow_its_registration_is(
    site: Site, run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second changes between the look at the clock and the registration: the preview, the slot, the next version."""
    text = {"dag": "anchor", "schedule": {"every": "7m"}, "tasks": {"a": {"run": line()}}}
    client = site.client
    now = client.store.control.now
    monkeypatch.setattr(client.store.control, "now", lambda: now() - 1500)
    client.register(DagSpec.model_validate(text))
    monkeypatch.undo()
    slot = client.dag("anchor")["next"]
    assert run.json("dag", "next", "anchor", "-n", "1") == [slot]
    assert "schedule" not in client.register(DagSpec.model_validate(text | {"description": "changed"}))
    assert client.dag("anchor")["next"] == slot


# ---- what is refused


@pytest.fixture(scope="module")
def refused(site: Site, run: Commands) -> dict[str, str]:
    """The messages of one `dag register` of all that is refused, beside one that is not."""
    folder = site.folder / "bad"
    folder.mkdir()
    for one in REFUSALS:
        (folder / f"{one.name}.yaml").write_text(document(one.name, one.schedule, one.zone))
    (folder / "healthy.yaml").write_text(document("healthy", "* * * * *", "UTC"))
    needy = document("df112.needy", "@daily", "UTC", params={"day": {"type": "string"}})
    (folder / "df112.needy.yaml").write_text(needy)
    done = run("dag", "register", "bad", "--json", code=2)
    rows = json.loads(done.out)
    found = {
        row["path"].rpartition("/")[2].removesuffix(".yaml"): row["error"] for row in rows if "error" in row
    }
    assert all(error in done.err for error in found.values())
    assert [row["dag"] for row in rows if "error" not in row] == ["healthy"]
    return found


@pytest.mark.parametrize("one", REFUSALS, ids=lambda r: r.name)
def test_refused(run: Commands, refused: dict[str, str], one: Refusal) -> None:
    """By name of the file, the DAG, the field and the value; a preview refuses it too, and it is not there."""
    value = one.zone if one.said[0] == "timezone" else one.schedule
    for word in (f"{one.name}.yaml", one.name, value, *one.said):
        assert word in refused[one.name]
    preview, shown = run.at_once([["dag", "next", f"bad/{one.name}.yaml"], ["dag", "show", one.name]])
    assert (preview.code, preview.out, shown.code) == (2, "", 3)
    assert one.said[1] in preview.err


def test_cr_112_a_refusal_takes_no_second(run: Commands, refused: dict[str, str]) -> None:
    for i in range(len(NEVER)):
        began = time.monotonic()
        run("dag", "register", f"bad/cr112.{i}.yaml", code=2)
        assert time.monotonic() - began < 1


def test_df_112_a_schedule_can_not_ask_for_a_parameter(refused: dict[str, str]) -> None:
    assert "df112.needy" in refused["df112.needy"] and "params.day" in refused["df112.needy"]
    assert "needs a default" in refused["df112.needy"]


# ---- with a scheduler


def test_df_112_scheduled_runs_get_the_defaults(site: Site, run: Commands) -> None:
    """Also CR-112: a healthy DAG fires beside those that were refused. "8" as text is no integer, -p x=8 is one."""
    site.start(1, 1)
    tasks = {"t": {"run": line("x=$REDSCHED_PARAM_X")}}
    params = {"x": {"type": "integer", "minimum": 5, "maximum": 10, "default": 7}}
    text = {"dag": "df112", "schedule": {"every": "1s"}, "params": params, "tasks": tasks}
    (site.folder / "df112.yaml").write_text(json.dumps(text))
    run("dag", "register", "df112.yaml")
    until(lambda: len(site.trail("t")) >= 2, "no two slots")
    run("dag", "pause", "df112")
    assert {x.word for x in site.trail("t")} == {"x=7"}
    before = len(run.json("run", "list", "--dag", "df112"))
    wrong = run.at_once(
        [["run", "start", "df112", "-p", given] for given in ("x=11", "x=null", 'x="8"', "y=1")]
    )
    assert [done.code for done in wrong] == [2] * 4
    for done, name in zip(wrong, ("x", "x", "x", "y"), strict=True):
        assert f"parameter {name} of DAG df112" in done.err or f"parameter '{name}'" in done.err, done.err
    assert len(run.json("run", "list", "--dag", "df112")) == before
    run("dag", "resume", "df112")
    ids = [run.json("run", "start", "df112", *given)["run"] for given in ((), ("-p", "x=8"))]
    until(lambda: all(site.trail("t", one) for one in ids), "not both have run")
    assert [site.trail("t", one)[0].word for one in ids] == ["x=7", "x=8"]
    run("dag", "pause", "df112")
