"""huey: chords, and a glue task that starts the next layer. What a killed worker held is lost (no acknowledgement)."""

import sys

import common
from huey import RedisHuey
from huey.api import group

huey = RedisHuey("bench", port=common.PORT, results=True, blocking=True)


@huey.task()
def body(run: str, task: str) -> None:
    common.mark(run, task)


@huey.task()
def head(workload: str, run: str, layer: int) -> None:
    """A layer of one: a body that starts the next layer by itself."""
    common.mark(run, common.layers_of(workload)[layer][0])
    start(workload, run, layer + 1)


@huey.task()
def glue(workload: str, run: str, layer: int, results: object) -> None:
    start(workload, run, layer)


@huey.task()
def tail(run: str, task: str, results: object) -> None:
    common.mark(run, task)


def start(workload: str, run: str, number: int) -> None:
    layers = common.layers_of(workload)
    if number == len(layers):
        return
    layer = layers[number]
    if len(layer) == 1:
        head(workload, run, number)
        return
    group_of = group([body.s(run, task) for task in layer])
    last = number + 2 == len(layers)
    after = tail.s(run, layers[-1][0]) if last else glue.s(workload, run, number + 1)
    huey.enqueue(group_of.then(after))


def submit(workload: str, runs: list[str]) -> None:
    for run in runs:
        start(workload, run, 0)


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        common.serve(submit)
    else:
        import logging

        logging.getLogger("huey").setLevel(logging.ERROR)
        huey.create_consumer(
            workers=1, worker_type="thread", periodic=False, initial_delay=0.01, max_delay=0.05
        ).run()
