"""`redsched simulate`: a day of one's own DAGs in seconds, on a private server that is thrown away. No body runs."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from redsched.cli.base import Command, meant, state
from redsched.cli.output import Bar, duration, fields, message, print_json, say, table
from redsched.errors import DefinitionError

if TYPE_CHECKING:
    from redsched.definition.model import DagSpec

SHOWN: Final = 10


@click.command(
    cls=Command, json=True, redis=False, short_help="A day of your DAGs in seconds: queues, waits, misses."
)
@click.argument(
    "paths", metavar="PATH…", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@click.option("--day", metavar="DATE", help="The day, from midnight to midnight UTC [today].")
@click.option(
    "--durations",
    metavar="[DAG[.TASK]=]T",
    multiple=True,
    help="How long tasks take [60s]; for a DAG or a task of its own: orders=5m, orders.load=20m. Repeatable.",
)
@click.option(
    "--pool", "pools", metavar="NAME=N", multiple=True, help="Slots of a pool that no DAG names. Repeatable."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="Another seed, another day."
)
@click.option(
    "--faults",
    type=click.Choice(["none", "some", "many"]),
    default="none",
    show_default=True,
    help="Whether tasks fail, calls get lost, processes die and Redis restarts.",
)
def simulate(
    paths: tuple[Path, ...],
    day: str | None,
    durations: tuple[str, ...],
    pools: tuple[str, ...],
    seed: int,
    faults: str,
) -> None:
    """What a day of the DAGs of each PATH would be like: lines before pools, waits, late and skipped runs.

    The real scheduler and its real scripts run under a simulated clock, on a private server that is thrown away. Bodies
    don't run: a task takes its time from --durations, each attempt half as long up to half as long again, at most its
    `timeout`. There are workers for every slot. The same seed gives the same day.
    """
    from redsched.simulation.day import Wish, simulate_day

    specs = _specs(paths)
    wish = Wish(
        day_ms=_midnight(day),
        seed=seed,
        faults=faults,
        durations=_durations(durations, specs),
        pools=_slots(pools),
    )
    begun = time.monotonic()
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        found = simulate_day(specs, wish)
    finally:
        signal.signal(signal.SIGTERM, before)
    if state().json:
        print_json(found)
        return
    _show(found)
    message(f"simulated in {time.monotonic() - begun:.1f} s; nothing was run, and no installation was asked")


def _stop(_number: int, _frame: Any) -> NoReturn:
    """As Ctrl-C, so that the private server goes, too."""
    raise KeyboardInterrupt


# ---- what was asked for


def _specs(paths: Sequence[Path]) -> list[DagSpec]:
    from redsched.cli.files import load

    found = load(paths)
    for one in found:
        if one.error is not None:
            raise one.error
    return [one.dag for one in found if one.dag is not None]


def _midnight(day: str | None) -> int:
    if day is None:
        date = datetime.now(UTC).date()
    else:
        try:
            date = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).date()
        except ValueError:
            raise DefinitionError(f"--day {day!r}: write a date as in 2026-01-31") from None
    return int(datetime(date.year, date.month, date.day, tzinfo=UTC).timestamp() * 1000)


def _durations(given: Sequence[str], specs: Sequence[DagSpec]) -> dict[str, int]:
    from redsched.definition.model import parse_duration

    known = {spec.dag for spec in specs} | {f"{spec.dag}.{task}" for spec in specs for task in spec.tasks}
    found = {}
    for text in given:
        name, _, value = text.rpartition("=")
        if name and name not in known:
            raise DefinitionError(f"--durations {text}: there is no DAG or task {name!r}{meant(name, known)}")
        found[name] = parse_duration(value, f"--durations {text}")
    return found


def _slots(given: Sequence[str]) -> dict[str, int]:
    found = {}
    for text in given:
        name, _, slots = text.partition("=")
        if not name or not slots.isdecimal() or not 0 < int(slots) <= 1_000_000:
            raise DefinitionError(f"--pool {text}: write a name and its slots, as in gpu=2")
        found[name] = int(slots)
    return found


# ---- how it is shown


def _show(found: dict[str, Any]) -> None:
    runs, waits, hour = found["runs"], found["waits"], found["critical_hour"]
    states = ", ".join(f"{n} {name}" for name, n in runs.items() if name != "total")
    fields(
        {
            "day": f"{found['day']}, seed {found['seed']}, faults {found['faults']}",
            "dags": str(found["dags"]),
            "without a schedule": ", ".join(found["unscheduled"]),
            "runs": f"{runs['total']}" + (f": {states}" if states else ""),
            "tasks": f"{found['tasks']}",
            "ready to start": _waits(waits),
            "critical hour": hour and _hour(hour),
            "happened": ", ".join(f"{n} {name}" for name, n in found["happened"].items()),
        }
    )
    say("")
    table(
        ("pool", "peak", "use", "waiting", "at", "p50", "p95", "max"),
        [_pool(p) for p in found["pools"]],
        right=("use", "waiting", "p50", "p95", "max"),
    )
    _section("longest runs", ("dag", "run", "took"), [_longest(r) for r in found["longest_runs"]])
    late = Counter((r["dag"],) for r in found["late"])
    _section("past their deadline", ("dag", "runs"), [(*key, n) for key, n in late.most_common(SHOWN)])
    queued = [(r["dag"], r["run"], duration(r["waited_s"])) for r in found["queued_runs"][:SHOWN]]
    _section(f"waited for an earlier run: {len(found['queued_runs'])}", ("dag", "run", "waited"), queued)
    skips = Counter((r["dag"], r["reason"]) for r in found["skipped_slots"])
    _section(
        "slots that became no run",
        ("dag", "reason", "slots"),
        [(*key, n) for key, n in skips.most_common(SHOWN)],
    )


def _section(title: str, columns: tuple[str, ...], rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        say("")
        say(title)
        table(columns, rows, right=(columns[-1],))


def _waits(waits: dict[str, float | None]) -> str:
    return ", ".join(f"{name[:-2]} {duration(s)}" for name, s in waits.items() if s is not None)


def _hour(hour: dict[str, Any]) -> str:
    return (
        f"{hour['hour']}: {hour['started']} tasks began, {duration(hour['waited_s'])} waited in all, "
        f"{hour['used_s'] / 3600:.1f} slots busy"
    )


def _pool(p: dict[str, Any]) -> tuple[Any, ...]:
    waits = [duration(p["waits"][name]) for name in ("p50_s", "p95_s", "max_s")]
    use = f"{p['use']:.0%}"
    return (
        p["pool"],
        Bar((p["peak_used"], p["slots"])),
        use,
        p["peak_waiting"],
        p["peak_waiting_at"],
        *waits,
    )


def _longest(r: dict[str, Any]) -> tuple[str, str, str]:
    return r["dag"], r["run"], duration(r["seconds"])
