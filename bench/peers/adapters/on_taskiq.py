"""taskiq (stream broker): it has no joins, so a counter in Redis makes them by hand; a crash between loses the run."""

import asyncio
import sys

import common
from redis.asyncio import Redis
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

broker = RedisStreamBroker(common.URL).with_result_backend(
    RedisAsyncResultBackend(common.URL, result_ex_time=300)
)
counters = Redis(port=common.PORT)


@broker.task(task_name="body")
async def body(workload: str, run: str, task: str) -> None:
    common.mark(run, task)
    for name, needs in common.downstream(workload, task):
        if needs == 1 or await counters.incr(f"join:{run}:{name}") == needs:
            await body.kiq(workload, run, name)


async def submit(workload: str, runs: list[str]) -> None:
    for i in range(0, len(runs), 32):
        some = runs[i : i + 32]
        await asyncio.gather(
            *(body.kiq(workload, run, root) for run in some for root in common.roots(workload))
        )


async def main() -> None:
    await broker.startup()
    await common.serve_async(submit)


if __name__ == "__main__" and sys.argv[1] == "submit":
    asyncio.run(main())
