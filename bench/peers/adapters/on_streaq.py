"""streaQ: real, durable dependencies, `start(after=[…])`; a task is enqueued by itself where it has any."""

import asyncio
import sys

import common
from streaq import Worker

worker = Worker(redis_url=common.URL, concurrency=64)


@worker.task(ttl=300)
async def body(run: str, task: str) -> None:
    common.mark(run, task)


async def run_of(workload: str, run: str) -> None:
    ids = {}
    for task, needs in common.SHAPES[workload].items():
        made = body.enqueue(run, task).start(after=[ids[n] for n in needs] or None)
        await made
        ids[task] = made.id


async def submit(workload: str, runs: list[str]) -> None:
    if workload == "flat":
        for i in range(0, len(runs), 500):
            await worker.enqueue_many([body.enqueue(run, "t0") for run in runs[i : i + 500]])
        return
    for i in range(0, len(runs), 16):
        await asyncio.gather(*(run_of(workload, run) for run in runs[i : i + 16]))


async def main() -> None:
    async with worker:
        await common.serve_async(submit)


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        asyncio.run(main())
    else:
        worker.run_sync()
