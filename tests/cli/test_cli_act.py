"""Commands that change something: what reaches the client, what is asked before, what the exit code says."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from .fake_client import Call, FakeClient, run_of, task_of

SPEC = {
    "dag": "orders",
    "timezone": "Europe/Paris",
    "params": {
        "x": {"type": "integer", "minimum": 5, "maximum": 10, "default": 7},
        "name": {"type": "string", "default": ""},
    },
    "tasks": {"a": {"run": "true"}},
}


@pytest.fixture(autouse=True)
def dag(fake: FakeClient) -> None:
    fake.add_dag(SPEC)


def shown(state: str, task: str, **more: object) -> dict[str, object]:
    base = {"version": 1, "created_at": "2026-01-02T01:00:00Z", "params": {}}
    return run_of("orders", "r1", state, **base, tasks={"a": task_of(task, **more)})


# ---- run start


def test_start_prints_the_run(call: Call, fake: FakeClient) -> None:
    assert call("run", "start", "orders").stdout == "orders r1 queued\n"
    answer = json.loads(call("run", "start", "orders", "--json").stdout)
    assert answer == {"dag": "orders", "run": "r1", "state": "queued"}


def test_params_are_json_unless_the_type_is_string(call: Call, fake: FakeClient) -> None:
    assert call("run", "start", "orders", "-p", "x=8", "-p", "name=8").exit_code == 0
    assert fake.calls == [("trigger", "orders", {"x": 8, "name": "8"}, None, None)]


@pytest.mark.parametrize("given", ["x=11", 'x="8"', "x=null", "y=1", "x", "=3"])
def test_wrong_params_make_no_run(given: str, call: Call, fake: FakeClient) -> None:
    result = call("run", "start", "orders", "-p", given)
    assert result.exit_code == 2 and result.stdout == "" and not fake.calls
    assert given.partition("=")[0] in result.stderr


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-01-02", datetime(2026, 1, 1, 23, tzinfo=UTC)),
        ("2026-01-02T03:00", datetime(2026, 1, 2, 2, tzinfo=UTC)),
        ("2026-01-02T03:00Z", datetime(2026, 1, 2, 3, tzinfo=UTC)),
        ("2026-01-02T03:00+05:00", datetime(2026, 1, 1, 22, tzinfo=UTC)),
    ],
)
def test_dates_without_a_zone_are_in_the_dags(
    text: str, instant: datetime, call: Call, fake: FakeClient
) -> None:
    assert call("run", "start", "orders", "--date", text).exit_code == 0
    assert fake.calls[0][3] == instant


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "2026-03-29T02:30"])
def test_dates_that_do_not_exist_are_refused(text: str, call: Call, fake: FakeClient) -> None:
    result = call("run", "start", "orders", "--date", text)
    assert result.exit_code == 2 and "--date" in result.stderr and not fake.calls


def test_a_taken_id_is_a_conflict(call: Call, fake: FakeClient) -> None:
    result = call("run", "start", "orders", "--id", "taken", "--json")
    assert result.exit_code == 4 and result.stdout == "" and "taken" in result.stderr


def test_an_unknown_dag_is_not_found_and_close_names_are_offered(call: Call, fake: FakeClient) -> None:
    result = call("run", "start", "ordres")
    assert result.exit_code == 3 and "orders" in result.stderr and len(result.stderr.splitlines()) == 1


def test_without_a_scheduler_one_is_told(call: Call, fake: FakeClient) -> None:
    fake.scheduler_rows = []
    result = call("run", "start", "orders", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout) and "no scheduler is alive" in result.stderr


# ---- --wait, watch


def test_wait_prints_a_line_for_each_change(call: Call, fake: FakeClient) -> None:
    began, ended = "2026-01-02T01:00:01Z", "2026-01-02T01:00:03Z"
    steps = [
        shown("queued", "none"),
        shown("running", "running", attempt=2, started_at=began),
        shown("running", "running", attempt=2, started_at=began),
        shown("success", "success", attempt=2, started_at=began, ended_at=ended),
    ]
    fake.states = iter(steps)
    result = call("run", "start", "orders", "--wait")
    assert result.exit_code == 0
    assert [line.split("  ")[1:] for line in result.stdout.splitlines()] == [
        ["run r1", "queued"],
        ["run r1", "running"],
        ["a", "running", "attempt 2"],
        ["a", "success", "2.0s", "attempt 2"],
        ["run r1", "success", "3.0s"],
    ]


def test_a_failed_run_is_exit_1(call: Call, fake: FakeClient) -> None:
    fake.states = iter([shown("failed", "failed", reason="exit code 3")])
    result = call("run", "start", "orders", "--wait")
    assert result.exit_code == 1 and "(exit code 3)" in result.stdout


def test_wait_with_json_is_one_document_at_the_end(call: Call, fake: FakeClient) -> None:
    fake.states = iter([shown("running", "running"), shown("failed", "failed")])
    result = call("run", "start", "orders", "--wait", "--json")
    assert result.exit_code == 1 and json.loads(result.stdout)["state"] == "failed"


def test_a_timeout_is_124_and_the_run_goes_on(call: Call, fake: FakeClient) -> None:
    fake.states = iter([shown("running", "running")] * 99)
    result = call("run", "start", "orders", "--wait", "--timeout", "300ms")
    assert result.exit_code == 124 and "goes on" in result.stderr
    assert call("run", "start", "orders", "--timeout", "1s").exit_code == 2, "--timeout needs --wait"
    assert call("run", "start", "orders", "--wait", "--timeout", "soon").exit_code == 2


# ---- asking


@pytest.mark.parametrize(
    "command",
    [("dag", "delete", "orders"), ("pool", "delete", "db"), ("run", "cancel", "orders", "latest")],
    ids=" ".join,
)
def test_in_a_pipe_nothing_is_asked(command: tuple[str, ...], call: Call, fake: FakeClient) -> None:
    fake.pool_rows = [{"pool": "db", "slots": 1, "used": 0, "waiting": 0}]
    fake.states = iter([shown("running", "running")])
    assert call(*command, "--json").exit_code == 0
    assert fake.calls


@pytest.mark.parametrize(("answer", "acts"), [("n\n", False), ("y\n", True)])
def test_on_a_terminal_a_delete_is_asked_about(
    answer: str, acts: bool, call: Call, fake: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redsched.cli.output.asks", lambda: True)
    result = call("dag", "delete", "orders", input=answer)
    assert bool(fake.calls) is acts and "Delete orders" in result.stderr
    fake.calls.clear()
    assert call("dag", "delete", "orders", "--yes").exit_code == 0 and fake.calls


def test_cancel_means_the_run_that_was_shown(call: Call, fake: FakeClient) -> None:
    fake.states = iter([shown("running", "running")])
    call("run", "cancel", "orders", "latest", "--yes")
    assert fake.calls == [("cancel", "orders", "r1")]


# ---- register, validate

GOOD = "dag: {dag}\ntasks:\n  a: {{run: 'true'}}\n"


def test_register_takes_the_good_and_shows_the_bad(call: Call, fake: FakeClient, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD.format(dag="alpha"))
    (tmp_path / "b.yaml").write_text("dag: beta\ntasks:\n  a: {run: 'true', needs: [zzz]}\n")
    result = call("dag", "register", tmp_path, "--json")
    assert result.exit_code == 2
    good, bad = json.loads(result.stdout)
    assert (good["dag"], good["version"], good["changed"]) == ("alpha", 1, True)
    assert set(bad) == {"path", "error"} and bad["path"].endswith("b.yaml")
    assert "zzz" in result.stderr and fake.calls == [("register", "alpha", None, False)]


def test_unchanged_is_said(call: Call, fake: FakeClient, tmp_path: Path) -> None:
    fake.add_dag({"dag": "alpha", "tasks": {"a": {"run": "true"}}})
    (tmp_path / "a.yaml").write_text(GOOD.format(dag="alpha"))
    result = call("dag", "register", tmp_path / "a.yaml", "--paused")
    assert "alpha  unchanged v1" in result.stdout and fake.calls == [("register", "alpha", True, False)]


def test_a_dry_run_says_what_would_change(call: Call, fake: FakeClient, tmp_path: Path) -> None:
    fake.add_dag({"dag": "alpha", "tasks": {"a": {"run": "false"}, "old": {"run": "true"}}})
    (tmp_path / "a.yaml").write_text(GOOD.format(dag="alpha") + "  b: {run: 'true'}\nteam: t\n")
    result = call("dag", "register", tmp_path, "--dry-run")
    assert "alpha  would be registered as v2" in result.stdout
    assert [line.strip() for line in result.stdout.splitlines()[1:]] == [
        "task b added",
        "task old removed",
        "task a changed: run",
        "team added",
    ]
    assert fake.calls == [("register", "alpha", None, True)]


def test_two_files_with_one_id_are_refused(call: Call, fake: FakeClient, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD.format(dag="alpha"))
    (tmp_path / "b.yaml").write_text(GOOD.format(dag="alpha"))
    result = call("dag", "register", tmp_path)
    assert result.exit_code == 2 and "alpha is defined in" in result.stderr
    assert fake.calls == [("register", "alpha", None, False)], "the first one counts"


def test_nothing_to_register_is_said(call: Call, fake: FakeClient, tmp_path: Path) -> None:
    result = call("dag", "register", tmp_path)
    assert result.exit_code == 2 and "no DAG in" in result.stderr
    assert call("dag", "register", tmp_path / "missing").exit_code == 2


@pytest.mark.filterwarnings("ignore:old")
def test_a_printing_dag_file_does_not_spoil_the_json(call: Call, fake: FakeClient, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import warnings\nprint('hello')\nwarnings.warn('old')\nfrom redsched import dag, task\n"
        "@task\ndef a(): ...\n@dag\ndef loud():\n    a()\n"
    )
    result = call("dag", "register", tmp_path, "--json")
    assert json.loads(result.stdout)[0]["dag"] == "loud" and "hello" in result.stderr


def test_validate_needs_no_redis(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(GOOD.format(dag="alpha"))
    monkeypatch.setenv("REDSCHED_REDIS_URL", "redis://127.0.0.1:1/0")
    result = call("dag", "validate", tmp_path, "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)[0]["tasks"] == 1
