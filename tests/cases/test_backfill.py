"""BF-101 to BF-108, PL-106, RT-110, CR-101, CR-105: slots and backfills that become runs, with schedulers and workers.

Minutes are made short in two ways: schedules `every: 1s` for real, and cron slots that a test moves into the past.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from redsched.store import Store
from tests.processes import ROOT, Process, Site, gate, sh, until

from .commands import Commands
from .conftest import Make

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
EVERY_MINUTE = "* * * * *"
OK = {"call": "bodies:ok"}
SCHEDULERS = 3
SKEW = """
import datetime, os, time
SECONDS, read, Real = float(os.environ.get("SKEW", "0")), time.time, datetime.datetime
if SECONDS:
    class Skewed(Real):
        @classmethod
        def now(cls, tz=None):
            return Real.now(tz) + datetime.timedelta(seconds=SECONDS)
    time.time = lambda: read() + SECONDS
    time.time_ns = lambda: int((read() + SECONDS) * 1e9)
    datetime.datetime = Skewed
"""


class Clocks:
    """An installation with three schedulers and four workers, the clocks of two of each are wrong by 300 ms."""

    def __init__(self, made: Site) -> None:
        self.made = made
        self.client = made.client
        self.store = Store.open(made.settings, "test")
        self.redis = Redis.from_url(made.settings.redis or "")
        skew = made.folder / "skew"
        skew.mkdir()
        (skew / "sitecustomize.py").write_text(SKEW)
        made.extra_env["PYTHONPATH"] = f"{skew}:{ROOT}"
        self.run = Commands(made)
        workers = []
        for skewed in ("0.3", "-0.3", "0", "0"):
            made.extra_env["SKEW"] = skewed
            workers.append(made.worker(concurrency=8))
        made.ready([*self.start_schedulers(), *workers])

    def start_schedulers(self) -> list[Process]:
        self.schedulers = []
        for skew in ("0.3", "-0.3", "0"):
            self.made.extra_env["SKEW"] = skew
            self.schedulers.append(self.made.process("scheduler"))
        return self.schedulers

    def kill_schedulers(self) -> None:
        for one in self.schedulers:
            one.kill()

    def close(self) -> None:
        self.run.__exit__()
        self.store.close()
        self.redis.close()

    # ---- DAGs

    def register(
        self, dag: str, schedule: Any, *words: str, task: dict[str, Any] | None = None, **more: Any
    ) -> None:
        """Its task has its name, because runs of different DAGs have the same ids."""
        text = {"dag": dag, "schedule": schedule, "tasks": {dag: task or OK}, **more}
        (self.made.folder / f"{dag}.yaml").write_text(json.dumps(text))
        self.run("dag", "register", f"{dag}.yaml", *words)

    def now(self) -> datetime:
        """By Redis' clock, as for slots."""
        return datetime.fromtimestamp(self.store.control.now() / 1000, UTC)

    def due_since(self, dag: str, first: datetime) -> None:
        """As if nobody had dealt with the slots from this one on."""
        ms = int(first.timestamp() * 1000)
        prefix = self.store.shard.prefix(dag)
        self.redis.hset(f"{prefix}dag:{dag}", "slot", ms)
        self.redis.zadd(f"{prefix}slots", {dag: ms})
        self.redis.xadd(f"{prefix}inbox", {"kind": "limits", "id": dag})

    def rows(self, dag: str, *words: str) -> list[dict[str, Any]]:
        """The oldest first."""
        found: list[dict[str, Any]] = self.run.json("run", "list", "--dag", dag, "--limit", "200", *words)
        return found[::-1]

    def dates(self, dag: str) -> list[str]:
        return [row["logical_date"] for row in self.rows(dag)]

    def story(self, dag: str) -> tuple[list[datetime], list[datetime]]:
        """The dates that became runs, and those that did not."""
        rows = self.rows(dag, "--include-skipped")
        made: tuple[list[datetime], list[datetime]] = ([], [])
        for row in rows:
            made[row["state"] == "skipped"].append(datetime.fromisoformat(row["logical_date"]))
        return made

    def quiet(self, dag: str, count: int, seconds: float = 30) -> list[dict[str, Any]]:
        """The runs, when so many have succeeded."""

        def over() -> bool:
            return len(self.client.runs(dag, "success", 200)) >= count

        until(
            over, lambda: f"{dag}: {Counter(r['state'] for r in self.client.runs(dag, limit=200))}", seconds
        )
        return self.rows(dag)

    def executed(self, dag: str) -> list[str]:
        """The runs whose bodies began, in their order."""
        return [x.run for x in self.made.begun(dag)]

    # ---- backfills

    def backfill(self, dag: str, first: str, last: str, *words: str, code: int = 0) -> Any:
        options = ["--from", first, "--to", last, *words]
        done = self.run("backfill", "start", dag, *options, "--json", code=code)
        return json.loads(done.out) if code == 0 else done.err

    def done(self, ident: str, seconds: float = 30) -> dict[str, Any]:
        until(
            lambda: self.client.backfill_show(ident)["state"] == "done",
            lambda: str(self.client.backfill_show(ident)),
            seconds,
        )
        shown: dict[str, Any] = self.run.json("backfill", "show", ident)
        return shown


