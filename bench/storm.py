"""Midnight: many DAGs of 20 tasks are due at one instant. Until the last root is queued, and what a bystander waits meanwhile.

Time is moved, not waited for: the slot of all of them is put to the present.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from bench import main
from redsched.bench import load, shapes
from redsched.bench.load import MARK, Clock, Numbers
from redsched.bench.site import Site
from redsched.bench.stats import quantile
from redsched.bench.workloads import Size, Workload
from redsched.definition.model import DagSpec
from redsched.definition.plan import compile_plan

FAR = 4_102_444_800_000  # the year 2100
DAY = 86_400_000
POOL = "idle"  # nobody serves it


def register(site: Site, count: int) -> None:
    """The same plan under many names; straight through the store, because a client's checks are not what is measured."""
    tasks = {task: {"call": MARK, "needs": needs, "pool": POOL} for task, needs in shapes.dag20().items()}
    site.client.set_pool(POOL, count * 20)
    spec = DagSpec.model_validate({"dag": "d0", "schedule": "0 0 * * *", "tasks": tasks})
    fields, digest, shard = compile_plan(spec).fields, spec.digest(), site.client.store.shard

    def one(i: int) -> None:
        shard.stage_plan(f"d{i}", digest, fields)
        shard.register(
            f"d{i}",
            digest,
            paused="",
            path="",
            team=f"d{i}",
            max_active_runs=16,
            max_active_tasks=64,
            info="{}",
            schedule='{"cron":"0 0 * * *","overlap":"queue","timezone":"UTC"}',
            slot=FAR,
            look=FAR,
        )

    one(0)  # plans of equal content are the same for all, so the first shows what is wrong
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(1, count)))


def move_time(site: Site, count: int) -> None:
    """The slot of all of them is due now."""
    client, shard = site.client.store.client, site.client.store.shard
    slot = site.client.store.control.now() // DAY * DAY
    shards: dict[str, dict[str, int]] = {}
    pipe = client.pipeline(transaction=False)
    for i in range(count):
        prefix = shard.prefix(f"d{i}")
        pipe.hset(f"{prefix}dag:d{i}", "slot", slot)
        shards.setdefault(prefix, {})[f"d{i}"] = slot
    pipe.execute()
    pipe = client.pipeline(transaction=False)
    for prefix, due in shards.items():
        pipe.zadd(f"{prefix}slots", due)
        pipe.xadd(f"{prefix}inbox", {"kind": "limits", "id": next(iter(due))})
    pipe.execute()


def storm(site: Site, size: Size) -> Numbers:
    begun = time.monotonic()
    register(site, size.dags)
    registered_s = time.monotonic() - begun
    (bystander,) = load.register(site, "bystander", shapes.chain(1))
    load.warm(site, [bystander], 1)
    clock, waits, queued, wait_for = Clock(site), [], 0, 0
    held = site.client.store.keys.pool(POOL) + "held"
    move_time(site, size.dags)
    begun = time.monotonic()
    while queued < size.dags:
        asked = time.monotonic()
        site.client.trigger(bystander)
        wait_for += 1
        site.trace.wait(wait_for)
        waits.append((time.monotonic() - asked) * 1000)
        queued = int(site.client.store.client.scard(held))  # not `pool.show`, which reads every group's share
    took, costs = time.monotonic() - begun, clock.costs(size.dags)
    site.until(lambda: load.active(site) <= size.dags, "the bystanders did not end")
    runs = sum(s["runs_running"] for s in site.client.shards())
    return {
        "dags": size.dags,
        "last_root_queued_s": took,
        "runs_per_s": size.dags / took,
        "lost": max(0, size.dags - runs),
        "doubled": max(0, runs - size.dags),
        "registered_per_s": size.dags / registered_s,
        **{name.replace("_per_task", "_per_run"): value for name, value in costs.items() if "_us_" in name},
        "bystander_ms_p50": quantile(waits, 0.5),
        "bystander_ms_max": max(waits),
    }


STORM = Workload("storm", "Many DAGs are due at one instant.", storm, Size(dags=50_000), ("dags",))

if __name__ == "__main__":
    main(STORM)
