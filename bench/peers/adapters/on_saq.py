"""SAQ: it has no joins, so a counter in Redis makes them by hand; a crash between count and enqueue loses the run."""

import asyncio
import sys

import common
from redis.asyncio import Redis
from saq import Queue, Worker

queue = Queue.from_url(common.URL)
counters = Redis(port=common.PORT)


async def body(ctx: dict, *, workload: str, run: str, task: str) -> None:
    common.mark(run, task)
    for name, needs in common.downstream(workload, task):
        if needs == 1 or await counters.incr(f"join:{run}:{name}") == needs:
            await queue.enqueue("body", workload=workload, run=run, task=name)


async def submit(workload: str, runs: list[str]) -> None:
    for i in range(0, len(runs), 32):
        some = runs[i : i + 32]
        await asyncio.gather(
            *(
                queue.enqueue("body", workload=workload, run=run, task=root)
                for run in some
                for root in common.roots(workload)
            )
        )


async def main() -> None:
    await queue.connect()
    await common.serve_async(submit)


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        asyncio.run(main())
    else:
        asyncio.run(Worker(queue, functions=[body], concurrency=64).start())
