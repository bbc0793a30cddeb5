"""`python -m bench.peers [--only NAME …] [--seconds S]`: everybody side by side, on the same kind of server, in one run.

Peers are installed into a cache folder of the user at first. Results go to `bench/results/peers.json` and `peers.svg`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench import pages
from bench.peers import catalog
from bench.peers.contest import Ours, Theirs, contest
from redsched.bench.machine import load, where
from redsched.bench.measure import server_text
from redsched.bench.probe import evalsha_per_s
from redsched.bench.site import Setup, site
from redsched.cli.output import message, say, table
from redsched.errors import RedschedError

RESULTS = Path(__file__).parents[1] / "results"
NAMES = ["redsched", *(peer.name for peer in catalog.PEERS)]
PICTURE = """The same work for redsched and others, on one machine, one after the other. What each does in place of joins, and how it was
measured: [bench/README.md](bench/README.md#peers).

![redsched and its peers](bench/results/peers.svg)"""
COLUMNS = {
    "dag20_tasks_per_s": "dag20 tasks/s",
    "hop_ms_p50": "hop p50 ms",
    "hop_ms_p99": "p99",
    "flat_enqueued_per_s": "flat enqueue/s",
    "flat_drain_per_s": "drain/s",
    "dag20_redis_us_per_task": "Redis us/task",
    "dag20_redis_commands_per_task": "commands/task",
    "bytes_per_run": "B a finished run",
}


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice(NAMES), metavar="NAME", help="Only this one; repeat it."
)
@click.option(
    "--seconds", default=5.0, show_default=True, type=click.FloatRange(0.2, 600), help="Length of a workload."
)
@click.option(
    "--rounds",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Everybody so often in turn; medians count.",
)
@click.option("--workers", default=1, show_default=True, help="redsched's workers.")
@click.option("--concurrency", default=3, show_default=True, help="Tasks at a time in each.")
@click.option(
    "--keep/--no-keep",
    default=None,
    help="Write results and pages [if nobody is left out, on a quiet machine].",
)
@click.option("--install", is_flag=True, help="Only install the peers.")
def main(
    only: tuple[str, ...],
    seconds: float,
    rounds: int,
    workers: int,
    concurrency: int,
    keep: bool | None,
    install: bool,
) -> None:
    """Measure dag20, hop and flat of redsched and its peers, and show them side by side."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = {peer.name: peer for peer in catalog.PEERS}
    chosen = [name for name in NAMES if name in only or not only]
    versions = {name: _install(found[name]) for name in chosen if name in found}
    if install:
        return
    begun, busy = time.monotonic(), load()
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    with site(Setup(schedulers=0, workers=0, tcp=True)) as made:
        limit, place = evalsha_per_s(made), where(server_text(made), busy)
    for name in chosen * rounds:
        message(f"{name} …")
        setup = Setup(schedulers=int(name == "redsched"), workers=workers, concurrency=concurrency, tcp=True)
        measured[name].append(_row(found.get(name), setup, versions.get(name, ""), seconds))
    rows = {name: merged(some) for name, some in measured.items()}
    show(rows)
    say("")
    document = {
        "workload": "peers",
        "seconds_each": seconds,
        "rounds": rounds,
        "evalsha_per_s": limit,
        **place,
        "rows": rows,
    }
    say(
        f"{time.monotonic() - begun:.0f} s; the server's limit was {limit:,.0f} EVALSHA/s; {place['machine']}"
    )
    if pages.kept(keep, not only, busy):
        write(document)


def _install(peer: catalog.Peer) -> str:
    try:
        return catalog.installed(peer)
    except (OSError, subprocess.SubprocessError) as error:
        message(f"{peer.name} can't be installed: {getattr(error, 'stderr', '') or error}")
        return ""


def _row(peer: catalog.Peer | None, setup: Setup, version: str, seconds: float) -> dict[str, Any]:
    """One row; a peer that fails leaves its reason, and the others go on."""
    if peer and not version:
        return {"error": "not installed"}
    about = {
        "version": version or "this",
        "joins": peer.joins if peer else "real and durable",
        "setting": peer.setting if peer else f"{setup.workers} × --concurrency {setup.concurrency}",
    }
    try:
        with site(Setup(schedulers=0, workers=0, tcp=True)) as made:
            if peer:
                return {**about, **contest(Theirs(peer, made), made, seconds)}
            made.setup = setup
            return {**about, **contest(Ours(made), made, seconds)}
    except (RedschedError, OSError, RuntimeError, ValueError) as error:
        return {**about, "error": str(error)}


FAULTS = ("dag20_lost", "dag20_doubled", "dag20_disordered", "flat_lost", "flat_doubled")


def merged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rounds of one: medians, but faults are added up. A round that failed is left out if another did not."""
    right = [row for row in rows if "error" not in row] or rows[:1]
    numbers = [name for name, value in right[0].items() if isinstance(value, int | float)]
    return right[0] | {
        name: sum(row[name] for row in right) if name in FAULTS else median(row[name] for row in right)
        for name in numbers
    }


def ranked(rows: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return sorted(rows.items(), key=lambda item: -item[1].get("dag20_tasks_per_s", 0))


def show(rows: dict[str, dict[str, Any]]) -> None:
    lines = [
        (name, row.get("version", ""), *(pages.number(row.get(c)) for c in COLUMNS), _remark(row))
        for name, row in ranked(rows)
    ]
    table(("who", "version", *COLUMNS.values(), "joins"), lines, right=tuple(COLUMNS.values()))


def _remark(row: dict[str, Any]) -> str:
    wrong = [f"{row[name]:,} {name.replace('_', ' ')}" for name in FAULTS if row.get(name)]
    return "; ".join([row.get("error") or row["joins"], *wrong])


def write(document: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "peers.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    from bench.plot import peers

    peers(document, RESULTS / "peers.svg")
    pages.fill(
        RESULTS.parent / "README.md",
        "peers",
        f"![redsched and its peers](results/peers.svg)\n\n{_page(document)}",
    )
    pages.fill(RESULTS.parents[1] / "README.md", "peers", PICTURE)
    say(f"written: {RESULTS.name}/peers.json, peers.svg, and the pages")


def _page(document: dict[str, Any]) -> str:
    rows = [
        [f"{name} {row.get('version', '')}", *(pages.number(row.get(c)) for c in COLUMNS)]
        for name, row in ranked(document["rows"])
        if "error" not in row
    ]
    return f"{pages.table(['who', *COLUMNS.values()], rows)}\n\n{pages.place(document)}"


if __name__ == "__main__":
    main()
