"""`redsched dag next`: the fire times of a DAG, and what changes of the clocks do to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from redsched.cli.base import Command, state
from redsched.cli.names import DAG
from redsched.cli.output import message, now, parse_instant, print_json, table, warning
from redsched.errors import DefinitionError

if TYPE_CHECKING:
    from redsched.definition.model import DagSpec
    from redsched.schedule import Schedule

COUNT: Final = 10
MOST: Final = 100_000


@click.command("next", cls=Command, json=True, short_help="The next fire times of a schedule.")
@click.argument("target", metavar="DAG", type=DAG)
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, MOST),
    metavar="N",
    help=f"How many [{COUNT}; with --to all].",
)
@click.option("--from", "first", metavar="T", help="The earliest instant, ISO 8601, itself included [now].")
@click.option("--to", "last", metavar="T", help="The latest instant, itself included.")
def next_(target: str, count: int | None, first: str | None, last: str | None) -> None:
    """The next fire times of a DAG: in UTC, in its zone, and what a change of the clocks does to them.

    DAG is the id of a registered DAG, a path, or path:name. Only a registered one needs Redis. T without an offset is
    local time in the DAG's zone, a date alone its midnight.
    """
    found = _looked_up(target)
    schedule = found.schedule
    if schedule is None:
        _say_none(found.spec)
        fires: list[int] = []
    else:
        start, end = _window(found.spec, first, last)
        rising = _one_by_one(schedule, start) if end is None else schedule.between(start, end)
        fires = _listed(rising, count or (COUNT if end is None else MOST), count)
        found.say_beside(fires)
    if state().json:
        from redsched.definition.values import instant_text
        from redsched.schedule import utc

        print_json([instant_text(utc(ms)) for ms in fires])
    elif schedule is not None and fires:
        _show(schedule, found.spec, fires)


@dataclass(frozen=True, slots=True)
class _Found:
    spec: DagSpec
    schedule: Schedule | None
    registered: bool
    paused: bool

    def say_beside(self, fires: list[int]) -> None:
        if self.paused:
            warning(
                f"{self.spec.dag} is paused: none of these starts until `redsched dag resume {self.spec.dag}`"
            )
        every = self.schedule is not None and self.schedule.every_ms is not None
        if every and not self.registered and self.spec.start is None:
            message(f"{self.spec.dag} has no `start`: counted from now, as if it were registered now")
        if not fires:
            message(f"{self.spec.dag} has no fire time there")


def _looked_up(target: str) -> _Found:
    from redsched.cli.dag import _spec_of
    from redsched.cli.files import split_target
    from redsched.definition.model import DagSpec
    from redsched.schedule import Schedule

    if split_target(target) is not None:
        spec = _spec_of(target)
        return _Found(spec, Schedule.of(spec, _ms(now())), registered=False, paused=False)
    client = state().client()
    row: dict[str, Any] = client.dag(target)
    spec = DagSpec.model_validate(row["spec"])
    first = client.versions(target)[-1]["registered_at"]
    schedule = Schedule.of(spec, _ms(parse_instant(first)))
    return _Found(spec, schedule, registered=True, paused=bool(row["paused"]))


def _window(spec: DagSpec, first: str | None, last: str | None) -> tuple[int, int | None]:
    from redsched.definition.values import parse_instant as read

    start = _ms(read(first, spec.timezone, "--from")) if first else _ms(now()) + 1
    end = _ms(read(last, spec.timezone, "--to")) if last else None
    if end is not None and start > end:
        raise DefinitionError(f"--to {last} lies before {'--from ' + first if first else 'now'}")
    return start, end


def _one_by_one(schedule: Schedule, first: int) -> Iterator[int]:
    """Without an end: each step looks 50 years ahead, and no further."""
    found = schedule.next_after(first - 1)
    while found is not None:
        yield found
        found = schedule.next_after(found)


def _listed(fires: Iterator[int], limit: int, count: int | None) -> list[int]:
    """At most `limit`; it is said if that cut a window short that was asked for as a whole."""
    found = list(islice(fires, limit))
    if count is None and limit == MOST and next(fires, None) is not None:
        warning(f"only the first {MOST:,}; narrow it with --from and --to")
    return found


def _say_none(spec: DagSpec) -> None:
    after = getattr(spec.schedule, "after", None)
    why = f"starts after a run of {after} has succeeded" if after else "has no schedule"
    message(f"{spec.dag} {why}: no fire times")


def _show(schedule: Schedule, spec: DagSpec, fires: list[int]) -> None:
    from redsched.definition.values import instant_text
    from redsched.schedule import describe, spread_ms, utc

    later = spread_ms(spec.dag, spec.spread)
    rows = []
    for ms in fires:
        fire = describe(schedule, ms)
        spread = f"starts {_span(later)} later (spread)" if later else ""
        notes = ", ".join(note for note in (fire.note, spread) if note)
        local, zone = f"{fire.local:%a %Y-%m-%d %H:%M:%S}", f"{fire.offset} {spec.timezone}"
        rows.append((instant_text(utc(ms)), local, zone, notes))
    table(("utc", "local", "zone", "note"), rows)


def _span(ms: int) -> str:
    from redsched.definition.values import duration_text

    minutes, rest = divmod(ms, 60_000)
    return (
        f"{duration_text(minutes * 60_000)} {duration_text(rest)}" if minutes and rest else duration_text(ms)
    )


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000)
