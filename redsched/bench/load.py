"""Making runs and seeing them end: what the workloads are put together from."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from redsched.bench.shapes import Shape
from redsched.bench.site import Counters, Site
from redsched.bench.trace import Faults, Line, faults

Numbers = dict[str, Any]

MARK: Final = "redsched.bench.bodies:mark"
NO_LIMIT: Final = 1_000_000
POOL_SLOTS: Final = 1000
READ: Final = 500
ENDED_S: Final = 60.0


def register(
    site: Site, name: str, shape: Shape, count: int = 1, pools: Mapping[str, str] | None = None, **limits: int
) -> list[str]:
    """The shape as `count` DAGs; `pools`: task -> pool, for those that are not in the default pool."""
    site.client.set_pool("default", POOL_SLOTS)
    pools = pools or {}
    tasks = {
        task: {"call": MARK, "needs": needs, "pool": pools.get(task, "default")}
        for task, needs in shape.items()
    }
    given = {"max_active_runs": NO_LIMIT, "max_active_tasks": NO_LIMIT, **limits}
    names = [f"{name}{i}" for i in range(count)]
    for dag in names:
        site.register({"dag": dag, **given, "tasks": tasks})
    return names


def submit(site: Site, dags: Sequence[str], runs: int) -> list[str]:
    """Runs, spread evenly over the DAGs; returns their `dag/run`."""
    made: list[str] = []
    for i, dag in enumerate(dags):
        share = runs // len(dags) + (i < runs % len(dags))
        made += [f"{dag}/{row['run']}" for row in site.client.trigger_many(dag, [None] * share)]
    return made


def warm(site: Site, dags: Sequence[str], tasks: int, others: int = 0) -> None:
    """One run of each DAG, so that no definition is read and no module imported in what follows."""
    site.trace.clear()
    submit(site, dags, len(dags))
    site.trace.wait(len(dags) * tasks)
    ended(site, others)
    site.trace.clear()


def active(site: Site) -> int:
    return sum(s["runs_queued"] + s["runs_running"] for s in site.client.shards())


def ended(site: Site, others: int = 0) -> None:
    """Until all runs have ended but `others`. Asks Redis, so wait for the trace first."""
    site.until(lambda: active(site) <= others, "the runs did not end", ENDED_S)


def settled(site: Site) -> None:
    """Until the schedulers have packed all runs that have ended."""
    store = site.client.store

    def unpacked() -> int:
        with store.translate():
            pipe = store.client.pipeline(transaction=False)
            for shard in range(store.shards):
                pipe.zcard(store.shard.keys(shard, "ended")[0])
            return int(sum(pipe.execute()))

    site.until(lambda: not unpacked(), "the ended runs were not packed", ENDED_S)


def failed(site: Site, runs: Sequence[str]) -> int:
    """Runs that did not end in success."""
    pairs = [tuple(run.split("/")) for run in runs]
    wrong = 0
    for i in range(0, len(pairs), READ):
        found = site.client.store.shard.records([(dag, run) for dag, run in pairs[i : i + READ]])
        wrong += sum(record is None or record.state != "success" for record in found)
    return wrong


def verdict(site: Site, runs: Sequence[str], shape: Shape) -> dict[str, int]:
    """lost, doubled and disordered tasks by the bodies' own lines, and runs that did not succeed."""
    found: Faults = faults(site.trace.read(), runs, shape)
    return {**found._asdict(), "failed_runs": failed(site, runs)}


@contextmanager
def paused(site: Site, dags: Sequence[str]) -> Iterator[None]:
    for dag in dags:
        site.client.pause(dag)
    yield
    for dag in dags:
        site.client.resume(dag)


class Clock:
    """Wall time, and what the server and our processes spent meanwhile."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.before, self.cpu = site.counters(), self._cpu()
        self.begun = time.monotonic()

    def _cpu(self) -> dict[str, float]:
        return {role: self.site.cpu_s(role) for role in ("scheduler", "worker")}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def costs(self, tasks: int) -> dict[str, float]:
        """Microseconds a task: in scripts, of Redis, of schedulers, of workers."""
        spent: Counters = self.site.counters().since(self.before)
        cpu = self._cpu()
        ours = {f"{role}_us_per_task": (cpu[role] - self.cpu[role]) * 1e6 / tasks for role in cpu}
        return {
            "script_us_per_task": spent.script_us / tasks,
            "redis_us_per_task": spent.cpu_us / tasks,
            "script_calls_per_task": spent.scripts / tasks,
            **{name: value for name, value in ours.items() if value == value},  # NaN: can't be told here
        }


def burst(site: Site, dags: Sequence[str], shape: Shape, runs: int, others: int = 0) -> Numbers:
    """Runs all at once, until all have ended but `others`: how fast, at what cost, and whether all was right."""
    site.trace.clear()
    tasks = runs * len(shape)
    clock = Clock(site)
    made = submit(site, dags, runs)
    created_s = clock.seconds
    site.trace.wait(tasks)
    ended(site, others)
    took = clock.seconds
    return {
        "runs": runs,
        "tasks": tasks,
        "tasks_per_s": tasks / took,
        "seconds": took,
        "created_with_drain_per_s": runs / created_s,
        **clock.costs(tasks),
        **verdict(site, made, shape),
    }


def first_lines(lines: Sequence[Line]) -> dict[str, int]:
    """When the first body of each run began."""
    first: dict[str, int] = {}
    for run, _, ns in lines:
        first[run] = min(ns, first.get(run, ns))
    return first


def seconds_of(lines: Sequence[Line]) -> list[float]:
    return [line.ns / 1e9 for line in lines]
