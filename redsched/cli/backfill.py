"""`redsched backfill`: past dates of a DAG, made one by one as room allows."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import Any

import click

from redsched.cli.base import Command, Group, state
from redsched.cli.names import DAG, Duration
from redsched.cli.output import (
    Bar,
    Instant,
    State,
    confirm,
    fields,
    is_terminal,
    message,
    print_json,
    say,
    table,
)

backfill = Group("backfill", help="Backfills: runs for past dates of a DAG.")

LOOK_S = 0.5
SHOWN = 8
DATE_ONLY = re.compile(r"\d{4}-?\d{2}-?\d{2}")


@backfill.command(cls=Command, json=True)
@click.argument("dag", type=DAG)
@click.option(
    "--from", "first", required=True, metavar="INSTANT", help="First date; without a zone in the DAG's."
)
@click.option(
    "--to", "last", required=True, metavar="INSTANT", help="Last date, inclusive; a day is taken whole."
)
@click.option(
    "--max-active", type=click.IntRange(min=1), default=4, show_default=True, help="Runs at a time."
)
@click.option("--order", type=click.Choice(["oldest", "newest"]), default="oldest", show_default=True)
@click.option(
    "--on-existing",
    type=click.Choice(["skip", "failed", "all"]),
    default="skip",
    show_default=True,
    help="Dates that have a run: leave it, run what failed in it again, or all of it.",
)
@click.option(
    "--every", type=Duration(), metavar="TIME", help="Distance of the dates, for a DAG without a schedule."
)
@click.option("-p", "--param", "params", metavar="NAME=VALUE", multiple=True, help="A parameter; repeat it.")
@click.option("--dry-run", is_flag=True, help="The plan only: dates, tasks, how long, which pools.")
@click.option("--wait", is_flag=True, help="Wait for the end: exit 0 if all runs succeeded, else 1.")
def start(
    dag: str,
    first: str,
    last: str,
    max_active: int,
    order: str,
    on_existing: str,
    every: float | None,
    params: tuple[str, ...],
    dry_run: bool,
    wait: bool,
) -> None:
    """Make runs of DAG for its dates from --from to --to, both inclusive, as room allows; never two for a date."""
    from redsched.cli.run import read_inputs

    client = state().client()
    zone = client.dag(dag)["timezone"]
    answer = client.backfill(
        dag,
        _first(first, zone),
        _last(last, zone),
        max_active=max_active,
        order=order,
        on_existing=on_existing,
        every_ms=None if every is None else int(every * 1000),
        params=read_inputs(client, dag, params, None)[0],
        dry_run=dry_run,
    )
    if wait and not dry_run:
        _watch(client, answer["backfill"])
    elif state().json:
        print_json(answer)
    else:
        _say_plan(answer, dry_run)


def _first(text: str, zone: str) -> datetime:
    from redsched.cli.run import read_date

    return read_date(text, zone)


def _last(text: str, zone: str) -> datetime:
    """A day without a time is taken whole, because `--to 2026-01-31` means with that day's slots."""
    from redsched.cli.run import read_date

    if not DATE_ONLY.fullmatch(text.strip()):
        return read_date(text, zone)
    day = datetime.fromisoformat(text.strip()) + timedelta(days=1)
    return read_date(day.date().isoformat(), zone) - timedelta(milliseconds=1)


def _say_plan(plan: dict[str, Any], dry_run: bool) -> None:
    dates = plan["dates"]
    more = f" … {dates[-1]}" if len(dates) > SHOWN else ""
    took = plan["estimated_s"]
    verb = "would make" if dry_run else f"{plan['backfill']} makes"
    say(
        f"{verb} {plan['runs']} runs of {plan['dag']} ({plan['tasks']} tasks), {plan['max_active']} at a time"
    )
    say(f"dates: {', '.join(dates[:SHOWN])}{more}")
    if plan["existing"]:
        words = {
            "skip": "are left as they are",
            "failed": "run again what failed in them",
            "all": "run again",
        }
        say(f"{plan['existing']} of these dates have a run: they {words[plan['on_existing']]}")
    say(
        f"about {took:g} s, by the last runs" if took is not None else "no past run tells how long that takes"
    )
    for p in plan["pools"]:
        say(
            f"pool {p['pool']}: {p['used']} of {p['slots']} slots used, {p['waiting']} wait; its share is {p['share']}"
        )


