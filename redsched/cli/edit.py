"""`redsched run clear` and `run mark`: what a person does to a run. A plan first, then the question, then one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redsched.cli.base import Command, state
from redsched.cli.names import DAG, RUN, TASK
from redsched.cli.output import confirm, message, print_json, say

if TYPE_CHECKING:
    from redsched.client import Client

SHOWN = 12


@click.command(cls=Command, json=True)
@click.argument("dag", type=DAG)
@click.argument("run", type=RUN, required=False)
@click.argument("tasks", type=TASK, nargs=-1)
@click.option("--downstream", is_flag=True, help="Everything below the named tasks, too.")
@click.option("--upstream", is_flag=True, help="Everything above them, too.")
@click.option(
    "--only-failed", is_flag=True, help="Of all that, only what is failed, upstream_failed or lost."
)
@click.option(
    "--from", "start", metavar="INSTANT", help="Instead of RUN: all runs with a logical date from …"
)
@click.option("--to", "end", metavar="INSTANT", help="… to this one, inclusive; without a zone in the DAG's.")
@click.option("--dry-run", is_flag=True, help="Say exactly what would happen, and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def clear(
    dag: str,
    run: str | None,
    tasks: tuple[str, ...],
    downstream: bool,
    upstream: bool,
    only_failed: bool,
    start: str | None,
    end: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Let tasks of a run (all, if none is named) run again, on the version that the run has.

    What was skipped or upstream_failed only because of them opens again by itself. Running attempts among them are
    stopped. All attempts and their logs stay readable.
    """
    client = state().client()
    if start or end:
        tasks = tuple(x for x in (run, *tasks) if x is not None)
        runs = client.runs_between(dag, *_range(client, dag, start, end))
    elif run is None:
        raise click.UsageError("Name a RUN (or `latest`), or a range: --from T --to T")
    else:
        runs = [client.run(dag, run)["run"]]
    how: dict[str, Any] = {"downstream": downstream, "upstream": upstream, "only_failed": only_failed}
    names = list(tasks) or None
    plans = [client.clear(dag, r, names, dry_run=True, **how) for r in runs]
    if not dry_run:
        _ask(dag, plans, yes)
        plans = [client.clear(dag, r, names, **how) for r in runs]
    _print(plans, dry_run, several=bool(start or end))


def _range(client: Client, dag: str, start: str | None, end: str | None) -> tuple[int, int]:
    from redsched.cli.run import read_date

    zone = client.dag(dag)["timezone"]
    first = int(read_date(start, zone).timestamp() * 1000) if start else 0
    last = int(read_date(end, zone).timestamp() * 1000) if end else 2**52
    return first, last


def _ask(dag: str, plans: list[dict[str, Any]], yes: bool) -> None:
    count, stopped = sum(len(p["cleared"]) for p in plans), sum(p["stopped"] for p in plans)
    if not count:
        return
    what = _names(plans[0]["cleared"]) if len(plans) == 1 else f"{count} tasks in {len(plans)} runs"
    also = f"; {stopped} running attempt{'s' if stopped != 1 else ''} will be stopped" if stopped else ""
    confirm(f"Clear {what} of {dag}{also}?", yes)


def _names(tasks: list[str]) -> str:
    more = f" and {len(tasks) - SHOWN} more" if len(tasks) > SHOWN else ""
    return ", ".join(tasks[:SHOWN]) + more


def _print(plans: list[dict[str, Any]], dry_run: bool, several: bool) -> None:
    if state().json:
        print_json(plans if several else plans[0])
        return
    for plan in plans:
        if not plan["cleared"]:
            message(f"{plan['run']}: nothing to clear")
            continue
        verb = "would clear" if dry_run else "cleared"
        stopped = f", stops {plan['stopped']} running" if plan["stopped"] else ""
        say(
            f"{plan['run']} (v{plan['version']}): {verb} {_names(plan['cleared'])}{stopped}; run {plan['run_state']}"
        )
    if several and not plans:
        message("no runs in that range")


@click.command(cls=Command, json=True)
@click.argument("dag", type=DAG)
@click.argument("run", type=RUN)
@click.argument("what", nargs=-1, required=True, metavar="[TASK] success|failed|skipped")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def mark(dag: str, run: str, what: tuple[str, ...], yes: bool) -> None:
    """Settle a task by hand, or all of the run that has not gone well: final at once, a running body is stopped."""
    if len(what) > 2:
        raise click.UsageError("Write [TASK] and one of success, failed, skipped")
    task, wanted = (what[0], what[1]) if len(what) == 2 else (None, what[0])
    if wanted not in ("success", "failed", "skipped"):
        raise click.UsageError(f"{wanted!r} is none of success, failed, skipped")
    client = state().client()
    found = client.run(dag, run)
    confirm(f"Mark {task or 'the run'} {found['run']} of {dag} as {wanted}?", yes)
    answer = client.mark(dag, found["run"], wanted, task)
    if state().json:
        print_json(answer)
        return
    marked = _names(answer["marked"]) or "nothing"
    opened = f"; opens again: {_names(answer['reopened'])}" if answer["reopened"] else ""
    say(f"{answer['run']}: marked {marked} as {wanted}{opened}; run {answer['run_state']}")
