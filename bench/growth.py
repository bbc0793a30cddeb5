"""How cost grows with work: runs that wait, schedulers, workers, tasks a DAG; and what a cluster would carry.

`python -m bench.growth` writes `bench/results/growth.json` and the pictures of `docs/scaling.md`.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import click

from bench import cluster, pages
from bench.scripts import calls_of, logged
from redsched.bench import shapes
from redsched.bench.load import Numbers, burst, register, settled, submit, warm
from redsched.bench.machine import load, where
from redsched.bench.measure import faults_of, server_text
from redsched.bench.site import Setup, Site, site
from redsched.bench.stats import exponent, quantile
from redsched.bench.workloads import calm, wait_lists
from redsched.cli.output import message, say, table

ROOT = Path(__file__).parents[1]
WAITING = (100, 1000, 10_000, 100_000)
SCHEDULERS = (1, 2, 4)
WORKERS = (1, 2, 4, 8)
SIZES = (2, 20, 200, 2000, 10_000)
NODES = (1, 2, 4, 8)
PLANS = {
    "16 shards, 1 pool": (16, 1),
    "16 shards, 8 pools": (16, 8),
    "64 shards, 32 pools": (64, 32),
    "256 shards, 128 pools": (256, 128),
}
KEPT = (
    "tasks_per_s",
    "script_us_per_task",
    "redis_us_per_task",
    "scheduler_us_per_task",
    "worker_us_per_task",
)

SHOWN = ("tasks/s", "scripts µs", "Redis µs", "scheduler µs", "worker µs")

Rows = dict[int, dict[str, float]]


def measured(
    made: Site, shape: shapes.Shape, name: str, runs: int, times: int, others: int = 0
) -> dict[str, float]:
    """The best of a few bursts, because what disturbs a burst only makes it slower."""
    dags = register(made, name, shape, min(16, runs))
    warm(made, dags, len(shape), others)
    bursts: list[Numbers] = []
    for _ in range(times):
        bursts.append(burst(made, dags, shape, runs, others))
        settled(made)
        if wrong := faults_of(bursts[-1]):
            raise click.ClickException(f"{name}: {wrong}")
    best = max(bursts, key=lambda b: b["tasks_per_s"])
    return {key: best[key] for key in KEPT if key in best}


def by_waiting(runs: int, times: int, waiting: tuple[int, ...]) -> Rows:
    rows: Rows = {}
    with site(Setup()) as made:
        lists = wait_lists(made)
        there = 0
        for count in waiting:
            submit(made, lists, count - there)
            there = count
            calm(made)
            rows[count] = measured(made, shapes.dag20(), f"at{count}_", runs, times, there)
            message(f"{count:,} runs wait: {rows[count]['tasks_per_s']:,.0f} tasks/s")
    return rows


def by_processes(what: str, counts: tuple[int, ...], runs: int, times: int) -> Rows:
    rows: Rows = {}
    for count in counts:
        setup = Setup(schedulers=count) if what == "schedulers" else Setup(workers=count, concurrency=1)
        with site(setup) as made:
            rows[count] = measured(made, shapes.dag20(), "dag20_", runs, times)
        message(f"{count} {what}: {rows[count]['tasks_per_s']:,.0f} tasks/s")
    return rows


def by_size(sizes: tuple[int, ...], tasks: int, times: int) -> Rows:
    """DAGs of five layers; the same number of tasks in all, in as many runs as that makes."""
    rows: Rows = {}
    with site(Setup()) as made:
        for size in sizes:
            shape = shapes.layers(size, max(1, size // 5))
            rows[size] = measured(made, shape, f"size{size}_", max(1, tasks // size), times)
            message(f"{size:,} tasks a DAG: {rows[size]['tasks_per_s']:,.0f} tasks/s")
    return rows


def costs(runs: int, us_per_task: float) -> cluster.Costs:
    """Time in shards and pools by the slow log, brought to what a task costs without that log."""
    with site(Setup()) as made:
        calls = calls_of(logged(made, runs, min(16, runs)))
    tasks = runs * 20
    shard, pool = (sum(calls[kind]) / tasks for kind in ("shard", "pool"))
    scale = us_per_task / (shard + pool)
    return cluster.Costs(
        shard * scale,
        pool * scale,
        *([us * scale for us in usual(calls[kind])] for kind in ("shard", "pool")),
    )


def usual(times: list[float]) -> list[float]:
    """Without the longest fiftieth: on a shared machine those are calls that had to wait for the processor."""
    limit = quantile(times, 0.98)
    return [us for us in times if us <= limit]


def law(rows: Rows, name: str) -> float:
    return exponent([(x, row[name]) for x, row in rows.items() if name in row])


@click.command()
@click.option("--runs", default=500, show_default=True, help="Runs of dag20 in a burst.")
@click.option("--times", default=3, show_default=True, help="Bursts at each point; the best counts.")
@click.option("--waiting", default=WAITING[-1], show_default=True, help="The most runs that wait.")
@click.option("--tasks", default=10_000, show_default=True, help="Tasks in a burst of DAGs of some size.")
@click.option("--keep/--no-keep", default=None, help="Write results and pages [on a quiet machine].")
def main(runs: int, times: int, waiting: int, tasks: int, keep: bool | None) -> None:
    """Measure how cost grows, tell the laws, and say what a cluster would carry."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    busy = load()
    found = {
        "waiting": by_waiting(runs, times, tuple(n for n in WAITING if n <= waiting)),
        "schedulers": by_processes("schedulers", SCHEDULERS, runs, times),
        "workers": by_processes("workers", WORKERS, runs, times),
        "size": by_size(tuple(n for n in SIZES if n <= tasks), tasks, times),
    }
    one = found["schedulers"][1]
    cost = costs(min(runs, 300), one["redis_us_per_task"])
    with site(Setup(schedulers=0, workers=0)) as made:
        place = where(server_text(made), busy)
    document: dict[str, Any] = {
        "workload": "growth",
        **place,
        **found,
        "laws": {axis: {name: law(rows, name) for name in KEPT} for axis, rows in found.items()},
        "cluster": {
            "shard_us_per_task": cost.shard_us,
            "pool_us_per_task": cost.pool_us,
            "scheduler_us_per_task": one.get("scheduler_us_per_task"),
            "worker_us_per_task": one.get("worker_us_per_task"),
            "rows": cluster.table(cost, NODES, PLANS),
        },
    }
    show(document)
    if pages.kept(keep, waiting >= WAITING[-1] and tasks >= SIZES[-1], busy):
        write(document)


