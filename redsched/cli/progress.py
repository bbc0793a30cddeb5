"""Following a run to its end: a live picture on a terminal, one line for each change of state in a pipe."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from redsched.cli.output import (
    STATES,
    bar_text,
    console,
    duration,
    is_terminal,
    message,
    parse_instant,
    say,
    seconds_between,
    state_text,
)
from redsched.states import ENDED, SETTLED

if TYPE_CHECKING:
    from rich.console import Group

    from redsched.client import Client

LEAST_PAUSE_S = 0.2
# Looking costs Redis and us something for each task, so a look may take a fifth of the time at most.
PAUSE_PER_LOOK = 5
NAMES_SHOWN = 8
FAILURES_SHOWN = 20

Run = dict[str, Any]


def follow(client: Client, dag: str, run: str, timeout: float | None, *, quiet: bool = False) -> Run:
    """Show the run until it has ended, and return it. Raises TimeoutError after `timeout` seconds."""
    if quiet:
        return client.wait(dag, run, timeout)
    try:
        if is_terminal():
            return _live(client, dag, run, timeout)
        return _lines(client, dag, run, timeout)
    except KeyboardInterrupt:
        message(f"not watching any more; the run goes on (stop it with `redsched run cancel {dag} {run}`)")
        raise


def _looks(client: Client, dag: str, run: str, timeout: float | None, show: Callable[[Run], None]) -> Run:
    """Look and show, until the run has ended."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        before = time.monotonic()
        found = client.run(dag, run)
        show(found)
        if found["state"] in ENDED:
            return found
        now = time.monotonic()
        if end is not None and now >= end:
            raise TimeoutError(f"run {run} of {dag} is still {found['state']} after {duration(timeout)}")
        pause = max(LEAST_PAUSE_S, (now - before) * PAUSE_PER_LOOK)
        time.sleep(pause if end is None else min(pause, end - now))


# ---- in a pipe


def _lines(client: Client, dag: str, run: str, timeout: float | None) -> Run:
    known: dict[str, tuple[str, int]] = {}
    return _looks(client, dag, run, timeout, lambda found: _say_changes(found, known))


def _say_changes(found: Run, known: dict[str, tuple[str, int]]) -> None:
    ended = found["state"] in ENDED
    if not ended:
        _say_if_new("run", f"run {found['run']}", found, known)
    for name, task in found["tasks"].items():
        if task["state"] != "none":
            _say_if_new(f"task {name}", name, task, known)
    if ended:
        _say_if_new("run", f"run {found['run']}", found, known)


def _say_if_new(key: str, name: str, thing: dict[str, Any], known: dict[str, tuple[str, int]]) -> None:
    now = (thing["state"], thing.get("attempt") or 0)
    if known.get(key) == now:
        return
    known[key] = now
    settled = thing["state"] in SETTLED
    at = (thing["ended_at"] if settled else None) or (
        thing["started_at"] if thing["state"] == "running" else None
    )
    words = [_clock(at), name, thing["state"]]
    if settled and thing["started_at"]:
        words.append(duration(seconds_between(thing["started_at"], thing["ended_at"])))
    if now[1] > 1:
        words.append(f"attempt {now[1]}")
    if thing.get("reason"):
        words.append(f"({thing['reason']})")
    say("  ".join(words))


def _clock(instant: str | None) -> str:
    from datetime import UTC, datetime

    at = parse_instant(instant) if instant else datetime.now(UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- on a terminal


def _live(client: Client, dag: str, run: str, timeout: float | None) -> Run:
    from rich.live import Live

    screen = console()
    with Live(console=screen, transient=True, auto_refresh=False, redirect_stdout=False) as live:
        found = _looks(client, dag, run, timeout, lambda f: live.update(picture(f), refresh=True))
    show_end(found)
    return found


def picture(found: Run) -> Group:
    """The run on a few lines."""
    from rich.console import Group
    from rich.text import Text

    tasks = found["tasks"]
    counts = Counter(t["state"] for t in tasks.values())
    settled = sum(counts[s] for s in SETTLED)
    elapsed = duration(seconds_between(found["started_at"] or found["created_at"], found["ended_at"]))
    head = Text.assemble(f"{found['dag']} {found['run']}  ", state_text(found["state"]), f"  {elapsed}")
    states = Text("  ").join(_count(s, counts[s]) for s in STATES if counts[s])
    return Group(head, Text.assemble(bar_text(settled, len(tasks), 24), "   ", states), Text(_current(tasks)))


def _count(state: str, count: int) -> Any:
    from rich.text import Text

    return Text.assemble(f"{count} ", state_text("waiting" if state == "none" else state))


def _current(tasks: dict[str, Any]) -> str:
    running = [(name, t) for name, t in tasks.items() if t["state"] in ("running", "retrying")]
    names = [_named(name, t) for name, t in running[:NAMES_SHOWN]]
    more = [f"and {len(running) - NAMES_SHOWN} more"] if len(running) > NAMES_SHOWN else []
    return "now: " + ", ".join(names + more) if names else ""


def _named(name: str, task: dict[str, Any]) -> str:
    took = (
        duration(seconds_between(task["started_at"], None)) if task["state"] == "running" else task["state"]
    )
    again = f"attempt {task['attempt']}, " if task["attempt"] > 1 else ""
    return f"{name} ({again}{took})"


def show_end(found: Run) -> None:
    """The last word on a terminal: how it ended, and where to look if it did not end well."""
    from rich.text import Text

    screen = console()
    took = duration(seconds_between(found["started_at"], found["ended_at"]))
    screen.print(Text.assemble(f"{found['dag']} {found['run']}  ", state_text(found["state"]), f"  {took}"))
    failed = [name for name, t in found["tasks"].items() if t["state"] == "failed"]
    for name in failed[:FAILURES_SHOWN]:
        reason = found["tasks"][name]["reason"] or ""
        screen.print(Text.assemble("  ", state_text("failed"), f"  {name}  {reason}"))
    if len(failed) > FAILURES_SHOWN:
        click.echo(f"  and {len(failed) - FAILURES_SHOWN} more")
    if failed:
        message(f"see: redsched run logs {found['dag']} {found['run']} {failed[0]}")
