"""Slots become runs, once; what becomes none leaves a record; backfills. Time is moved by moving what is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from redsched.errors import Conflict, DefinitionError
from redsched.keys import AttemptId
from redsched.scheduler.calendar import decide
from redsched.store.shard import Report

from .harness import Engine, spec

HOUR = 3_600_000
# Slots so far apart that none comes up while a test runs, except in the first second of a month.
MONTHLY = "0 0 1 * *"


def months(now_ms: int, count: int) -> list[int]:
    """The last `count` first days of a month (ms), the oldest first."""
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    year, month, found = at.year, at.month, []
    for _ in range(count):
        found.append(int(datetime(year, month, 1, tzinfo=UTC).timestamp() * 1000))
        year, month = (year, month - 1) if month > 1 else (year - 1, 12)
    return found[::-1]


def missed(engine: Engine, dag: str, count: int) -> list[int]:
    """As if nobody had been there for so many months: the slots (ms) that are due, the oldest first."""
    slots = months(engine.store.control.now(), count)
    prefix = engine.store.shard.prefix(dag)
    engine.store.client.hset(f"{prefix}dag:{dag}", "slot", slots[0])
    engine.store.client.zadd(f"{prefix}slots", {dag: slots[0]})
    return slots


def hurry(engine: Engine) -> None:
    """What is to be looked at later is looked at now."""
    for name in ("slots", "backfill_look"):
        key = engine.store.shard.prefix("d") + name
        for member in engine.store.client.zrange(key, 0, -1):
            engine.store.client.zadd(key, {member: 1})


def look(engine: Engine) -> None:
    """The owner hears of it at its next turn."""
    engine.store.client.xadd(engine.store.shard.prefix("d") + "inbox", {"kind": "limits", "id": "d"})
    engine.settle()


def dates(engine: Engine, **more: object) -> list[int]:
    rows = engine.client.runs("d", **more)  # type: ignore[arg-type]
    return sorted(int(datetime.fromisoformat(r["logical_date"]).timestamp() * 1000) for r in rows)


def test_a_due_slot_becomes_one_run_and_the_index_moves_on(engine: Engine) -> None:
    engine.register("d", {"a": {}}, schedule=MONTHLY)
    assert engine.client.runs("d") == [], "registering makes no run for the past"
    (slot,) = missed(engine, "d", 1)
    look(engine)
    look(engine)
    run = engine.client.run("d", "latest")
    assert (run["kind"], run["state"]) == ("scheduled", "success")
    assert dates(engine) == [slot]
    following = datetime.fromisoformat(engine.client.dag("d")["next"])
    assert timedelta(days=27) < following - datetime.fromtimestamp(slot / 1000, UTC) < timedelta(days=32)


def test_without_catchup_only_the_latest_missed_slot_runs_and_the_others_leave_a_record(
    engine: Engine,
) -> None:
    engine.register("d", {"a": {}}, schedule=MONTHLY)
    slots = missed(engine, "d", 5)
    look(engine)
    assert dates(engine) == slots[-1:]
    listed = engine.client.runs("d", include_skipped=True)
    assert [r["state"] for r in listed] == ["success", *["skipped"] * 4]
    assert dates(engine, include_skipped=True) == slots
    assert "missed" in listed[-1]["reason"]


def test_with_catchup_each_missed_slot_runs_the_oldest_first_within_the_limit(engine: Engine) -> None:
    engine.register("d", {"a": {}}, schedule=MONTHLY, catchup=True, max_active_runs=1)
    slots = missed(engine, "d", 40)
    for _ in range(40):
        look(engine)
        hurry(engine)
    assert dates(engine) == slots
    runs = [a.run for a in engine.started]
    assert runs == sorted(runs), "strictly by logical date"


def test_catchup_begins_at_start_and_a_changed_schedule_makes_no_runs_for_the_past(engine: Engine) -> None:
    first = months(engine.store.control.now(), 4)[0]
    start = datetime.fromtimestamp(first / 1000, UTC).isoformat()
    engine.register("d", {"a": {}}, schedule=MONTHLY, catchup=True, start=start)
    look(engine)
    assert len(dates(engine)) == 4
    row = engine.register("d", {"a": {}}, schedule="30 0 1 * *", catchup=True, start=start)
    assert len(row["schedule"]["was"]) == len(row["schedule"]["next"]) == 5
    look(engine)
    assert len(dates(engine)) == 4


def test_a_registration_that_leaves_the_schedule_alone_loses_no_slot(engine: Engine) -> None:
    engine.register("d", {"a": {}}, schedule=MONTHLY, catchup=True)
    slots = missed(engine, "d", 3)
    engine.register("d", {"a": {}, "b": {}}, schedule=MONTHLY, catchup=True, overlap="queue", description="x")
    look(engine)
    assert dates(engine) == slots


def test_a_paused_dag_fires_nothing_and_its_slots_are_recorded_when_it_is_resumed(engine: Engine) -> None:
    engine.register("d", {"a": {}}, schedule=MONTHLY)
    engine.client.pause("d")
    slots = missed(engine, "d", 3)
    look(engine)
    assert engine.client.runs("d") == []
    engine.client.resume("d")
    look(engine)
    assert dates(engine) == slots[-1:]
    assert dates(engine, include_skipped=True) == slots


def test_a_slot_whose_date_has_a_run_already_makes_no_second(engine: Engine) -> None:
    engine.register("d", {"a": {}}, schedule=MONTHLY)
    (slot,) = missed(engine, "d", 1)
    engine.client.trigger("d", date=datetime.fromtimestamp(slot / 1000, UTC), run="mine")
    look(engine)
    assert [r["run"] for r in engine.client.runs("d")] == ["mine"]
    assert "mine" in engine.client.runs("d", include_skipped=True)[-1]["reason"] or (
        "mine" in engine.client.runs("d", include_skipped=True)[0].get("reason", "")
    )


@pytest.mark.parametrize(
    ("overlap", "ends"), [("skip", ["running"]), ("cancel_running", ["running", "cancelled"])]
)
def test_overlap_says_what_a_slot_does_while_an_earlier_run_is_active(
    engine: Engine, overlap: str, ends: list[str]
) -> None:
    engine.register("d", {"a": {}}, schedule=MONTHLY, overlap=overlap)
    engine.client.trigger("d")
    engine.step()
    missed(engine, "d", 1)
    engine.store.client.xadd(engine.store.shard.prefix("d") + "inbox", {"kind": "limits", "id": "d"})
    engine.step()
    assert sorted(r["state"] for r in engine.client.runs("d")) == sorted(ends)


def test_a_takeover_in_the_middle_doubles_and_loses_no_slot(engine: Engine) -> None:
    for i in range(30):
        engine.register(f"d{i}", {"a": {}}, schedule=MONTHLY)
        missed(engine, f"d{i}", 1)
    one, two = engine.scheduler, engine.new_scheduler("two")
    engine.scheduler.upkeep()
    for shard, token in list(one.ownership.tokens.items())[:2]:
        one.dispatch.calendar.fire(shard, token)
    engine.store.client.zadd(engine.store.keys.control + "schedulers", {"one": 1})
    for _ in range(3):
        two.ownership.beat()
    engine.step(two)
    engine.step(one)
    engine.work()
    engine.step(two)
    assert [len(engine.client.runs(f"d{i}")) for i in range(30)] == [1] * 30


def test_a_run_that_takes_too_long_fails_and_its_tasks_are_stopped(engine: Engine) -> None:
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}}, run_timeout="1h")
    engine.client.trigger("d")
    engine.step()
    engine.grant(engine.take())
    timers = engine.store.shard.prefix("d") + "timers"
    (timer,) = engine.store.client.zrange(timers, 0, -1)
    engine.store.client.zadd(timers, {timer: 1})
    engine.store.client.xadd(engine.store.shard.prefix("d") + "inbox", {"kind": "limits", "id": "d"})
    engine.step()
    assert engine.client.run("d", "latest")["state"] == "failed"
    assert set(engine.states("d").values()) == {"cancelled"}


def test_decisions_keep_no_slot_back_and_drop_none() -> None:
    def following(ms: int) -> int | None:
        return ms + HOUR if ms < 100 * HOUR else None

    for now in range(0, 110 * HOUR, 7 * HOUR):
        for catchup in (False, True):
            slot: int | None = 0
            seen: list[int] = []
            for _ in range(100):
                if slot is None or slot > now:
                    break
                done = decide(following, slot, now, catchup=catchup, queued=0, spread=0)
                seen += sorted([*done.runs, *(ms for ms, _ in done.skips)])
                assert catchup or len(done.runs) <= 1
                slot = done.following
            assert seen == [h * HOUR for h in range(101) if h * HOUR <= now]


# ---- backfills


def month(engine: Engine, **more: object) -> dict[str, object]:
    first, last = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC)
    return engine.client.backfill("d", first, last, **more)  # type: ignore[arg-type]


def test_a_backfill_makes_its_runs_as_room_allows_and_ends(engine: Engine) -> None:
    engine.register("d", {"a": {}}, schedule="0 0 * * *")
    plan = month(engine, dry_run=True)
    assert (plan["count"], plan["runs"], plan["tasks"]) == (31, 31, 31)
    assert engine.client.runs("d") == []
    ident = str(month(engine, max_active=3)["backfill"])
    most = 0
    for _ in range(60):
        engine.step()
        most = max(most, len(engine.client.runs("d", "running")) + len(engine.client.runs("d", "queued")))
        engine.work()
        hurry(engine)
    assert most == 3
    found = engine.client.backfill_show(ident)
    assert (found["state"], found["success"], found["made"]) == ("done", 31, 31)
    assert {r["kind"] for r in engine.client.runs("d")} == {"backfill"}
    assert [a.run for a in engine.started] == [f"202601{d:02d}T000000Z" for d in range(1, 32)]


def test_newest_first_paused_and_resumed(engine: Engine) -> None:
    engine.register("d", {"a": {}}, schedule="0 0 * * *")
    ident = str(month(engine, max_active=1, order="newest")["backfill"])
    engine.step()
    engine.client.backfill_set(ident, "paused")
    engine.settle()
    assert [a.run for a in engine.started] == ["20260131T000000Z"]
    engine.client.backfill_set(ident, "running")
    engine.settle()
    assert len(engine.started) == 31
    assert engine.client.backfill_show(ident)["state"] == "done"


def test_an_overlapping_backfill_is_refused_with_the_id_of_the_other(engine: Engine) -> None:
    engine.register("d", {"a": {}}, schedule="0 0 * * *")
    ident = str(month(engine)["backfill"])
    with pytest.raises(Conflict, match=ident):
        month(engine)
    engine.client.backfill_set(ident, "cancelled")
    month(engine)


def test_a_cancelled_backfill_stops_its_active_runs(engine: Engine) -> None:
    engine.register("d", {"a": {}}, schedule="0 0 * * *")
    ident = str(month(engine, max_active=2)["backfill"])
    engine.step()
    assert engine.client.backfill_set(ident, "cancelled")["active"] == []
    engine.settle()
    assert {r["state"] for r in engine.client.runs("d")} == {"cancelled"}
    assert engine.client.backfill_show(ident)["state"] == "cancelled"


@pytest.mark.parametrize(("on_existing", "again"), [("skip", 0), ("failed", 1), ("all", 3)])
def test_dates_that_have_a_run_are_left_or_run_again(engine: Engine, on_existing: str, again: int) -> None:
    engine.register("d", {"a": {}}, schedule="0 0 * * *")
    for day in (1, 2, 3):
        engine.client.trigger("d", date=datetime(2026, 1, day, tzinfo=UTC))

    def body(attempt: AttemptId, payload: str) -> Report:
        bad = attempt.run.startswith("20260102") and attempt.attempt == 1
        return Report(str(attempt), "failed" if bad else "success", 1)

    engine.settle(body)
    ident = str(month(engine, on_existing=on_existing, max_active=16)["backfill"])
    for _ in range(20):
        engine.settle(body)
        hurry(engine)
    assert len(engine.started) == 31 + again
    assert engine.client.backfill_show(ident)["state"] == "done"
    assert len(engine.client.runs("d")) == 31


def test_what_is_scheduled_goes_before_a_backfill(engine: Engine) -> None:
    engine.register("d", {"a": {}}, schedule=MONTHLY, max_active_runs=1)
    first = datetime(2026, 1, 1, tzinfo=UTC)
    engine.client.backfill("d", first - timedelta(days=600), first, max_active=1)
    engine.step()
    (slot,) = missed(engine, "d", 1)
    engine.store.client.xadd(engine.store.shard.prefix("d") + "inbox", {"kind": "limits", "id": "d"})
    engine.step()
    engine.work()
    engine.step()
    engine.work()
    assert engine.started[1].run == datetime.fromtimestamp(slot / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")


def test_a_dag_without_schedule_needs_a_distance(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    first = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(DefinitionError, match="--every"):
        engine.client.backfill("d", first, first + timedelta(days=3))
    plan = engine.client.backfill("d", first, first + timedelta(days=3), every_ms=86_400_000, dry_run=True)
    assert plan["count"] == 4
    assert spec("d", {"a": {}}).schedule is None


def test_a_dag_starts_after_another_with_its_date_and_only_once(engine: Engine) -> None:
    engine.register("up", {"a": {}})
    engine.register("down", {"b": {}}, schedule={"after": "up"})
    date = datetime(2026, 1, 5, tzinfo=UTC)
    engine.client.trigger("up", date=date)
    undated = engine.client.trigger("up")["run"]
    engine.settle()
    for _ in range(2):  # as after a crash between the start and the packing
        scheduler = engine.new_scheduler("again")
        scheduler.ownership.tokens = dict(engine.scheduler.ownership.tokens)
        shard = engine.store.shard.of("up")
        from redsched.scheduler.followers import start_followers

        start_followers(scheduler.store, engine.store.shard.to_pack(shard, 10))
    engine.settle()
    runs = {r["run"]: r for r in engine.client.runs("down")}
    assert set(runs) == {"20260105T000000Z", f"after-{undated}"}
    assert {(r["kind"], r["state"]) for r in runs.values()} == {("event", "success")}
    assert runs["20260105T000000Z"]["logical_date"] == "2026-01-05T00:00:00Z"


def test_nothing_follows_a_run_that_failed(engine: Engine) -> None:
    engine.register("up", {"a": {}})
    engine.register("down", {"b": {}}, schedule={"after": "up"})
    engine.client.trigger("up")
    engine.settle(lambda a, p: Report(str(a), "failed", 1))
    engine.scheduler._due.pop("pack", None)
    engine.scheduler._to_pack.add(engine.store.shard.of("up"))
    engine.settle()
    assert engine.client.runs("down") == []
    engine.register("down", {"b": {}})
    assert engine.store.control.after() == {}


def test_runs_are_found_by_their_dates_for_a_clear_of_a_range(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    for day in range(1, 6):
        engine.client.trigger("d", date=datetime(2026, 1, day, tzinfo=UTC))
    engine.settle()
    low, high = (int(datetime(2026, 1, day, tzinfo=UTC).timestamp() * 1000) for day in (2, 4))
    runs = engine.client.runs_between("d", low, high)
    assert runs == [f"2026010{day}T000000Z" for day in (2, 3, 4)]
    for run in runs:
        engine.client.clear("d", run)
    engine.settle()
    attempts = [engine.client.run("d", f"2026010{d}T000000Z")["tasks"]["a"]["attempt"] for d in range(1, 6)]
    assert attempts == [1, 2, 2, 2, 1]
