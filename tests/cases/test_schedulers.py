"""RT-109: a scheduler that sleeps in the middle of thousands of tasks."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

from tests.processes import Site, until

from .conftest import Make

# The case asks for 20,000: RT_109_TASKS=20000.
TASKS = int(os.environ.get("RT_109_TASKS", "2000"))
WIDE = 1000
LEASE_MS = 1000


def refused(site: Site) -> int:
    return sum(s["refused_writes"] for s in site.client.shards())


def test_rt_109_a_scheduler_sleeps_while_thousands_are_due(make: Make) -> None:
    """Each task ran once, all at their first attempt; the sleeper lost its shards, steps back, and takes part again.

    A tenth of a DAG runs at a time, so that its owner is needed all along.
    """
    site = make(lease_ms=LEASE_MS)
    site.client.set_pool("default", TASKS)
    schedulers, _ = site.start(3, 2, concurrency=2)
    dags = [f"d{i}" for i in range(TASKS // WIDE)]
    for dag in dags:
        site.dag(dag, {f"t{i}": {"call": "bodies:ok"} for i in range(WIDE)}, max_active_tasks=WIDE // 10)
    shard = site.client.store.shard.of("d0")
    owner = site.client.shards()[shard]["owner"]
    active = next(p for p in schedulers if f":{p.pid}:" in owner)
    runs = {dag: site.run(dag) for dag in dags}
    until(lambda: len(site.begun()) > TASKS // 20, "nothing runs", 60)
    fence = site.client.shards()[shard]["fence"]
    active.signal(signal.SIGSTOP)
    until(lambda: site.client.shards()[shard]["owner"] not in (owner, None), "nobody took it over")
    assert len(site.begun(run=runs["d0"])) < WIDE, "all was done before it could sleep"
    time.sleep(2 * LEASE_MS / 1000)  # three leases in all
    active.signal(signal.SIGCONT)
    active.says(" lost, fence ")
    for dag, run in runs.items():
        shown = site.ended(dag, run, 120 + TASKS / 100)
        assert shown["state"] == "success"
        assert {t["attempt"] for t in shown["tasks"].values()} == {1}
    counts = Counter((x.run, x.task) for x in site.begun())
    assert len(counts) == TASKS and set(counts.values()) == {1}
    assert site.client.shards()[shard]["fence"] > fence
    assert active.alive
    until(lambda: owner in {s["owner"] for s in site.client.shards()}, "it takes no part again")
    print(f"{TASKS} tasks, {refused(site)} refused writes")