def floor(moment: datetime, unit: timedelta = MINUTE) -> datetime:
    return moment - (moment - datetime(2020, 1, 1, tzinfo=UTC)) % unit


def written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def rising(first: datetime, count: int, step: timedelta = MINUTE) -> list[datetime]:
    return [first + i * step for i in range(count)]


def stamped(seconds: float) -> dict[str, Any]:
    return {"call": "bodies:slowly", "with": {"seconds": seconds}}


def days(month: str, first: int, last: int) -> list[str]:
    return [f"{month}-{day:02d}T00:00:00Z" for day in range(first, last + 1)]


@pytest.fixture(scope="module")
def site(make_shared: Make) -> Iterator[Clocks]:
    """The DAGs of the last test begin here, so that their slots come while the others run."""
    made = Clocks(make_shared())
    began = floor(made.now())
    made.register("minute", EVERY_MINUTE, "--paused", start=written(began - 30 * MINUTE))
    made.due_since("minute", began - 30 * MINUTE)
    made.run("dag", "resume", "minute")
    start = floor(made.now(), SECOND) + 2 * SECOND
    bounds: dict[str, Any] = {"start": written(start), "end": written(start + 9 * SECOND)}
    made.register("rt110", {"every": "1s"}, catchup=True, **bounds)
    yield made
    made.close()


# ---- slots


@pytest.mark.parametrize("form", ["cron", "interval"])
def test_bf_101_switching_on_makes_one_past_run(site: Clocks, form: str) -> None:
    """Documented: one, the latest. The cron's slots all lie in the past; the next one of an interval is awaited."""
    dag = f"bf101.{form}"
    if form == "cron":
        last = floor(site.now())
        site.register(dag, EVERY_MINUTE, "--paused", start=written(last - 29 * MINUTE), end=written(last))
        site.due_since(dag, last - 29 * MINUTE)
        site.run("dag", "resume", dag)
        site.quiet(dag, 1)
        assert site.story(dag) == ([last], rising(last - 29 * MINUTE, 29))
        return
    start = floor(site.now(), SECOND) - 30 * SECOND
    site.register(dag, {"every": "1s"}, "--paused", start=written(start))
    time.sleep(2.5)  # what the case asks for: a slot or two while it is paused
    switched = site.now()
    site.run("dag", "resume", dag)
    site.quiet(dag, 2)
    site.run("dag", "pause", dag)
    runs, skipped = site.story(dag)
    past = [x for x in runs if x <= switched]
    assert len(past) <= 1
    assert skipped and runs == rising(skipped[-1] + SECOND, len(runs), SECOND)
    assert skipped == rising(skipped[0], len(skipped), SECOND)
    assert runs[0] + SECOND > switched, "the latest one"


