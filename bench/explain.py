"""Why 1,000 tasks of a run don't run, asked over and over."""

from __future__ import annotations

import time
from statistics import median

from bench.installation import installation, report
from redsched.definition.model import DagSpec


def main() -> None:
    tasks = {f"t{i}": {"call": "noop:run", "needs": []} for i in range(400)}
    tasks |= {f"u{i}": {"call": "noop:run", "needs": [f"t{i % 400}"]} for i in range(600)}
    with installation() as made:
        made.client.register(
            DagSpec.model_validate({"dag": "d", "max_active_tasks": 300, "tasks": tasks}), paused=True
        )
        made.client.trigger("d")
        took = []
        for _ in range(20):
            begun = time.monotonic()
            made.client.explain("d", "latest")
            took.append((time.monotonic() - begun) * 1000)
        report("explain", {"tasks": 1000, "ms_median": median(took), "ms_max": max(took)}, made.client)


if __name__ == "__main__":
    main()
