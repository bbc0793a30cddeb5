"""Schedulers killed under load, one after the other: how long a task that is ready waits until its pool has it.

Three schedulers at the default lease of 3 s; who is killed is replaced, and the next is killed when the shards are balanced
again. A wait begins when the task's last upstream has ended (or its run was made) and is told by Redis' clock. One JSON
document on stdout; exit 1 if a run was lost, or a wait was 5 s or longer.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final

from redsched.bench.machine import load, where
from redsched.bench.stats import quantile
from tests.conftest import Server
from tests.faults.audit import waits
from tests.faults.load import Load, shapes, write_bodies
from tests.faults.load import load as under_load
from tests.faults.siege import ready
from tests.faults.soak import server_name
from tests.processes import KEPT, Site, until

SCHEDULERS: Final = 3
GOAL_MS: Final = 5000
AROUND_MS: Final = 6000  # after a kill: the lease, and what had piled up meanwhile
DAGS: Final = 48  # some in every shard
SHAPES: Final = ("chain", "fan", "choice")


def register(site: Site) -> dict[str, str]:
    """DAG -> its shape."""
    write_bodies(site)
    dags = {f"{SHAPES[i % len(SHAPES)]}{i}": SHAPES[i % len(SHAPES)] for i in range(DAGS)}
    for dag, shape in dags.items():
        site.dag(dag, shapes()[shape], max_active_runs=1000, max_active_tasks=1000)
    return dags


def kill_one_after_the_other(site: Site, busy: Load, kills: int, dice: random.Random) -> Iterator[int]:
    """When each was killed, by Redis' clock in ms."""
    schedulers = [p for p in site.processes if p.name.startswith("scheduler")]
    for _ in range(kills):
        victim = schedulers.pop(dice.randrange(len(schedulers)))
        victim.kill()
        yield site.client.store.control.now()
        schedulers.append(site.scheduler())
        ready(site, schedulers)
        dead = f":{victim.pid}:"
        until(lambda d=dead: not any(d in str(s["owner"]) for s in site.client.shards()), "not taken over")
        busy.progress(20)  # who took over has had its turn: the same shards are not hit twice within a lease


def around(kills: list[int], waited: list[tuple[int, int]]) -> list[list[int]]:
    """For each kill, the waits of what became due in the seconds after it, and before the next one."""
    found: list[list[int]] = [[] for _ in kills]
    for due, ms in waited:
        last = bisect_right(kills, due) - 1
        if last >= 0 and due - kills[last] < AROUND_MS:
            found[last].append(ms)
    return found


def measured(site: Site, kills: int, dice: random.Random) -> dict[str, Any]:
    dags, began = register(site), time.monotonic()
    site.start(SCHEDULERS, 2, wait=False)
    ready(site, site.processes)
    with under_load(site, *dags, pause_s=0.05) as busy:
        busy.progress(20)
        killed = list(kill_one_after_the_other(site, busy, kills, dice))
    shown = [site.client.wait(dag, run, 60) for dag, run in busy.runs]
    waited = [x for run in shown for x in waits(run, shapes()[dags[run["dag"]]])]
    found = around(killed, waited)
    near, worst = [ms for group in found for ms in group], [max(group, default=0) for group in found]
    return {
        "kills": len(killed),
        "seconds": round(time.monotonic() - began, 1),
        "runs": len(busy.runs),
        "refused": len(busy.refused),
        "not_success": sum(run["state"] != "success" for run in shown),
        "tasks": sum(len(run["tasks"]) for run in shown),
        "executions": site.trail_file.read_text().count(" begun@"),
        "waits_near_kills": len(near),
        **{f"wait_ms_p{q}": round(quantile(near, q / 100)) for q in (50, 95, 99)},
        "wait_ms_max": max(near),
        **{f"longest_of_a_kill_ms_p{q}": round(quantile(worst, q / 100)) for q in (50, 95)},
        "over_goal": sum(ms >= GOAL_MS for _, ms in waited),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder, busy = Path(tempfile.mkdtemp(prefix="redsched-kills-")), load()
    (folder / "server").mkdir()
    server = Server(folder / "server", *KEPT)
    try:
        with (
            (folder / "said").open("w") as said,
            redirect_stdout(said),
            Site(folder / "site", server, lease_ms=3000, worker_lease_ms=10_000) as site,
        ):
            numbers = measured(site, given.kills, random.Random(given.seed))
        name = server_name(server)
    finally:
        server.kill()
    for key, value in numbers.items():
        print(f"{key:24} {value}", file=sys.stderr)
    print(json.dumps({"workload": "kills", **where(name, busy), **numbers}))
    if numbers["refused"] or numbers["not_success"] or numbers["over_goal"]:
        print(f"logs, trail and data: {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