def missing(site: Clocks, name: str, stop: Any, go_on: Any) -> None:
    """BF-102: five minutes' slots are moved into the past, or seconds' slots pass by, while nobody fires them."""
    on = {"catchup": True, "max_active_runs": 1}
    last = floor(site.now())
    forms: dict[str, dict[str, Any]] = {"off": {}, "on": on}
    dags = {f"{name}.{kind}.{word}": (kind, how) for kind in ("cron", "live") for word, how in forms.items()}
    for dag, (kind, how) in dags.items():
        if kind == "cron":
            site.register(dag, EVERY_MINUTE, end=written(last), **how)
        else:
            site.register(dag, {"every": "1s"}, **how)
    live = [dag for dag, (kind, _) in dags.items() if kind == "live"]
    for dag in live:
        site.quiet(dag, 2)
    stopped = site.now()
    stop(dags)
    for dag in dags.keys() - live:
        site.due_since(dag, last - 4 * MINUTE)
    time.sleep(3)  # what the case asks for: slots pass
    resumed = site.now()
    go_on(dags)
    five = rising(last - 4 * MINUTE, 5)
    site.quiet(f"{name}.cron.on", 5)
    site.quiet(f"{name}.cron.off", 1)
    assert site.story(f"{name}.cron.on") == (five, [])
    assert site.story(f"{name}.cron.off") == (five[-1:], five[:-1])
    for dag in live:
        until(lambda dag=dag: rhythm(site, dag, resumed), f"{dag} does not go on")  # type: ignore[misc]
    site.run.at_once([["dag", "pause", dag] for dag in live])
    for dag in dags:
        until(lambda dag=dag: not site.client.dag(dag)["active_runs"], f"{dag} is busy")  # type: ignore[misc]
        runs, skipped = site.story(dag)
        assert sorted([*runs, *skipped]) == rising(
            min([*runs, *skipped]), len(runs) + len(skipped), MINUTE if dag not in live else SECOND
        ), "no slot has vanished or come twice"
        order = site.executed(dag)
        assert order == [row["run"] for row in site.rows(dag)], "each once, the oldest first"
    runs, skipped = site.story(f"{name}.live.off")
    assert len([x for x in runs if stopped < x <= resumed]) <= 1
    assert len(skipped) >= 2
    assert site.story(f"{name}.live.on")[1] == []


def rhythm(site: Clocks, dag: str, resumed: datetime) -> bool:
    """Two slots that came after all was well again."""
    rows = site.client.runs(dag, "success", 200)
    return len([r for r in rows if datetime.fromisoformat(r["logical_date"]) > resumed + SECOND]) >= 2


def test_bf_102_what_a_pause_misses(site: Clocks) -> None:
    def stop(dags: Any) -> None:
        site.run.at_once([["dag", "pause", dag] for dag in dags])

    def go_on(dags: Any) -> None:
        site.run.at_once([["dag", "resume", dag] for dag in dags])

    missing(site, "bf102", stop, go_on)


def test_bf_102_bf_108_what_an_outage_misses(site: Clocks) -> None:
    """All schedulers are killed; three start at the same moment. Three seconds and more are in place of four minutes."""

    def stop(dags: Any) -> None:
        site.kill_schedulers()

    def go_on(dags: Any) -> None:
        site.made.ready(site.start_schedulers())

    missing(site, "bf108", stop, go_on)


def test_bf_105_a_run_by_hand_for_a_slot_that_comes(site: Clocks) -> None:
    """It takes the slot's place; that is said beside the runs, and the slots around it have their runs."""
    site.register("bf105", {"every": "1s"})
    slot = site.run.json("dag", "next", "bf105", "-n", "4")[2]
    mine = site.run.json("run", "start", "bf105", "--date", slot, "--id", "mine")
    assert mine["run"] == "mine"
    after = written(datetime.fromisoformat(slot) + SECOND)
    until(
        lambda: after in [r["logical_date"] for r in site.client.runs("bf105", "success")], "no slot after it"
    )
    site.run("dag", "pause", "bf105")
    rows = {row["logical_date"]: row for row in site.rows("bf105")}
    before = written(datetime.fromisoformat(slot) - SECOND)
    assert [rows[x]["kind"] for x in (before, slot, after)] == ["scheduled", "manual", "scheduled"]
    listed = [row for row in site.rows("bf105", "--include-skipped") if row["logical_date"] == slot]
    assert sorted(row["state"] for row in listed) == ["skipped", "success"]
    assert any("mine" in (row.get("reason") or "") for row in listed)
    assert Counter(site.executed("bf105"))["mine"] == 1


def test_bf_106_triggers_at_the_same_moment(site: Clocks) -> None:
    """Fifty processes. A second run with the id or the date of another is a conflict and executes nothing."""
    site.made.dag("bf106", {"bf106": OK}, max_active_runs=50)
    done = site.run.at_once([["run", "start", "bf106", "--json"]] * 50)
    assert [x.code for x in done] == [0] * 50
    ids = {json.loads(x.out)["run"] for x in done}
    assert len(ids) == 50
    site.quiet("bf106", 50)
    assert Counter(site.executed("bf106")) == dict.fromkeys(ids, 1)
    for words, name in (
        (["--id", "same"], "same"),
        (["--date", "2025-05-05T00:00Z"], "2025-05-05T00:00:00Z"),
    ):
        both = site.run.at_once([["run", "start", "bf106", *words, "--json"]] * 2)
        assert sorted(x.code for x in both) == [0, 4]
        assert any(name in x.err for x in both)
    site.quiet("bf106", 52)
    counted = Counter(site.executed("bf106"))
    assert len(counted) == 52 and set(counted.values()) == {1}


