"""arq: it has no joins, so a counter in Redis makes them by hand; a crash between count and enqueue loses the run."""

import asyncio
import sys

import common
from arq import create_pool, func, run_worker
from arq.connections import RedisSettings

REDIS = RedisSettings(port=common.PORT)


async def body(ctx: dict, workload: str, run: str, task: str) -> None:
    common.mark(run, task)
    for name, needs in common.downstream(workload, task):
        if needs == 1 or await ctx["redis"].incr(f"join:{run}:{name}") == needs:
            await ctx["redis"].enqueue_job("body", workload, run, name)


class Settings:  # arq reads these names
    functions = (func(body, name="body"),)
    redis_settings = REDIS
    max_jobs = 64
    poll_delay = 0.01
    keep_result = 300
    handle_signals = False


async def main() -> None:
    pool = await create_pool(REDIS)

    async def submit(workload: str, runs: list[str]) -> None:
        for i in range(0, len(runs), 32):
            some = runs[i : i + 32]
            await asyncio.gather(
                *(
                    pool.enqueue_job("body", workload, run, root)
                    for run in some
                    for root in common.roots(workload)
                )
            )

    await common.serve_async(submit)


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        asyncio.run(main())
    else:
        run_worker(Settings)
