"""`redsched run`: start runs, look at them, wait for them, stop them, read their logs."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from redsched.cli.base import TIMED_OUT, Group, state
from redsched.cli.names import DAG, RUN, TASK, Duration
from redsched.cli.output import Instant, State, confirm, print_json, say, table, warning
from redsched.errors import DefinitionError
from redsched.states import ENDED, RunState

if TYPE_CHECKING:
    from redsched.client import Client

RUN_STATES = RunState.__args__  # type: ignore[attr-defined]

run = Group(
    "run",
    short_help="Start, follow, repair and stop runs; read their logs.",
    help="Runs: start, list, show, watch, logs, cancel, clear, mark, explain.",
    lazy={
        "clear": "redsched.cli.edit:clear",
        "mark": "redsched.cli.edit:mark",
        "critical-path": "redsched.cli.critical_path:critical_path",
        "explain": "redsched.cli.explain:explain",
    },
)

_params = click.option(
    "-p", "--param", "params", metavar="NAME=VALUE", multiple=True, help="A parameter; repeat it."
)
_timeout = click.option(
    "--timeout",
    type=Duration(),
    metavar="TIME",
    help="Stop waiting after 30s, 10m …: exit 124, the run goes on.",
)


# ---- start, watch


@run.command(json=True)
@click.argument("dag", type=DAG)
@_params
@click.option("--date", metavar="INSTANT", help="Logical date, ISO 8601; without a zone it is in the DAG's.")
@click.option("--id", "run_id", metavar="ID", help="Id of the run; made from the time if you don't name one.")
@click.option("--wait", is_flag=True, help="Wait for the end: exit 0 if the run succeeded, else 1.")
@_timeout
def start(
    dag: str, params: tuple[str, ...], date: str | None, run_id: str | None, wait: bool, timeout: float | None
) -> None:
    """Start a run of DAG.

    A value is read as JSON unless the parameter's type is string: -p limit=10 is a number, -p day=2026-01-02 a text.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout says how long to --wait; add --wait")
    client = state().client()
    values, when = read_inputs(client, dag, params, date)
    started = client.trigger(dag, values, date=when, run=run_id)
    warn_if_it_waits(client, dag)
    if wait:
        await_end(client, dag, started["run"], timeout)
    elif state().json:
        print_json(started)
    else:
        say(f"{dag} {started['run']} {started['state']}")


def read_inputs(
    client: Client, dag: str, params: tuple[str, ...], date: str | None
) -> tuple[dict[str, Any], datetime | None]:
    """What was typed for a run, read by the DAG's own declaration of its params and zone."""
    if not params and not date:
        return {}, None
    from redsched.definition.model import DagSpec, params_from_cli

    spec = DagSpec.model_validate(client.dag(dag)["spec"])
    return params_from_cli(spec, list(params)), read_date(date, spec.timezone) if date else None


def read_date(text: str, zone: str) -> datetime:
    """ISO 8601; without an offset it is local time in `zone`, which must have had that moment."""
    from redsched.definition.values import parse_instant

    at, local = parse_instant(text, zone, "--date"), datetime.fromisoformat(text.strip())
    if local.tzinfo is None and at.astimezone(ZoneInfo(zone)).replace(tzinfo=None) != local:
        raise DefinitionError(f"--date {text!r} does not exist in {zone}: the clocks were moved over it")
    return at


def warn_if_it_waits(client: Client, dag: str) -> None:
    """A run that waits for somebody looks like one that hangs, so say it at once."""
    if client.dag(dag)["paused"]:
        warning(f"{dag} is paused: the run waits until `redsched dag resume {dag}`")
    elif not client.schedulers():
        warning(
            "no scheduler is alive: the run waits until one starts (`redsched scheduler` or `redsched up`)"
        )
    elif not client.workers():
        warning("no worker is alive: tasks wait until one starts (`redsched worker` or `redsched up`)")


def await_end(client: Client, dag: str, run: str, timeout: float | None) -> None:
    """Show progress until the run has ended; the exit code says how."""
    from redsched.cli.progress import follow

    try:
        ended = follow(client, dag, run, timeout, quiet=state().json)
    except TimeoutError as error:
        warning(f"{error}; it goes on: `redsched run watch {dag} {run}` waits again")
        raise click.exceptions.Exit(TIMED_OUT) from None
    if state().json:
        print_json(ended)
    if ended["state"] != "success":
        raise click.exceptions.Exit(1)


@run.command(json=True)
@click.argument("dag", type=DAG)
@click.argument("run", type=RUN)
@_timeout
def watch(dag: str, run: str, timeout: float | None) -> None:
    """Follow a run to its end: exit 0 if it succeeded, else 1. RUN may be `latest`.

    On a terminal it shows progress; in a pipe it prints one line for each change of state.
    """
    client = state().client()
    found = client.run(dag, run)
    await_end(client, dag, found["run"], timeout)


# ---- list, show