def test_bf_107_nothing_comes_after_the_end(site: Clocks) -> None:
    """Quiet: no slot is left. The same after a restart of the schedulers."""
    bounds: dict[str, Any] = {"start": "2015-01-01T00:00:00Z", "end": "2015-01-01T02:00:00Z"}
    site.register("bf107", "0 * * * *", catchup=True, **bounds)
    for _ in range(2):
        site.quiet("bf107", 3)
        assert site.dates("bf107") == [f"2015-01-01T0{hour}:00:00Z" for hour in range(3)]
        assert site.run.json("dag", "show", "bf107")["next"] is None
        assert site.run.json("dag", "next", "bf107") == []
        if _ == 0:
            for one in site.schedulers:
                one.signal(signal.SIGTERM)
            assert [one.end() for one in site.schedulers] == [0] * SCHEDULERS
            site.made.ready(site.start_schedulers())
            time.sleep(1)  # what the case asks for
    assert len(site.executed("bf107")) == 3


def test_pl_106_one_at_a_time_by_date(site: Clocks) -> None:
    """Fifteen minutes' slots that lie in the past. Ten are cleared, in any order, while a run holds the only place."""
    last = floor(site.now())
    first = last - 14 * MINUTE
    task = stamped(0.1)
    bounds: dict[str, Any] = {"start": written(first), "end": written(last)}
    site.register("pl106", EVERY_MINUTE, task=task, catchup=True, max_active_runs=1, **bounds)
    rows = site.quiet("pl106", 15)
    assert [row["logical_date"] for row in rows] == [written(x) for x in rising(first, 15)]
    runs = [row["run"] for row in rows]
    assert site.executed("pl106") == runs
    one_by_one(site, "pl106")

    held = {"dag": "pl106", "tasks": {"hold": sh(gate("pl106"))}, "max_active_runs": 1}
    (site.made.folder / "pl106.yaml").write_text(json.dumps(held))
    site.run("dag", "register", "pl106.yaml")
    holding = site.run.json("run", "start", "pl106", "--id", "holds")["run"]
    site.made.nth(1, "hold", holding)
    cleared = runs[2:12]
    done = site.run.at_once([["run", "clear", "pl106", x, "--yes"] for x in random.sample(cleared, 10)])
    assert [x.code for x in done] == [0] * 10
    assert site.client.run("pl106", cleared[0])["state"] == "queued"
    site.made.open("pl106")
    site.quiet("pl106", 16)
    assert site.executed("pl106") == [*runs, *cleared]
    one_by_one(site, "pl106")


