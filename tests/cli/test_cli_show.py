"""Lists and shows: JSON is one document, plain text has no colours and no cut columns, users' text is harmless."""

from __future__ import annotations

import json

import pytest

from .fake_client import DESCRIPTION, Call, FakeClient, run_of, task_of

SPEC = {
    "dag": "orders",
    "description": DESCRIPTION,
    "tasks": {"a": {"run": "true"}, "b": {"call": "m:f", "needs": ["a"]}},
}
LISTS = [
    ("dag", "list"),
    ("run", "list"),
    ("pool", "list"),
    ("workers",),
    ("shards",),
    ("status",),
    ("dag", "show", "orders"),
    ("dag", "versions", "orders"),
    ("pool", "show", "db"),
    ("run", "show", "orders", "latest"),
]


def fill(fake: FakeClient) -> None:
    fake.add_dag(SPEC)
    fake.pool_rows = [{"pool": "db", "slots": 4, "used": 1, "waiting": 2}]
    fake.run_rows = [run_of("orders", "r1", "success"), run_of("orders", "r2", "running")]
    show = run_of("orders", "r1", "failed", version=1, created_at="2026-01-02T01:00:00Z", params={"x": 1})
    show["tasks"] = {
        "a": task_of("failed", attempt=2, reason="exit code 1\x1b[31m\nsecond line"),
        "b": task_of("none"),
    }
    fake.states = iter([show])


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_json_is_the_only_thing_on_stdout(command: tuple[str, ...], call: Call, fake: FakeClient) -> None:
    fill(fake)
    result = call(*command, "--json", "-vv")
    assert result.exit_code == 0, result.stderr
    json.loads(result.stdout)


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_json_may_stand_before_the_command(command: tuple[str, ...], call: Call, fake: FakeClient) -> None:
    fill(fake)
    json.loads(call("--json", *command).stdout)


@pytest.mark.parametrize(
    "command", [("dag", "list"), ("run", "list"), ("pool", "list"), ("workers",)], ids=" ".join
)
def test_nothing_is_an_empty_list(command: tuple[str, ...], call: Call, fake: FakeClient) -> None:
    fake.worker_rows = []
    assert call(*command, "--json").stdout == "[]\n"
    result = call(*command)
    assert result.stdout == "" and result.stderr, "a person is told what to do"


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_plain_text_has_no_colours_and_one_line_a_row(
    command: tuple[str, ...], call: Call, fake: FakeClient
) -> None:
    fill(fake)
    result = call(*command)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout and "…" not in result.stdout
    assert not any(line.startswith("second line") for line in result.stdout.splitlines())


def test_a_description_keeps_its_line(call: Call, fake: FakeClient) -> None:
    fill(fake)
    lines = call("dag", "list").stdout.splitlines()
    assert len(lines) == 2
    assert 'Comma, "quote",\\nnew line, 日本 and 🎉' in lines[1]
    assert json.loads(call("dag", "list", "--json").stdout)[0]["description"] == DESCRIPTION


def test_columns_are_aligned_and_empty_cells_are_dashes(call: Call, fake: FakeClient) -> None:
    fill(fake)
    head, first, second = call("run", "list").stdout.splitlines()
    assert head.split("  ")[0] == "DAG"
    assert first.split() == ["orders", "r1", "success", "manual", "-", "2026-01-02T01:00:00Z", "3.0s"]
    assert head.index("STATE") == first.index("success") == second.index("running")


def test_filters_reach_the_client(call: Call, fake: FakeClient) -> None:
    fill(fake)
    assert [r["run"] for r in json.loads(call("run", "list", "--state", "running", "--json").stdout)] == [
        "r2"
    ]
    assert call("run", "list", "--state", "runing").exit_code == 2


def test_a_command_without_json_says_so(call: Call, fake: FakeClient) -> None:
    result = call("--json", "run", "logs", "orders", "latest", "a")
    assert result.exit_code == 2 and result.stdout == "" and "no JSON" in result.stderr


def test_status_warns_on_stderr(call: Call, fake: FakeClient) -> None:
    fake.scheduler_rows = []
    result = call("status")
    assert "Warning: no scheduler is alive" in result.stderr and "Warning" not in result.stdout
    assert "redis://***@h:6379/0  Redis 7.0.15" in result.stdout


def test_schedules_are_written_as_people_say_them(call: Call, fake: FakeClient) -> None:
    fake.add_dag({**SPEC, "schedule": '{"every": "900000ms"}'})
    assert "every 15m" in call("dag", "list").stdout


def test_logs_are_the_bytes_themselves(call: Call, fake: FakeClient) -> None:
    assert call("run", "logs", "orders", "latest", "a").stdout_bytes == b"caf\xe9\x00\n\xff"
    assert call("run", "logs", "orders", "latest", "a", "-f").stdout_bytes == b"one\ntwo\n"
