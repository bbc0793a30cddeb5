"""`redsched pool`: named capacities."""

from __future__ import annotations

from typing import Any

import click

from redsched.cli.base import Group, state
from redsched.cli.names import POOL
from redsched.cli.output import Bar, confirm, fields, is_terminal, message, print_json, say, table

pool = Group("pool", help="Pools: named capacities that tasks share.")


@pool.command("set", json=True, short_help="Make a pool or change its slots.")
@click.argument("name", type=POOL)
@click.option("--slots", required=True, type=click.IntRange(min=0), help="Capacity; 0 holds everything back.")
def set_(name: str, slots: int) -> None:
    """Make the pool NAME, or change its slots.

    What runs goes on when a pool shrinks; nothing new starts until there is room.
    """
    answer = state().client().set_pool(name, slots)
    if state().json:
        print_json(answer)
    else:
        say(f"pool {name}: {slots} slot{'' if slots == 1 else 's'}")


@pool.command("list", json=True)
def list_() -> None:
    """All pools: slots, how many are used, how many tasks wait."""
    pools = state().client().pools()
    if state().json:
        print_json(pools)
    elif not pools:
        message("no pools yet; `default` is made at first use, others by `redsched pool set NAME --slots N`")
    else:
        columns, right = ["pool", "slots", "used", "waiting"], ("slots", "used", "waiting")
        rows: list[list[Any]] = [[p[name] for name in columns] for p in pools]
        if is_terminal():
            columns.append("load")
            rows = [[*row, Bar((row[2], row[1]))] for row in rows]
        table(columns, rows, right=right)


@pool.command(json=True)
@click.argument("name", type=POOL)
def show(name: str) -> None:
    """One pool."""
    found = state().client().pool(name)
    if state().json:
        print_json(found)
        return
    groups = found.pop("groups", {})
    fields(found)
    if groups:
        say("")
        rows = [
            (name, g["waiting"], g["waiting_s"], g["given"], f"{g['share']:.0%}")
            for name, g in sorted(groups.items(), key=lambda item: -item[1]["given"])
        ]
        columns = ("group", "waiting", "since s", "given in 5 min", "share")
        table(columns, rows, right=("waiting", "since s", "given in 5 min", "share"))


@pool.command(json=True)
@click.argument("name", type=POOL)
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def delete(name: str, yes: bool) -> None:
    """Delete the pool NAME; its waiting tasks stay ready and say that it is missing."""
    client = state().client()
    found = client.pool(name)
    confirm(f"Delete the pool {name} ({found['used']} slots used, {found['waiting']} tasks waiting)?", yes)
    answer = client.delete_pool(name)
    if state().json:
        print_json(answer)
    else:
        say(f"pool {name} deleted")
