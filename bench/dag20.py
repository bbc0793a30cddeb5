"""N runs of the 20-task DAG at once: tasks a second, and what Redis spends on each."""

from __future__ import annotations

import argparse
import time

from bench.installation import DAG20, installation, report
from redsched.definition.model import DagSpec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--dags", type=int, default=16, help="over how many DAGs the runs are spread")
    parser.add_argument("--schedulers", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--aof", action="store_true")
    a = parser.parse_args()
    with installation(
        schedulers=a.schedulers, workers=a.workers, concurrency=a.concurrency, aof=a.aof
    ) as made:
        tasks = {f"t{k}": {"call": "noop:run", "needs": [f"t{u}" for u in ups]} for k, ups in DAG20.items()}
        for i in range(a.dags):
            spec = {"dag": f"d{i}", "max_active_runs": 100_000, "max_active_tasks": 100_000, "tasks": tasks}
            made.client.register(DagSpec.model_validate(spec))
        made.client.wait("d0", made.client.trigger("d0")["run"])
        before, begun = made.counters(), time.monotonic()
        made_runs = [(f"d{i % a.dags}", made.client.trigger(f"d{i % a.dags}")["run"]) for i in range(a.runs)]
        created = time.monotonic()
        live = made.counters()["memory"]
        while made.active():
            time.sleep(0.01)
        took, after = time.monotonic() - begun, made.counters()
        shown = [made.client.run(d, r)["tasks"].values() for d, r in made_runs]
        states = [t["state"] for tasks_of in shown for t in tasks_of]
        attempts = [t["attempt"] for tasks_of in shown for t in tasks_of]
        count = a.runs * 20
        report(
            "dag20",
            {
                "runs": a.runs,
                "tasks_per_s": count / took,
                "runs_created_per_s": a.runs / (created - begun),
                "redis_us_per_task": (after["script_us"] - before["script_us"]) / count,
                "redis_cpu_us_per_task": (after["cpu_us"] - before["cpu_us"]) / count,
                "script_calls_per_task": (after["scripts"] - before["scripts"]) / count,
                "bytes_while_created": (live - before["memory"]) / a.runs,
                "lost": sum(s != "success" for s in states),
                "doubled": sum(n != 1 for n in attempts),
            },
            made.client,
        )


if __name__ == "__main__":
    main()
