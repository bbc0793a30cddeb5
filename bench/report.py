"""All workloads one after the other, as a table: `python -m bench.report`, about five minutes on a quiet machine.

Short ones are measured several times, and the median run counts. Writes `bench/results/own.json` and the table of
`bench/README.md`.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from bench import pages
from bench.storm import STORM
from redsched.bench.machine import load
from redsched.bench.measure import faults_of, measure
from redsched.bench.site import Setup
from redsched.bench.workloads import ALL, Workload
from redsched.cli.output import message, say, table

ROOT = Path(__file__).parents[1]

Result = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A line of the report. `rank`: the number by which the median of several measurements is found."""

    name: str
    workload: Workload
    rank: str
    say: Callable[[Result], str]
    aof: bool = False
    long: bool = False  # measured once

    def measured(self, times: int, setup: Setup) -> Result:
        given = {**self.workload.setup, **({"aof": True} if self.aof else {})}
        found = [
            measure(self.workload, replace(setup, **given), self.workload.size)
            for _ in range(1 if self.long else times)
        ]
        return sorted(found, key=lambda result: result[self.rank])[len(found) // 2]


def _dag20(r: Result) -> str:
    return (
        f"{r['tasks_per_s']:,.0f} tasks/s ({r['share_of_evalsha']:.1%} of EVALSHA), drain alone "
        f"{r['drain_tasks_per_s']:,.0f}, {r['created_per_s']:,.0f} runs/s created; a task: Redis "
        f"{r['redis_us_per_task']:.0f} µs, schedulers {r['scheduler_us_per_task']:.0f}, workers {r['worker_us_per_task']:.0f}"
    )


def _one_run(r: Result) -> str:
    return f"{r['seconds']:.2f} s, {r['tasks_per_s']:,.0f} tasks/s; the longest script {r['longest_script_ms']:.1f} ms"


ENTRIES = [
    Entry("dag20", ALL["dag20"], "tasks_per_s", _dag20),
    Entry("dag20, append-only file each second", ALL["dag20"], "tasks_per_s", _dag20, aof=True),
    Entry(
        "hop",
        ALL["hop"],
        "hop_ms_p50",
        lambda r: (
            f"p50 {r['hop_ms_p50']:.2f} ms, p99 {r['hop_ms_p99']:.2f} ms; trigger to body {r['trigger_ms_p50']:.1f} ms"
        ),
    ),
    Entry(
        "flat, 10,000 tasks",
        ALL["flat"],
        "drain_per_s",
        lambda r: f"{r['drain_per_s']:,.0f}/s drained, {r['created_per_s']:,.0f}/s created",
    ),
    Entry(
        "storm, 50,000 DAGs",
        STORM,
        "last_root_queued_s",
        lambda r: (
            f"{r['last_root_queued_s']:.1f} s until the last root is queued ({r['runs_per_s']:,.0f} runs/s); a bystander waits "
            f"{r['bystander_ms_p50']:,.0f} ms"
        ),
        long=True,
    ),
    Entry(
        "crowd, 100,000 runs wait",
        ALL["crowd"],
        "crowd_vs_empty",
        lambda r: f"{r['tasks_per_s']:,.0f} tasks/s, {r['crowd_vs_empty']:.2f} of empty",
        long=True,
    ),
    Entry("wide, 10,000", ALL["wide"], "tasks_per_s", _one_run, long=True),
    Entry("deep, 5,000", ALL["deep"], "tasks_per_s", _one_run, long=True),
    Entry(
        "memory",
        ALL["memory"],
        "bytes_per_run",
        lambda r: (
            f"waiting {r['bytes_per_waiting_run']:,.0f} B, live {r['bytes_per_live_run']:,.0f} B, packed {r['bytes_per_run']:,.0f} B"
        ),
        long=True,
    ),
    Entry(
        "idle",
        ALL["idle"],
        "commands_per_s",
        lambda r: (
            f"{r['cpu_percent']:.2f} % of a core and {r['redis_cpu_percent']:.2f} % in the server; {r['sent_per_s']:.1f} commands/s "
            f"sent, {r['commands_per_s']:.1f}/s with those inside scripts"
        ),
        long=True,
    ),
    Entry(
        "bodies, 200 × `true`, 8 at a time",
        ALL["bodies"],
        "vs_xargs",
        lambda r: f"{r['tasks_per_s']:,.0f}/s, {r['vs_xargs']:.0%} of xargs",
    ),
]


@click.command()
@click.option("--only", multiple=True, metavar="WORD", help="Entries whose name begins with it; repeat it.")
@click.option("--times", default=3, show_default=True, help="Measurements of each short workload.")
@click.option("--workers", default=1, show_default=True)
@click.option("--concurrency", default=2, show_default=True)
@click.option(
    "--keep/--no-keep",
    default=None,
    help="Write results and table [if nothing is left out, on a quiet machine].",
)
def main(only: tuple[str, ...], times: int, workers: int, concurrency: int, keep: bool | None) -> None:
    """Measure all workloads at their usual size."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    setup = Setup(workers=workers, concurrency=concurrency)
    results: dict[str, Result] = {}
    busy = load()
    for entry in ENTRIES:
        if only and not entry.name.startswith(only):
            continue
        results[entry.name] = found = entry.measured(times, setup)
        message(f"{entry.name}: {entry.say(found)} {faults_of(found) or ''}")
    rows = [(e.name, e.say(results[e.name])) for e in ENTRIES if e.name in results]
    say("")
    table(("workload", "result"), rows)
    if pages.kept(keep, not only, busy):
        write(results, rows)


def write(results: dict[str, Result], rows: list[tuple[str, str]]) -> None:
    folder = ROOT / "bench/results"
    folder.mkdir(exist_ok=True)
    (folder / "own.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    first = next(iter(results.values()))
    text = "\n".join(["| workload | result |", "| --- | --- |", *(f"| {n} | {text} |" for n, text in rows)])
    pages.fill(ROOT / "bench/README.md", "own", f"{text}\n\n{pages.place(first)}")
    say("written: bench/results/own.json, and the table of bench/README.md")


if __name__ == "__main__":
    main()
