"""`redsched run explain`: why a run is not further, as a colleague would answer. What needs a person comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from redsched.cli.base import Command, state
from redsched.cli.names import DAG, RUN, TASK
from redsched.cli.output import State, _draws, console, is_terminal, print_json, safe, say, state_text
from redsched.states import ENDED

SHOWN: Final = 20
MARKS: Final = {"person": "!", "itself": "-", "ended": "-"}


@click.command(cls=Command, json=True)
@click.argument("dag", type=DAG)
@click.argument("run", type=RUN)
@click.argument("task", type=TASK, required=False)
def explain(dag: str, run: str, task: str | None) -> None:
    """Why tasks don't run: what each waits for, who holds that, and whether it clears by itself or needs you.

    With TASK: that task, whatever its state, and what it waits for in turn. RUN may be `latest`.
    """
    client = state().client()
    found = client.run(dag, run)  # so that `latest` means the same run in both
    rows = client.explain(dag, found["run"], task)
    if state().json:
        print_json(rows)
        return
    for line in lines(found, rows, task):
        _print(line)


Line = tuple[str, str, str]  # what it is, its mark or state, its text


def lines(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], task: str | None) -> Iterator[Line]:
    """The answer, line by line: a head, then tasks that others wait for; the many that only wait for these are counted."""
    yield "head", "", headline(found, rows, task)
    first = [r for r in rows if not _only_waits(r) or r["task"] == task]
    first.sort(key=lambda r: _urgency(r, task))
    behind = [r for r in rows if r not in first]
    for row in first[:SHOWN]:
        yield from _task_lines(row)
    if len(first) > SHOWN:
        yield "note", "", f"and {len(first) - SHOWN} more: name a TASK, or see all with --json"
    if task is None and len(behind) <= 3:
        for row in behind:
            yield from _task_lines(row)
    elif behind:
        names = ", ".join(r["task"] for r in behind[:5]) + (" …" if len(behind) > 5 else "")
        yield "note", "", f"{len(behind)} more wait only for tasks above them: {names}"


def headline(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], task: str | None) -> str:
    waiting = [r for r in rows if r["waits_for"]]
    states = [t["state"] for t in found["tasks"].values()]
    what = f"{found['dag']} {found['run']} is {found['state']}"
    if found["state"] in ENDED:
        return f"{found['dag']} {found['run']} has ended: {found['state']}"
    if task is not None:
        return what
    if not waiting:
        running = states.count("running")
        return f"{what}; nothing waits" + (f", {_tasks(running)} running" if running else "")
    stuck = sum(r["clears"] == "person" for r in waiting)
    needs = f"{stuck} of them until a person acts" if stuck else "all of that clears by itself"
    return f"{what}; {len(waiting)} of {_tasks(len(states))} wait, {needs}"


def _tasks(count: int) -> str:
    return f"{count} task{'s' * (count != 1)}"


def _only_waits(row: Mapping[str, Any]) -> bool:
    """It waits for nothing but other tasks of this run."""
    return bool(row["waits_for"]) and all(r["kind"] == "upstream" for r in row["waits_for"])


def _urgency(row: Mapping[str, Any], task: str | None) -> tuple[bool, bool, bool, bool]:
    """Smaller comes first: the task that was asked for, what needs a person, what waits, what failed on its own."""
    kinds = {r["kind"] for r in row.get("because", ())}
    return (
        row["task"] != task,
        row.get("clears") != "person",
        not row["waits_for"],
        not kinds & {"failed", "lost"},
    )


def _task_lines(row: Mapping[str, Any]) -> Iterator[Line]:
    yield "task", row["state"], row["task"]
    for reason in [*row["waits_for"], *row.get("because", ())]:
        yield "reason", reason["clears"] if row["waits_for"] else "ended", reason["detail"]
        if reason.get("do") and reason["kind"] != "upstream":
            yield "do", "", reason["do"]
    for note in row.get("notes", ()):
        yield "more", "", note
    if not row["waits_for"] and row["state"] == "success":
        yield "more", "", "it has ended with success"


def _print(line: Line) -> None:
    if is_terminal():
        _print_rich(line)
        return
    kind, mark, text = line
    before = {"head": "", "task": "", "do": "    -> ", "more": "    ", "note": ""}.get(
        kind, f"  {MARKS.get(mark, '')} "
    )
    if kind in ("task", "note"):
        say("")
    say(f"{before}{text} ({mark})" if kind == "task" else f"{before}{text}")


def _print_rich(line: Line) -> None:
    from rich.padding import Padding
    from rich.text import Text

    kind, mark, text = line
    text, screen = safe(text), console()
    if kind in ("head", "note"):
        screen.print(
            Text(text if kind == "head" else f"\n{text}", style="bold" if kind == "head" else "bright_black")
        )
    elif kind == "task":
        screen.print(Text.assemble("\n", (text, "bold"), "  ", state_text(State(mark))))
    elif kind == "reason":
        style = "yellow" if mark == "person" else ""
        screen.print(Padding(Text(f"{MARKS[mark]} {text}", style=style), (0, 0, 0, 2), expand=False))
    else:
        arrow = "→ " if kind == "do" and _draws() else "-> " if kind == "do" else ""
        screen.print(
            Padding(
                Text(f"{arrow}{text}", style="cyan" if kind == "do" else "bright_black"),
                (0, 0, 0, 5),
                expand=False,
            )
        )
