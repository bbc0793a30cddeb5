"""RQ: real dependencies, `depends_on=[…]`; workers that don't fork."""

import sys

import common
import on_rq
from redis import Redis
from rq import Queue, SimpleWorker

link = Redis(port=common.PORT)
queue = Queue("bench", connection=link)


def body(run: str, task: str) -> None:
    common.mark(run, task)


def submit(workload: str, runs: list[str]) -> None:
    if workload == "flat":
        for i in range(0, len(runs), 500):
            queue.enqueue_many([Queue.prepare_data(on_rq.body, (run, "t0")) for run in runs[i : i + 500]])
        return
    for run in runs:
        made = {}
        for task, needs in common.SHAPES[workload].items():
            made[task] = queue.enqueue(on_rq.body, run, task, depends_on=[made[n] for n in needs] or None)


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        common.serve(submit)
    else:
        SimpleWorker([queue], connection=link).work(logging_level="ERROR")