@backfill.command("list", cls=Command, json=True)
@click.option("--dag", type=DAG, help="Only those of this DAG.")
def list_(dag: str | None) -> None:
    """All backfills, the newest first."""
    rows = state().client().backfills(dag)
    if state().json:
        print_json(rows)
    elif not rows:
        message("no backfills; start one with `redsched backfill start DAG --from T --to T`")
    else:
        table(
            ("backfill", "dag", "state", "from", "to", "done", "active", "failed"),
            [
                (
                    r["backfill"],
                    r["dag"],
                    State(r["state"]),
                    r["from"],
                    r["to"],
                    f"{r['progress']:.0%}",
                    len(r["active"]),
                    r["failed"],
                )
                for r in rows
            ],
            right=("done", "active", "failed"),
        )


@backfill.command(cls=Command, json=True)
@click.argument("ident", metavar="ID")
@click.option("--wait", is_flag=True, help="Show progress to its end: exit 0 if all runs succeeded, else 1.")
def show(ident: str, wait: bool) -> None:
    """One backfill with its progress."""
    client = state().client()
    if wait:
        _watch(client, ident)
        return
    found = client.backfill_show(ident)
    if state().json:
        print_json(found)
    else:
        _say(found)


def _say(found: dict[str, Any]) -> None:
    over = found["success"] + found["failed"] + found["cancelled"]
    fields(
        {
            **{k: found[k] for k in ("backfill", "dag")},
            "state": State(found["state"]),
            "dates": f"{found['from']} to {found['to']}, {found['count']} of them, {found['order']} first",
            "on existing": found["on_existing"],
            "progress": Bar((over + found["existing"], found["count"]))
            if is_terminal()
            else f"{found['progress']:.0%}",
            "runs": f"{found['success']} success, {found['failed']} failed, {found['cancelled']} cancelled, "
            f"{found['existing']} existed",
            "active": ", ".join(found["active"]),
            "next": found["next"] or "",
            "started": Instant(found["created_at"]),
            "ended": Instant(found["ended_at"]) if found["ended_at"] else "",
        }
    )


def _watch(client: Any, ident: str) -> None:
    """A bar with an estimate on a terminal, a line for each change in a pipe."""
    found = client.backfill_show(ident)
    if is_terminal() and not state().json:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
        ) as progress:
            bar = progress.add_task(f"{ident} {found['dag']}", total=found["count"])
            while found["state"] == "running":
                progress.update(bar, completed=round(found["progress"] * found["count"]))
                time.sleep(LOOK_S)
                found = client.backfill_show(ident)
            progress.update(bar, completed=round(found["progress"] * found["count"]))
    else:
        shown = -1.0
        while found["state"] == "running":
            if found["progress"] != shown and not state().json:
                shown = found["progress"]
                say(f"{ident} {shown:.0%}, {len(found['active'])} active, {found['failed']} failed")
            time.sleep(LOOK_S)
            found = client.backfill_show(ident)
    if state().json:
        print_json(found)
    else:
        say(
            f"{ident} {found['state']}: {found['success']} success, {found['failed']} failed, {found['existing']} existed"
        )
    if found["state"] != "done" or found["failed"] or found["cancelled"]:
        raise click.exceptions.Exit(1)


def _set(ident: str, wanted: str, word: str) -> None:
    answer = state().client().backfill_set(ident, wanted)
    if state().json:
        print_json(answer)
    else:
        say(f"{ident} {word}")


@backfill.command(cls=Command, json=True)
@click.argument("ident", metavar="ID")
def pause(ident: str) -> None:
    """Make no more runs until it is resumed; those that it has made go on."""
    _set(ident, "paused", "paused")


@backfill.command(cls=Command, json=True)
@click.argument("ident", metavar="ID")
def resume(ident: str) -> None:
    """Go on."""
    _set(ident, "running", "goes on")


@backfill.command(cls=Command, json=True)
@click.argument("ident", metavar="ID")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def cancel(ident: str, yes: bool) -> None:
    """Make no more runs, and cancel those that are active."""
    found = state().client().backfill_show(ident)
    confirm(
        f"Cancel the backfill {ident} of {found['dag']} with its {len(found['active'])} active runs?", yes
    )
    _set(ident, "cancelled", "cancelled")
