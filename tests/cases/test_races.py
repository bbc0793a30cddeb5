"""TR-112: what happens at the same moment in many processes happens once, and is never forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processes import Site, needs, states

from .conftest import Make


@pytest.fixture(scope="module")
def site(make_shared: Make) -> Site:
    made = make_shared(lease_ms=3000)  # nobody is to lose it on a busy machine
    made.start(4, 8, concurrency=1)
    return made


def test_tr_112_a_join_whose_parents_end_together_is_never_forgotten(site: Site) -> None:
    """200 runs in place of 500: 4200 executions by 4 schedulers and 8 workers."""
    parents = {f"p{i}": {"call": "bodies:ok"} for i in range(20)}
    join: dict[str, Any] = {"call": "bodies:ok"} | needs(*parents)
    site.dag("tr112", parents | {"j": join}, max_active_runs=200, max_active_tasks=1000)
    runs = [site.run("tr112") for _ in range(200)]
    for shown in site.wait("tr112", runs):
        assert shown["state"] == "success", shown
        assert set(states(shown).values()) == {"success"}
    for run in runs:
        assert site.executed(run) == dict.fromkeys([*parents, "j"], 1)
        assert site.trail(run=run)[-1].task == "j"
    assert sum(s["refused_writes"] + s["stale_reports"] for s in site.client.shards()) == 0
    site.slots_free()
