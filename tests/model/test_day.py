"""`redsched simulate`: somebody's own DAGs through a day."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from redsched.cli.main import cli
from redsched.simulation.tally import DAY_MS, HOUR_MS, Tally, TaskTimes
from redsched.store.codec import run_from_hash

DAY = 1_767_225_600_000  # 2026-01-01T00:00:00Z

SHOP = """
dag: shop
schedule: "*/30 * * * *"
overlap: skip
deadline: 45m
pools: {db: 1}
tasks:
  extract: {run: "touch never"}
  load: {run: "true", needs: extract, pool: db}
  check: {run: "true", needs: extract, pool: db}
---
dag: by_hand
tasks:
  one: {run: "true"}
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "shop.yaml"
    path.write_text(SHOP.partition("---")[0])
    (tmp_path / "by_hand.yaml").write_text(SHOP.partition("---")[2])
    return tmp_path


def simulate(*words: Any) -> Result:
    return CliRunner().invoke(cli, ["simulate", *map(str, words)], prog_name="redsched")


def day(*words: Any) -> dict[str, Any]:
    result = simulate(*words, "--day", "2026-01-01", "--json")
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_a_quiet_day_runs_each_slot(shop: Path) -> None:
    """48 half hours; two tasks a run stand before the pool's one slot, so the second waits for the first."""
    found = day(shop)
    assert found["runs"] == {"total": 48, "success": 48} and found["tasks"] == 144
    assert found["unscheduled"] == ["by_hand"] and not found["late"] and not found["skipped_slots"]
    db = next(p for p in found["pools"] if p["pool"] == "db")
    assert (db["slots"], db["peak_used"], db["peak_waiting"]) == (1, 1, 1)
    assert 30 <= db["waits"]["p95_s"] <= 90, "a task takes between 30 and 90 s"
    assert found["happened"] == {} and not (shop / "never").exists(), "no body has run"


def test_every_slot_is_a_run_or_has_a_reason(shop: Path) -> None:
    """A task of 20 minutes makes runs that overlap and are late; what is skipped says why."""
    found = day(shop, "--durations", "shop.load=20m", "--durations", "shop.check=20m")
    assert found["runs"]["total"] + len(found["skipped_slots"]) == 48
    assert {s["reason"] for s in found["skipped_slots"]} == {"an earlier run was active (overlap: skip)"}
    assert found["late"] and found["longest_runs"][0]["seconds"] > 45 * 60
    assert found["critical_hour"]["waited_s"] > 600


def test_the_same_seed_is_the_same_day(shop: Path) -> None:
    assert day(shop, "--seed", 7) == day(shop, "--seed", 7) != day(shop, "--seed", 8) | {"seed": 7}


def test_a_day_with_faults_ends_no_worse(shop: Path) -> None:
    found = day(shop, "--faults", "some")
    assert found["runs"]["total"] + len(found["skipped_slots"]) == 48
    assert found["happened"]


def test_a_person_reads_it(shop: Path) -> None:
    result = simulate(shop, "--day", "2026-01-01")
    assert result.exit_code == 0, result.stderr
    assert (
        "48 success" in result.stdout and "critical hour" in result.stdout and "longest runs" in result.stdout
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--day", "soon"), "--day 'soon': write a date as in 2026-01-31"),
        (("--durations", "shp=5m"), "there is no DAG or task 'shp' (did you mean 'shop'?)"),
        (("--durations", "5 parsecs"), "--durations 5 parsecs"),
        (("--pool", "gpu"), "--pool gpu: write a name and its slots, as in gpu=2"),
    ],
)
def test_wrong_words_are_named(shop: Path, words: tuple[str, ...], said: str) -> None:
    result = simulate(shop, *words)
    assert result.exit_code == 2 and said in result.stderr


def test_a_pool_that_nobody_sized_is_asked_for(shop: Path) -> None:
    (shop / "by_hand.yaml").write_text("dag: x\nschedule: '@daily'\ntasks: {a: {run: 'true', pool: gpu}}")
    result = simulate(shop)
    assert result.exit_code == 2 and "say --pool gpu=N" in result.stderr
    assert day(shop, "--pool", "gpu=2")["runs"]["total"] == 49


def test_what_the_times_come_to() -> None:
    """Three tasks stand before one slot for a minute each; the last waits two."""
    tally = Tally(DAY, {"p": 1})
    for i in range(3):
        started = DAY + HOUR_MS + i * 60_000
        tally.task(TaskTimes("p", 1, DAY + HOUR_MS, started, started + 60_000))
    tally.task(TaskTimes("p", 1, DAY + DAY_MS - 1000, None, None))
    head = f"1,0123456789abcdef,scheduled,{DAY},{DAY},"
    ended = {"state": "success", "head": head, "started": str(DAY + 9000), "ended": str(DAY + 10_000)}
    tally.run("d", "r", run_from_hash(ended, {}))
    found = tally.told()
    assert found["waits"] == {"p50_s": 1.0, "p95_s": 120.0, "max_s": 120.0}
    (pool,) = found["pools"]
    assert (pool["peak_used"], pool["peak_waiting"], pool["peak_waiting_at"]) == (
        1,
        2,
        "2026-01-01T01:00:00Z",
    )
    assert pool["use"] == round(180_000 / DAY_MS, 4)
    hour = found["critical_hour"]
    assert (hour["hour"], hour["started"], hour["waited_s"]) == ("2026-01-01T01:00:00Z", 3, 180.0)
    assert found["queued_runs"] == [{"dag": "d", "run": "r", "waited_s": 9.0}]
    assert found["longest_runs"][0]["seconds"] == 1.0
