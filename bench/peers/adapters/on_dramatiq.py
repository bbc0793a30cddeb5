"""dramatiq: groups with a completion callback that starts the next layer."""

import sys

import common
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend

broker = RedisBroker(url=common.URL)
broker.add_middleware(GroupCallbacks(RedisBackend(url=common.URL)))
dramatiq.set_broker(broker)


@dramatiq.actor
def body(run: str, task: str) -> None:
    common.mark(run, task)


@dramatiq.actor
def head(workload: str, run: str, layer: int) -> None:
    """A layer of one: a body that starts the next layer by itself."""
    common.mark(run, common.layers_of(workload)[layer][0])
    start(workload, run, layer + 1)


@dramatiq.actor
def glue(workload: str, run: str, layer: int) -> None:
    start(workload, run, layer)


def start(workload: str, run: str, number: int) -> None:
    layers = common.layers_of(workload)
    if number == len(layers):
        return
    layer = layers[number]
    if len(layer) == 1:
        head.send(workload, run, number)
        return
    group = dramatiq.group([body.message(run, task) for task in layer])
    last = number + 2 == len(layers)
    group.add_completion_callback(
        body.message(run, layers[-1][0]) if last else glue.message(workload, run, number + 1)
    )
    group.run()


def submit(workload: str, runs: list[str]) -> None:
    for run in runs:
        start(workload, run, 0)


if __name__ == "__main__" and sys.argv[1] == "submit":
    common.serve(submit)