def show(document: dict[str, Any]) -> None:
    for axis in document["laws"]:
        say("")
        rows = [
            (f"{int(x):,}", *(f"{row.get(k, 0):,.1f}" for k in KEPT)) for x, row in document[axis].items()
        ]
        rows.append(("~ x^k, k =", *(f"{document['laws'][axis][k]:.2f}" for k in KEPT)))
        table((axis, *KEPT), rows, right=(axis, *KEPT))
    say("")
    numbers = ("nodes", "median", "p10", "calm")
    lines = [(r["plan"], *(f"{r[k]:,.0f}" for k in numbers)) for r in document["cluster"]["rows"]]
    table(("cluster", *numbers), lines, right=numbers)


def write(document: dict[str, Any]) -> None:
    from bench import plot

    results, pictures = ROOT / "bench/results", ROOT / "docs/images"
    for folder in (results, pictures):
        folder.mkdir(parents=True, exist_ok=True)
    (results / "growth.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    titles = {
        "waiting": ("dag20 while other runs wait", "runs that wait"),
        "schedulers": ("dag20 by schedulers", "schedulers"),
        "workers": ("dag20 by workers", "workers, each one task at a time"),
        "size": ("bigger DAGs, as many tasks in all", "tasks a DAG"),
    }
    for axis, (about, x) in titles.items():
        points = {
            title: [(int(n), row[name]) for n, row in document[axis].items() if row.get(name)]
            for name, title in (("tasks_per_s", "tasks/s"), ("redis_us_per_task", "Redis µs a task"))
        }
        plot.lines(pictures / f"growth-{axis}.svg", points, about, x, "")
    plans = {
        plan: [(r["nodes"], r["median"]) for r in document["cluster"]["rows"] if r["plan"] == plan]
        for plan in PLANS
    }
    plot.lines(pictures / "growth-cluster.svg", plans, "a cluster, by simulation", "Redis nodes", "tasks/s")
    page = ROOT / "docs/scaling.md"
    for axis in titles:
        pages.fill(page, axis, growth_table(document, axis, titles[axis][1]))
    pages.fill(page, "cluster", cluster_table(document))
    say("written: bench/results/growth.json, docs/scaling.md, docs/images/growth-*.svg")


def growth_table(document: dict[str, Any], axis: str, x: str) -> str:
    laws = document["laws"][axis]
    rows = [[f"{int(n):,}", *(pages.number(row.get(k)) for k in KEPT)] for n, row in document[axis].items()]
    rows.append(["**k**", *(f"**{laws[k]:+.2f}**" for k in KEPT)])
    return f"{pages.table([x, *SHOWN], rows)}\n\n{pages.place(document)}"


def cluster_table(document: dict[str, Any]) -> str:
    found = document["cluster"]
    rows = [
        [row["plan"], row["nodes"], *(pages.number(row[k]) for k in ("median", "p10", "calm"))]
        for row in found["rows"]
    ]
    costs = ", ".join(
        f"{found[f'{part}_us_per_task']:.0f} µs in {where_}"
        for part, where_ in (
            ("shard", "its shard"),
            ("pool", "its pool"),
            ("scheduler", "schedulers"),
            ("worker", "workers"),
        )
        if found.get(f"{part}_us_per_task")
    )
    shown = pages.table(["plan", "nodes", "carried, tasks/s", "bad draw", "calm"], rows)
    return f"A task costs {costs}.\n\n{shown}\n\n{pages.place(document)}"


if __name__ == "__main__":
    main()
