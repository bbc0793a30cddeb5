"""Why 1,000 tasks of a run don't run, asked over and over."""

from __future__ import annotations

import time

from bench import main
from redsched.bench.load import MARK, Numbers
from redsched.bench.site import Site
from redsched.bench.stats import quantile
from redsched.bench.workloads import Size, Workload
from redsched.definition.model import DagSpec

ASKED = 20


def explain(site: Site, size: Size) -> Numbers:
    first = size.tasks * 2 // 5
    needs = {f"t{i}": [] if i < first else [f"t{i % first}"] for i in range(size.tasks)}
    tasks = {name: {"call": MARK, "needs": ups} for name, ups in needs.items()}
    spec = DagSpec.model_validate({"dag": "d", "max_active_tasks": 300, "tasks": tasks})
    site.client.register(spec, paused=True)
    site.client.trigger("d")
    took = []
    for _ in range(ASKED):
        begun = time.monotonic()
        found = site.client.explain("d", "latest")
        took.append((time.monotonic() - begun) * 1000)
    return {
        "tasks": size.tasks,
        "explained": len(found),
        "explain_ms_p50": quantile(took, 0.5),
        "explain_ms_max": max(took),
    }


if __name__ == "__main__":
    main(Workload("explain", "Why the tasks of a run wait.", explain, Size(tasks=1000), ("tasks",)))
