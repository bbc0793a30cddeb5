"""Midnight: many DAGs of 20 tasks are due at one instant. Until the last root is queued, and what a bystander waits meanwhile."""

from __future__ import annotations

import argparse
import time
from statistics import quantiles
from typing import Any

from bench.installation import DAG20, Installation, installation, report
from redsched.definition.model import DagSpec
from redsched.definition.plan import compile_plan


def register(made: Installation, count: int) -> None:
    """The same plan under many names; straight through the store, because a client's checks are not what is measured."""
    tasks = {
        f"t{k}": {"call": "noop:run", "needs": [f"t{u}" for u in ups], "pool": "idle"}
        for k, ups in DAG20.items()
    }
    shard = made.client.store.shard
    made.client.set_pool("idle", count * 20)
    for i in range(count):
        name = f"d{i}"
        if i == 0:
            first = DagSpec.model_validate({"dag": name, "schedule": "0 0 * * *", "tasks": tasks})
            fields, digest = compile_plan(first).fields, first.digest()
        shard.stage_plan(name, digest, fields)
        shard.register(
            name,
            digest,
            paused="",
            path="",
            team=name,
            max_active_runs=16,
            max_active_tasks=64,
            info="{}",
            schedule='{"cron":"0 0 * * *","overlap":"queue","timezone":"UTC"}',
            slot=4_102_444_800_000,
            look=4_102_444_800_000,
        )


def move_time(made: Installation, count: int) -> None:
    """The slot of all of them is due now."""
    client, shard = made.client.store.client, made.client.store.shard
    slot = made.client.store.control.now() // 86_400_000 * 86_400_000
    pipe = client.pipeline(transaction=False)
    shards: dict[str, dict[str, int]] = {}
    for i in range(count):
        prefix = shard.prefix(f"d{i}")
        pipe.hset(f"{prefix}dag:d{i}", "slot", slot)
        shards.setdefault(prefix, {})[f"d{i}"] = slot
    pipe.execute()
    pipe = client.pipeline(transaction=False)
    for prefix, due in shards.items():
        pipe.zadd(f"{prefix}slots", due)  # type: ignore[arg-type]
        pipe.xadd(f"{prefix}inbox", {"kind": "limits", "id": next(iter(due))})
    pipe.execute()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dags", type=int, default=5000)
    parser.add_argument("--schedulers", type=int, default=1)
    a = parser.parse_args()
    with installation(schedulers=a.schedulers) as made:
        register(made, a.dags)
        made.client.register(
            DagSpec.model_validate({"dag": "bystander", "tasks": {"t": {"call": "noop:run"}}})
        )
        before, waits = made.counters(), []
        move_time(made, a.dags)
        begun = time.monotonic()
        queued, store = 0, made.client.store
        while queued < a.dags:
            asked = time.monotonic()
            made.client.wait("bystander", made.client.trigger("bystander")["run"])
            waits.append(time.monotonic() - asked)
            queued = int(store.client.scard(store.keys.pool("idle") + "held"))
        took, after = time.monotonic() - begun, made.counters()
        runs = sum(s["runs_running"] for s in made.client.shards())
        cut: list[Any] = quantiles(waits, n=100) if len(waits) > 1 else [waits[0]] * 99
        report(
            "storm",
            {
                "dags": a.dags,
                "schedulers": a.schedulers,
                "last_root_queued_s": took,
                "runs_per_s": a.dags / took,
                "runs_made": runs,
                "redis_us_per_run": (after["script_us"] - before["script_us"]) / a.dags,
                "bystander_ms_p50": cut[49] * 1000,
                "bystander_ms_max": max(waits) * 1000,
            },
            made.client,
        )


if __name__ == "__main__":
    main()
