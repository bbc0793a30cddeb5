"""Dask distributed: real dependencies between futures, in memory: nothing is durable, and no Redis is used."""

import sys

import common
from distributed import Client, LocalCluster


def body(run: str, task: str, *needs: object) -> None:
    common.mark(run, task)


def main() -> None:
    kept = []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):

        def submit(workload: str, runs: list[str]) -> None:
            for run in runs:
                made = {}
                for task, needs in common.SHAPES[workload].items():
                    made[task] = client.submit(
                        body, run, task, *(made[n] for n in needs), key=f"{run}-{task}"
                    )
                kept.extend(made.values())

        common.serve(submit)


if __name__ == "__main__" and sys.argv[1] == "submit":
    main()
