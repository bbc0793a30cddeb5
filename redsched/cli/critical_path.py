"""`redsched run critical-path`: where the time of a run went, what would change it, and when it will end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from redsched.cli.base import Command, state
from redsched.cli.names import DAG, RUN
from redsched.cli.output import _draws, console, duration, is_terminal, print_json, say, warning
from redsched.errors import DefinitionError

ROWS = 40
NAME = 32
MIN_BAR = 12
PIPE_WIDTH = 100
SLACK_SHOWN = 10


@click.command("critical-path", cls=Command, json=True)
@click.argument("dag", type=DAG)
@click.argument("run", type=RUN, required=False)
@click.option(
    "--last",
    type=click.IntRange(1, 1000),
    default=1,
    metavar="N",
    help="Medians of the last N successful runs, up to RUN if you name one.",
)
@click.option(
    "--what-if", "what_if", metavar="TASK=TIME", multiple=True, help="If TASK took TIME; repeat it."
)
@click.option("--pool", "pools", metavar="POOL=SLOTS", multiple=True, help="If POOL had SLOTS; repeat it.")
def critical_path(
    dag: str, run: str | None, last: int, what_if: tuple[str, ...], pools: tuple[str, ...]
) -> None:
    """Where the time of a run went: the tasks that made it as long as it was, and the slack of the others.

    RUN is the latest if you name none. --what-if and --pool run it again on paper, with what you change. For a run that
    goes on, it says when that will probably end.
    """
    from redsched.critical_path import of_client

    changes = _pairs(what_if, "--what-if", "extract=30s")
    slots = _pairs(pools, "--pool", "db=8")
    found = of_client(state().client(), dag, run, last, changes, slots)
    if state().json:
        print_json(found)
    else:
        show(found)


def _pairs(given: Sequence[str], option: str, example: str) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise DefinitionError(f"{option} {text!r}: write it like {option} {example}")
        found[name] = value
    return found


def show(found: Mapping[str, Any]) -> None:
    count, many = len(found["path"]), len(found["runs"])
    of = f"medians of {many} runs up to {found['run']}" if many > 1 else f"{found['run']} {found['state']}"
    say(f"{found['dag']} {of}")
    if not count:
        say("nothing has run yet")
    else:
        say(f"{took(found['seconds'])} on {count} task{'s' * (count != 1)}: {shares(found['totals'])}")
        say("")
        _gantt(found)
        _slack(found["slack"])
    if found["what_if"]:
        _what_if(found["what_if"])
    if found["estimate"]:
        _estimate(found["estimate"])
    elif found["state"] in ("queued", "running"):
        warning("no successful run of the same graph yet, so there is no estimate of its end")


def _gantt(found: Mapping[str, Any]) -> None:
    glyphs = DRAWN if _draws() else PLAIN
    if not is_terminal():
        for row in gantt(found, PIPE_WIDTH, glyphs):
            say(row.text.rstrip())
        return
    from rich.text import Text

    screen = console()
    for row in gantt(found, screen.width, glyphs):
        screen.print(Text(row.text.rstrip(), style="bold red" if row.critical else ""), no_wrap=True)


def _slack(slack: Mapping[str, float]) -> None:
    if not slack:
        return
    least = sorted(slack.items(), key=lambda x: (x[1], x[0]))
    shown = ", ".join(f"{name} {took(seconds)}" for name, seconds in least[:SLACK_SHOWN])
    more = f", and {len(least) - SLACK_SHOWN} with more" if len(least) > SLACK_SHOWN else ""
    say("")
    say(f"slack: {shown}{more}")


def _what_if(found: Mapping[str, Any]) -> None:
    saved = found["saved_seconds"]
    change = f"{took(abs(saved))} {'less' if saved > 0 else 'more'}" if saved else "no difference"
    say("")
    say(f"what if: {took(found['before_seconds'])} -> {took(found['seconds'])} ({change})")
    say(f"  path: {_path(found['path'])}")


def _estimate(found: Mapping[str, Any]) -> None:
    say("")
    say(
        f"will end: by {found['p50']} at even odds, by {found['p90']} in nine of ten cases "
        f"({took(found['p50_seconds'])} to {took(found['p90_seconds'])} in all; from {found['runs']} runs)"
    )
    say(f"  path: {_path(found['path'])}")
    if found["overdue"]:
        say(f"  takes longer than ever, counted as ending now: {', '.join(found['overdue'][:10])}")
    if found["unknown"]:
        say(f"  never succeeded before, counted as nothing: {', '.join(found['unknown'][:10])}")


def _path(names: Sequence[str]) -> str:
    kept = [*names[:6], f"({len(names) - 12} more)", *names[-6:]] if len(names) > 13 else names
    return " -> ".join(kept) or "nothing"


# ---- the chart: a row a task, and on it the kinds of time


@dataclass(frozen=True, slots=True)
class Glyphs:
    waiting: str
    slot: str
    retrying: str
    running: str
    cut: str


DRAWN: Final = Glyphs("·", "░", "▒", "█", "…")
PLAIN: Final = Glyphs(".", "-", "~", "#", "~")


@dataclass(frozen=True, slots=True)
class Row:
    text: str
    critical: bool = False


def gantt(found: Mapping[str, Any], width: int, glyphs: Glyphs = DRAWN) -> list[Row]:
    """At most 40 rows of at most `width` cells: all tasks that ran, or the path alone if these are too many."""
    tasks, path = found["tasks"], found["path"]
    shown = [n for n, t in tasks.items() if t["started"] is not None]
    shown.sort(key=lambda n: (tasks[n]["ready"], tasks[n]["started"]))
    note = ""
    if len(shown) > ROWS:
        note = f"the path alone: {len(path)} of {len(shown)} tasks that ran"
        shown = path
    cut = len(shown) - ROWS
    if cut > 0:
        half = ROWS // 2
        note += f"; {cut} in the middle left out"
        shown = shown[:half] + shown[half + cut :]
    if not shown:
        return []
    critical = set(path)
    names = min(NAME, max(map(len, shown)), max(4, width - MIN_BAR - 12))
    bar = max(1, width - names - 12)
    end = max((tasks[n]["ended"] for n in shown), default=0)
    rows = [
        Row(
            f"{'*' if n in critical else ' '} {_name(n, names, glyphs):<{names}} "
            f"{_bar(tasks[n], end, bar, glyphs):<{bar}} {took(tasks[n]['running']):>7}",
            n in critical,
        )
        for n in shown
    ]
    return [*rows, Row(_legend(tasks, shown, glyphs)[:width]), *([Row(note[:width])] if note else [])]


def _name(name: str, width: int, glyphs: Glyphs) -> str:
    return name if len(name) <= width else name[: width - 1] + glyphs.cut


def _bar(task: Mapping[str, Any], end: float, width: int, glyphs: Glyphs) -> str:
    """Cells by their right edges; a task that has begun to run fills one at least."""
    edges = [task["waiting"], task["waiting"] + task["slot"]]
    edges += [edges[1] + task["retrying"], task["ended"]]
    cells = [round(at / end * width) if end else 0 for at in edges]
    if cells[3] == cells[2] and task["state"] not in ("ready", "queued", "retrying"):
        cells = [min(x, width - 1) for x in cells[:3]] + [min(width, cells[2] + 1)]
    text, at = "", 0
    for cell, glyph in zip(
        cells, (glyphs.waiting, glyphs.slot, glyphs.retrying, glyphs.running), strict=True
    ):
        text, at = text + glyph * (cell - at), max(at, cell)
    return text


def _legend(tasks: Mapping[str, Any], shown: Sequence[str], glyphs: Glyphs) -> str:
    words = f"* critical  {glyphs.waiting} waiting  {glyphs.slot} for a slot  {glyphs.running} running"
    return words + (f"  {glyphs.retrying} retrying" if any(tasks[n]["retrying"] for n in shown) else "")


def took(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms" if seconds < 1 else duration(seconds)


def shares(totals: Mapping[str, float]) -> str:
    """`running 80 %, for a slot 15 %, waiting 5 %`: where the path's time went, the most first."""
    whole = sum(totals.values())
    words = {"slot": "for a slot"}
    kept = sorted(((s, words.get(n, n)) for n, s in totals.items() if s), reverse=True)
    return ", ".join(f"{name} {round(100 * s / whole)} %" for s, name in kept)