@run.command("list", json=True)
@click.option("--dag", type=DAG, help="Only runs of this DAG.")
@click.option("--state", "wanted", type=click.Choice(RUN_STATES), help="Only runs in this state.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most so many."
)
@click.option("--include-skipped", is_flag=True, help="With --dag: slots that became no run, too, and why.")
def list_(dag: str | None, wanted: str | None, limit: int, include_skipped: bool) -> None:
    """Runs, the newest first."""
    more = {"include_skipped": True} if include_skipped else {}
    runs = state().client().runs(dag=dag, state=wanted, limit=limit, **more)
    if state().json:
        print_json(runs)
        return
    if not runs:
        from redsched.cli.output import message

        message("no such runs" if dag or wanted else "no runs yet; start one with `redsched run start DAG`")
        return
    show_runs(runs)


def show_runs(runs: list[dict[str, Any]]) -> None:
    from redsched.cli.output import duration, seconds_between

    skipped = any("reason" in r for r in runs)
    columns = ("dag", "run", "state", "kind", "logical date", "started", "took")
    table(
        (*columns, "reason") if skipped else columns,
        [
            (
                r["dag"],
                r["run"],
                State(r["state"]),
                r["kind"],
                r["logical_date"],
                r["started_at"] and Instant(r["started_at"]),
                duration(seconds_between(r["started_at"], r["ended_at"])),
                *((r.get("reason") or "",) if skipped else ()),
            )
            for r in runs
        ],
        right=("took",),
    )


@run.command(json=True)
@click.argument("dag", type=DAG)
@click.argument("run", type=RUN)
@click.option("--history", is_flag=True, help="All attempts, not only the last of each task.")
def show(dag: str, run: str, history: bool) -> None:
    """One run and its tasks. RUN may be `latest`."""
    found = state().client().run(dag, run)
    if state().json:
        print_json(found)
    else:
        show_run(found, history)


def show_run(found: dict[str, Any], history: bool = False) -> None:
    from redsched.cli.output import compact, duration, fields, seconds_between

    fields(
        {
            "dag": f"{found['dag']} v{found['version']}",
            "run": found["run"],
            "state": State(found["state"]),
            "kind": found["kind"],
            "logical date": found["logical_date"] and Instant(found["logical_date"]),
            "created": found["created_at"] and Instant(found["created_at"]),
            "started": found["started_at"] and Instant(found["started_at"]),
            "ended": found["ended_at"] and Instant(found["ended_at"]),
            "took": duration(seconds_between(found["started_at"], found["ended_at"])),
            "params": compact(found["params"]) if found["params"] else "",
        }
    )
    say("")
    table(
        ("task", "state", "attempt", "pool", "worker", "started", "took", "reason"),
        [row for name, task in found["tasks"].items() for row in _task_rows(name, task, history)],
        right=("attempt", "took"),
    )


def _task_rows(name: str, task: dict[str, Any], history: bool) -> list[tuple[Any, ...]]:
    """The task, after its earlier attempts if these are wanted."""
    earlier = [
        {**old, "state": old["outcome"], "pool": task["pool"]}
        for old in (task.get("history", ()) if history else ())
    ]
    return [_task_row(name, one) for one in (*earlier, task)]


def _task_row(name: str, task: dict[str, Any]) -> tuple[Any, ...]:
    from redsched.cli.output import duration, seconds_between

    ended = task["ended_at"]
    took = duration(seconds_between(task["started_at"], ended)) if ended or task["state"] == "running" else ""
    started = task["started_at"] and Instant(task["started_at"])
    shown = task["attempt"] or None
    return name, State(task["state"]), shown, task["pool"], task["worker"], started, took, task["reason"]


# ---- cancel, logs


@run.command(json=True)
@click.argument("dag", type=DAG)
@click.argument("run", type=RUN)
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def cancel(dag: str, run: str, yes: bool) -> None:
    """Cancel a run: nothing of it starts any more, what runs is stopped. RUN may be `latest`."""
    client = state().client()
    found = client.run(dag, run)  # so that `latest` means the same run in the question and in the act
    confirm(f"Cancel the run {found['run']} of {dag} ({found['state']})?", yes or found["state"] in ENDED)
    answer = client.cancel(dag, found["run"])
    if state().json:
        print_json(answer)
    else:
        say(f"{dag} {answer['run']} {answer['state']}; {answer['stopped']} running tasks stopped")


@run.command()
@click.argument("dag", type=DAG)
@click.argument("run", type=RUN)
@click.argument("task", type=TASK)
@click.option("--attempt", type=click.IntRange(min=1), help="Which attempt; the latest if you don't say.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the task has ended.")
def logs(dag: str, run: str, task: str, attempt: int | None, follow: bool) -> None:
    """What a task wrote, byte for byte. RUN may be `latest`."""
    from redsched.cli.output import message

    client = state().client()
    if follow:
        for piece in client.follow_logs(dag, run, task, attempt):
            write_bytes(piece)
        return
    view = client.logs(dag, run, task, attempt)
    write_bytes(view.data)
    if not view.attempt:
        message(f"task {task} is {view.state} and has not run yet")
    elif not view.data:
        message(f"attempt {view.attempt} ({view.state}) wrote nothing" + ("" if view.done else " so far"))


def write_bytes(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
