"""`redsched shards`: who owns them, and another number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redsched.cli.base import Command, Group, connection_options, json_option, state, verbose_option
from redsched.cli.output import confirm, message, print_json, say, table, warning
from redsched.errors import Conflict

if TYPE_CHECKING:
    from redsched.store import Store


@click.group(
    "shards",
    cls=Group,
    invoke_without_command=True,
    params=[json_option(), *connection_options(), verbose_option()],
    short_help="Who owns each shard, and what waits there.",
)
@click.pass_context
def shards(ctx: click.Context) -> None:
    """The shards: who owns each, by which fence, and what waits there."""
    if ctx.invoked_subcommand is not None:
        return
    found = state().client().shards()
    if state().json:
        print_json(found)
        return
    columns = ("shard", "owner", "fence", "expires in", "inbox", "ready", "refused writes")
    names = ("inbox", "ready", "refused_writes")
    rows = [
        (s["shard"], s["owner"], s["fence"], f"{s['expires_in']:.1f}s", *(s[n] for n in names)) for s in found
    ]
    table(columns, rows, right=("shard", *columns[2:]))


@shards.command(cls=Command, json=True, short_help="Change the number of shards, while nothing runs.")
@click.argument("number", metavar="N", type=click.IntRange(1, 1024))
@click.option("--dry-run", is_flag=True, help="Say what would move, and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def resize(number: int, dry_run: bool, yes: bool) -> None:
    """Change the number of shards to N. Every DAG goes to its new shard, with all that belongs to it.

    All schedulers and workers must be stopped; refused while one is alive. Triggers and registrations are refused
    meanwhile, and nothing is lost. If it is killed on the way, say it again: it goes on where it was.
    """
    from redsched import resize as work

    store = state().client().store
    found = work.plan(store, number)
    if dry_run:
        _warn(store)
    else:
        work.check(store)
        what = f"{found.dags_to_move} of {found.dags} DAGs move, from {found.shards_from} to {number} shards"
        confirm(f"{what}; nothing runs meanwhile. Go on?", yes)
        found = work.resize(store, number, tell=message)
    if state().json:
        print_json({**found.as_json(), "dry_run": dry_run})
    elif dry_run:
        say(
            f"{found.dags_to_move} of {found.dags} DAGs would move, from {found.shards_from} to {number} shards"
        )
    elif found.shards_from == number:
        say(f"there are {number} shards already")
    else:
        say(
            f"{number} shards (there were {found.shards_from}): {found.keys} keys with {found.members} members moved in "
            f"{found.seconds:g} s. Start the schedulers and workers again"
        )


def _warn(store: Store) -> None:
    from redsched.resize import check

    try:
        check(store)
    except Conflict as why:
        warning(str(why))
