"""TR-112 and BF-106: what happens at the same moment in many processes happens once, and is never forgotten."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from .conftest import Make
from .processes import Installation, needs, sh, states, until

TRIGGER = """
import json, sys, time
from pathlib import Path
from redsched import Client

with Client() as client:
    client.dags()
    Path(sys.argv[1]).touch()
    while not Path("bf106").exists():
        time.sleep(0.001)
    print(json.dumps([client.trigger("bf106")["run"] for _ in range(5)]))
"""


@pytest.fixture(scope="module")
def site(make_shared: Make) -> Installation:
    made = make_shared()
    made.start(4, 8, concurrency=1)
    return made


def test_tr_112_a_join_whose_parents_end_together_is_never_forgotten(site: Installation) -> None:
    """200 runs in place of 500: 4200 executions by 4 schedulers and 8 workers."""
    parents = {f"p{i}": {"call": "bodies:ok"} for i in range(20)}
    join: dict[str, Any] = {"call": "bodies:ok"} | needs(*parents)
    site.dag("tr112", parents | {"j": join}, max_active_runs=200, max_active_tasks=1000)
    runs = [site.trigger("tr112") for _ in range(200)]
    for shown in site.wait_all("tr112", runs):
        assert shown["state"] == "success", shown
        assert set(states(shown).values()) == {"success"}
    for run in runs:
        assert site.executed(run) == dict.fromkeys([*parents, "j"], 1)
        assert site.lines(run)[-1].task == "j"
    assert sum(s["refused_writes"] + s["stale_reports"] for s in site.client.shards()) == 0
    site.slots_free()


def test_bf_106_triggers_never_collide(site: Installation) -> None:
    """The same id, and the same logical date, are refused as a conflict; the error names the run that has it."""
    site.dag("bf106", {"t": {"call": "bodies:ok"}}, max_active_runs=100)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRIGGER, f"ready{i}"],
            cwd=site.folder,
            env=site.env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(10)
    ]
    until(lambda: all((site.folder / f"ready{i}").exists() for i in range(10)), "not all are ready")
    site.open("bf106")
    runs = [run for process in processes for run in json.loads(process.communicate(timeout=30)[0])]
    assert len(set(runs)) == 50
    for shown in site.wait_all("bf106", runs):
        assert shown["state"] == "success"
        assert site.executed(shown["run"]) == {"t": 1}
    assert len(site.client.runs("bf106", limit=100)) == 50


def test_bf_106_the_same_id_and_the_same_date_are_conflicts(site: Installation) -> None:
    site.dag("bf106.same", {"t": sh()})
    date = datetime(2026, 1, 2, 3, tzinfo=UTC)
    for words, run in ((["--id", "mine"], "mine"), (["--date", date.isoformat()], None)):
        made = site.json("run", "start", "bf106.same", *words)["run"]
        assert run in (None, made)
        site.wait("bf106.same", made)
        refused = site.cli("run", "start", "bf106.same", *words, code=4).stderr
        assert "bf106.same" in refused
        assert made in refused
        assert site.executed(made) == {"t": 1}
    assert len(site.client.runs("bf106.same")) == 2
    site.slots_free()
    assert len(site.client.runs("bf106.same", state="success")) == 2
