"""A chain of 50 no-ops, one run at a time on an idle system: from one body to the next."""

from __future__ import annotations

import argparse
from datetime import datetime
from statistics import quantiles

from bench.installation import installation, report
from redsched.definition.model import DagSpec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    a = parser.parse_args()
    with installation() as made:
        tasks = {f"t{i}": {"call": "noop:run", "needs": [f"t{i - 1}"] if i else []} for i in range(50)}
        made.client.register(DagSpec.model_validate({"dag": "chain", "tasks": tasks}))
        hops = []
        for _ in range(a.runs):
            run = made.client.wait("chain", made.client.trigger("chain")["run"])
            first, last = (datetime.fromisoformat(run[k]) for k in ("started_at", "ended_at"))
            hops.append((last - first).total_seconds() * 1000 / 50)
        cut = quantiles(hops, n=100)
        report("hop", {"runs": a.runs, "hop_ms_p50": cut[49], "hop_ms_p90": cut[89]}, made.client)


if __name__ == "__main__":
    main()
