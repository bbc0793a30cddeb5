"""Celery: canvas. A chain of groups, which it makes into chords: a layer starts when the one before has ended."""

import sys

import common
from celery import Celery, chain, group

app = Celery("bench", broker=common.URL, backend=common.URL)
app.conf.update(
    worker_prefetch_multiplier=64, task_acks_late=False, result_expires=3600, worker_hijack_root_logger=False
)


@app.task(name="body")
def body(run: str, task: str) -> None:
    common.mark(run, task)


@app.task(name="glue")
def glue() -> None:
    """Joins a layer, because a group can't follow a group without a task between."""


def signature(workload: str, run: str):
    steps = []
    for layer in common.layers_of(workload):
        if len(layer) == 1:
            steps.append(body.si(run, layer[0]))
            continue
        if steps and isinstance(steps[-1], group):
            steps.append(glue.si())
        steps.append(group(body.si(run, task) for task in layer))
    return steps[0] if len(steps) == 1 else chain(*steps)


def submit(workload: str, runs: list[str]) -> None:
    for run in runs:
        signature(workload, run).apply_async()


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        common.serve(submit)
    else:
        app.worker_main(
            [
                "worker",
                "--loglevel=ERROR",
                "--pool=prefork",
                "--concurrency=2",
                "--without-gossip",
                "--without-mingle",
            ]
        )
