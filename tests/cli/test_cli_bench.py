"""`redsched bench` for real: tiny sizes, real servers, schedulers and workers; and nothing of them stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import redsched
from redsched.bench.numbers import MEANING
from redsched.bench.workloads import ALL
from redsched.cli import bench

from .fake_client import Call

ROOT = Path(redsched.__file__).parents[1]
SMALL = {
    "dag20": ("--runs", "3"),
    "hop": ("--runs", "1"),
    "flat": ("--runs", "20"),
    "idle": ("--seconds", "1"),
    "crowd": ("--runs", "2", "--waiting", "100"),
    "wide": ("--tasks", "12"),
    "deep": ("--tasks", "4"),
    "memory": ("--runs", "4"),
    "bodies": ("--tasks", "10"),
}
PROMISED = {
    "dag20": {"tasks_per_s", "evalsha_per_s", "redis_us_per_task", "bytes_per_run", "lost", "doubled"},
    "hop": {"hop_ms_p50", "hop_ms_p99"},
    "flat": {"drain_per_s", "created_per_s"},
    "idle": {"commands_per_s", "redis_cpu_percent"},
    "crowd": {"crowd_vs_empty"},
    "wide": {"tasks_per_s", "longest_script_ms"},
    "deep": {"tasks_per_s", "longest_script_ms"},
    "memory": {"bytes_per_waiting_run", "bytes_per_live_run", "bytes_per_run"},
    "bodies": {"vs_xargs"},
}
# What stands below the table, or is a table of its own.
PLACE = {"workload", "schedulers", "workers", "concurrency", "aof", "private_server"}
PLACE |= {"at", "machine", "load", "server", "versions", "command"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """For all that is temporary; a short path, because it holds a unix socket."""
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as made:
        yield Path(made)


def start(temporary: Path, *args: str) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("REDSCHED_")}
    return subprocess.Popen(
        [sys.executable, "-m", "redsched", "bench", *args],
        env={**env, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(temporary: Path, *args: str) -> dict[str, Any]:
    process = start(temporary, *args, "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    found: dict[str, Any] = json.loads(out)
    return found


def traces() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("redsched-trace-*")}


def left_in(folder: Path) -> list[str]:
    """Processes that know the folder, and what lies in it."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_text())
            except OSError:
                continue
    return [line for line in lines if str(folder) in line] + [str(p) for p in folder.iterdir()]


@pytest.mark.parametrize("name", ALL)
def test_each_workload_measures_and_leaves_nothing(name: str, folder: Path) -> None:
    result = run(folder, name, *SMALL[name])
    assert result["workload"] == name
    assert PROMISED[name] <= result.keys()
    assert not [n for n in ("lost", "doubled", "disordered", "failed_runs") if result.get(n)]
    assert result["evalsha_per_s"] > 1000
    assert result["machine"]
    assert result["server"]
    assert result["command"].startswith(f"redsched bench {name}")
    unsaid = {n for n, value in result.items() if not isinstance(value, dict)} - MEANING.keys() - PLACE
    assert not unsaid, "numbers.py does not say what these mean"
    assert not left_in(folder)


def test_a_named_server_is_used_and_left_as_it_was(redis_url: str, folder: Path) -> None:
    with Redis.from_url(redis_url) as client:
        before = sorted(client.scan_iter(count=1000))
        client.set("somebody's", "own")
        result = run(folder, "dag20", "--runs", "2", "--redis", redis_url)
        assert result["private_server"] is False
        assert result["aof"] is None
        assert client.get("somebody's") == b"own"
        client.delete("somebody's")
        assert not list(client.scan_iter("{bench-*", count=1000))
        assert set(before) <= set(client.scan_iter(count=1000))


def test_sigterm_leaves_nothing(folder: Path) -> None:
    before = traces()
    process = start(folder, "idle", "--seconds", "600")
    end = time.monotonic() + 60
    while not list(folder.glob("redsched-bench-*/worker-*.log")):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not left_in(folder)
    assert traces() <= before


def test_an_append_only_file_is_for_the_private_server(call: Call) -> None:
    result = call("bench", "dag20", "--aof", "--redis", "redis://127.0.0.1:1")
    assert result.exit_code == 2
    assert "--aof is for the private server" in result.stderr


def test_a_server_that_is_away_is_one_line_and_5(call: Call) -> None:
    result = call("bench", "hop", "--redis", "redis://127.0.0.1:1")
    assert result.exit_code == 5
    assert result.stderr.startswith("Error: ")


def test_the_environment_names_no_server_by_accident(
    monkeypatch: pytest.MonkeyPatch, call: Call, result: dict[str, Any]
) -> None:
    monkeypatch.setenv("REDSCHED_REDIS_URL", "redis://production:6379/0")
    seen = []

    def measure(_workload: object, setup: Any, _size: object) -> dict[str, Any]:
        seen.append(setup)
        return result

    monkeypatch.setattr(bench, "measure", measure)
    assert call("bench", "dag20").exit_code == 0
    assert seen[0].redis is None


@pytest.fixture
def result() -> dict[str, Any]:
    return {
        "workload": "dag20",
        "tasks_per_s": 9876.5,
        "lost": 0,
        "doubled": 0,
        "by_key": {"s:run": 400, "s:runs": 90.5},
        "schedulers": 1,
        "workers": 2,
        "concurrency": 3,
        "aof": True,
        "load": 0.1,
        "machine": "a machine, 2 cores",
        "server": "Valkey 9.1.2",
        "versions": {"python": "3.11.7"},
        "at": "2026-11-29T17:00:00Z",
        "command": "redsched bench dag20",
    }


def test_a_table_says_what_was_measured_where(
    monkeypatch: pytest.MonkeyPatch, call: Call, result: dict[str, Any]
) -> None:
    monkeypatch.setattr(bench, "measure", lambda *_: result)
    shown = call("bench", "dag20")
    assert shown.exit_code == 0
    for text in ("9,876 /s", MEANING["tasks_per_s"][1], "s:runs", "append-only file", "a machine, 2 cores"):
        assert text in shown.stdout
    assert "1 schedulers × 2 workers × 3 tasks" in shown.stdout


@pytest.mark.parametrize("fault", ["lost", "doubled", "disordered", "failed_runs"])
def test_what_must_be_0_and_is_not_exits_1(
    monkeypatch: pytest.MonkeyPatch, call: Call, result: dict[str, Any], fault: str
) -> None:
    monkeypatch.setattr(bench, "measure", lambda *_: {**result, fault: 2})
    shown = call("bench", "dag20", "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.stdout)[fault] == 2
    assert f"2 {fault.replace('_', ' ')}" in shown.stderr
