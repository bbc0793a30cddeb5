"""The example as the README starts it: the embedded server, real processes, and a report on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TASKS = ["extract", "clean", "enrich", "join", "report", "export"]


def once(folder: Path, dag: str, *params: str) -> dict[str, Any]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("REDSCHED_")}
    env["PYTHONPATH"] = str(ROOT)
    words = ["up", "examples/orders", "--once", dag, "--json", *(w for p in params for w in ("-p", p))]
    done = subprocess.run(
        [sys.executable, "-m", "redsched", *words],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def test_commands_and_python_make_the_same_report(folder: Path) -> None:
    for dag, out in (("orders", "a"), ("orders_py", "b")):
        # 92 days make a result that is too big for an environment variable.
        shown = once(folder, dag, f"out={out}", "days=92")
        assert (shown["state"], list(shown["tasks"])) == ("success", TASKS)
        assert {task["attempt"] for task in shown["tasks"].values()} == {1}
    for name in ("orders-1998-04-30.html", "orders-1998-04-30.csv"):
        assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes()


def test_a_day_that_is_no_date_is_refused(folder: Path) -> None:
    with pytest.raises(AssertionError, match="day"):
        once(folder, "orders", "day=yesterday")
