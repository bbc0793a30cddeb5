"""`dag next`: fire times as JSON, as a table, and what is said when there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .fake_client import Call, FakeClient

TASKS = {"a": {"run": "true"}}
NIGHTLY = {"dag": "nightly", "schedule": "30 2 * * *", "timezone": "Europe/Paris", "tasks": TASKS}
CHANGE = ("--from", "2026-03-28", "--to", "2026-03-30T23:00")


def test_json_is_a_list_of_utc_instants(fake: FakeClient, call: Call) -> None:
    fake.add_dag(NIGHTLY)
    result = call("dag", "next", "nightly", *CHANGE, "--json")
    assert json.loads(result.stdout) == [
        "2026-03-28T01:30:00Z",
        "2026-03-29T01:00:00Z",
        "2026-03-30T00:30:00Z",
    ]
    assert result.exit_code == 0 and not result.stderr


def test_the_table_says_what_the_clocks_did(fake: FakeClient, call: Call) -> None:
    fake.add_dag({**NIGHTLY, "spread": "600000ms"})
    lines = call("dag", "next", "nightly", *CHANGE).stdout.splitlines()
    assert lines[0].split() == ["UTC", "LOCAL", "ZONE", "NOTE"]
    assert lines[2].startswith("2026-03-29T01:00:00Z  Sun 2026-03-29 03:00:00  +02:00 Europe/Paris  ")
    assert lines[2].endswith("moved: 02:30 does not exist, starts 5m 6s later (spread)")
    assert lines[1].endswith("+01:00 Europe/Paris  starts 5m 6s later (spread)")


def test_how_many(fake: FakeClient, call: Call) -> None:
    """Ten, or as many as one says; all of a window, both ends included."""
    fake.add_dag({**NIGHTLY, "schedule": "0 * * * *", "timezone": "UTC"})
    ends = ("--from", "2026-01-01", "--to", "2026-01-02")
    for options, count in (((), 10), (("-n", "3"), 3), (ends, 25), ((*ends, "-n", "3"), 3), (ends[:2], 10)):
        assert len(json.loads(call("dag", "next", "nightly", *options, "--json").stdout)) == count
    assert json.loads(call("dag", "next", "nightly", *ends, "--json").stdout)[-1] == "2026-01-02T00:00:00Z"


def test_every_counts_from_the_first_registration(fake: FakeClient, call: Call) -> None:
    fake.add_dag(
        {"dag": "often", "schedule": {"every": "900000ms"}, "tasks": TASKS},
        registered_at="2026-01-02T01:00:07Z",
    )
    result = call("dag", "next", "often", "--from", "2026-01-02T02:00", "-n", "2", "--json")
    assert json.loads(result.stdout) == ["2026-01-02T02:00:07Z", "2026-01-02T02:15:07Z"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "has no schedule"),
        ({"schedule": {"after": "nightly"}}, "starts after a run of nightly has succeeded"),
        ({"schedule": "@daily", "end": "2020-01-01T00:00:00Z"}, "has no fire time there"),
    ],
)
def test_none_is_said_and_is_an_empty_list(
    fake: FakeClient, call: Call, more: dict[str, object], said: str
) -> None:
    fake.add_dag({"dag": "other", "tasks": TASKS, **more})
    plain, as_json = call("dag", "next", "other"), call("dag", "next", "other", "--json")
    assert said in plain.stderr and not plain.stdout and plain.exit_code == 0
    assert json.loads(as_json.stdout) == []


def test_a_paused_dag_says_so(fake: FakeClient, call: Call) -> None:
    fake.add_dag(NIGHTLY, paused=True)
    result = call("dag", "next", "nightly", "-n", "1")
    assert "nightly is paused: none of these starts until `redsched dag resume nightly`" in result.stderr


def test_a_path_needs_no_redis(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "often.yaml"
    path.write_text("dag: often\nschedule: {every: 15m}\ntasks: {a: {run: 'true'}}\n")
    result = call("dag", "next", path, "-n", "2", "--json")
    assert len(json.loads(result.stdout)) == 2 and "counted from now" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", "2027"), "--from: '2027' is no instant"),
        (("--from", "2026-01-02", "--to", "2026-01-01"), "--to 2026-01-01 lies before --from 2026-01-02"),
        (("--to", "2020-01-01"), "lies before now"),
        (("-n", "0"), "-n"),
    ],
)
def test_what_is_no_window(fake: FakeClient, call: Call, options: tuple[str, ...], said: str) -> None:
    fake.add_dag(NIGHTLY)
    result = call("dag", "next", "nightly", *options)
    assert result.exit_code != 0
    assert said in f"{result.stderr}{result.exception}"