def one_by_one(site: Clocks, dag: str) -> None:
    """The intervals from begin to end of different bodies do not overlap."""
    lines = [x for x in site.made.trail(dag) if x.word in ("begun", "ended")]
    pairs = [(x.run, x.attempt, x.word) for x in sorted(lines, key=lambda x: x.at)]
    assert [k for _, _, k in pairs] == ["begun", "ended"] * (len(pairs) // 2), pairs
    assert all(pairs[i][:2] == pairs[i + 1][:2] for i in range(0, len(pairs), 2)), pairs


# ---- backfills


@pytest.mark.parametrize(
    ("dag", "cron", "zone", "first", "last", "hours"),
    [
        (
            "cr101",
            "0 */2 * * *",
            "America/Toronto",
            "2023-03-12T04:00Z",
            "2023-03-12T17:59Z",
            "5 8 10 12 14 16",
        ),
        ("cr105", "0 * * * *", "America/Chicago", "2019-11-03T05:00Z", "2019-11-03T08:00Z", "5 6 7 8"),
    ],
)
def test_cr_101_cr_105_a_change_of_the_clocks_is_backfilled(
    site: Clocks, dag: str, cron: str, zone: str, first: str, last: str, hours: str
) -> None:
    """One run for each date; the two at 01:00 local are two runs."""
    site.register(dag, cron, "--paused", timezone=zone)
    site.run("dag", "resume", dag)
    plan = site.backfill(dag, first, last)
    expected = [f"{first[:10]}T{int(hour):02d}:00:00Z" for hour in hours.split()]
    assert plan["dates"] == expected
    shown = site.done(plan["backfill"])
    assert (shown["success"], shown["existing"]) == (len(expected), 0)
    assert site.dates(dag) == expected
    assert Counter(site.executed(dag)) == {x.translate({45: None, 58: None}): 1 for x in expected}


def test_bf_103_two_backfills_of_the_same_days(site: Clocks) -> None:
    """An overlap is refused with the id of the other; later it leaves what is there, or runs all again."""
    site.register("bf103", "@daily", task=stamped(0.3))
    first = site.backfill("bf103", "2025-03-01", "2025-03-05")["backfill"]
    assert first in site.backfill("bf103", "2025-03-03", "2025-03-07", code=4)
    assert site.done(first)["success"] == 5
    second = site.backfill("bf103", "2025-03-03", "2025-03-07")
    assert (second["existing"], second["runs"]) == (3, 2)
    shown = site.done(second["backfill"])
    assert (shown["existing"], shown["success"]) == (3, 2)
    runs = [f"202503{day:02d}T000000Z" for day in range(1, 8)]
    assert site.dates("bf103") == days("2025-03", 1, 7)
    assert Counter(site.executed("bf103")) == dict.fromkeys(runs, 1)
    again = site.backfill("bf103", "2025-03-01", "2025-03-07")
    assert (again["existing"], again["runs"]) == (7, 0)
    assert site.done(again["backfill"])["success"] == 0
    assert Counter(site.executed("bf103")) == dict.fromkeys(runs, 1)
    every = site.backfill("bf103", "2025-03-01", "2025-03-07", "--on-existing", "all", "--max-active", "7")
    assert (every["existing"], every["runs"]) == (7, 7)
    assert site.done(every["backfill"])["success"] == 7
    assert Counter(site.executed("bf103")) == dict.fromkeys(runs, 2)
    assert sorted(row["run"] for row in site.rows("bf103")) == runs
    assert {site.client.run("bf103", run)["tasks"]["bf103"]["attempt"] for run in runs} == {2}


@pytest.mark.parametrize("killed", [False, True], ids=["calm", "killed"])
def test_bf_104_a_backfill_with_one_active_run(site: Clocks, killed: bool) -> None:
    """Twice in place of ten times, ten days and 0.1 s; the killed one is the scheduler of the DAG's shard."""
    dag = f"bf104.{'killed' if killed else 'calm'}"
    site.register(dag, "@daily", task=stamped(0.1))
    ident = site.backfill(dag, "2025-03-01", "2025-03-10", "--max-active", "1")["backfill"]
    runs = [f"202503{day:02d}T000000Z" for day in range(1, 11)]
    if killed:
        until(lambda: len(site.executed(dag)) >= 3, "it has not begun")
        owner = str(site.client.shards()[site.store.shard.of(dag)]["owner"])
        victim = next(p for p in site.schedulers if p.pid == int(owner.split(":")[1]))
        victim.kill()
        site.schedulers.remove(victim)
    shown = site.done(ident)
    assert (shown["success"], shown["made"], shown["existing"]) == (10, 10, 0)
    assert site.executed(dag) == runs, "each once, the oldest first"
    one_by_one(site, dag)


# ---- the real minute


def test_rt_110_each_slot_once(site: Clocks) -> None:
    """Ten real slots a second apart in place of ten minutes; three schedulers, four workers.

    BF-101 with a real cron: switched on after thirty missed slots, it made one past run and one for the next minute.
    """
    rows = site.quiet("rt110", 10)
    start = datetime.fromisoformat(rows[0]["logical_date"])
    assert [row["logical_date"] for row in rows] == [written(x) for x in rising(start, 10, SECOND)]
    assert Counter(site.executed("rt110")) == {row["run"]: 1 for row in rows}
    site.quiet("minute", 2, 62)
    runs, skipped = site.story("minute")
    assert runs == rising(runs[0], len(runs)) and skipped == rising(
        runs[0] - len(skipped) * MINUTE, len(skipped)
    )
    assert len(skipped) in (30, 31)
    assert Counter(site.executed("minute")) == {x.strftime("%Y%m%dT%H%M%SZ"): 1 for x in runs}
