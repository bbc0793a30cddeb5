"""`redsched events`: what happened to the installation itself: who came and went, who owns what, what people did."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from redsched.cli.base import Command, state
from redsched.cli.output import is_terminal, message, print_json, safe

LOUD: Final = {
    **dict.fromkeys(("poison", "scheduler_gone", "worker_lost"), "red"),
    **dict.fromkeys(("audit", "redis", "shard_lost", "leader_resigned"), "yellow"),
}


@click.command(cls=Command, json=True, short_help="Who came and went, who owns what, what people did.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "--limit", type=click.IntRange(0, 5000), default=50, show_default=True, metavar="N", help="The last N."
)
def events(follow: bool, limit: int) -> None:
    """What happened to the installation itself, the oldest first; what became of runs says `redsched run list`.

    Schedulers, workers, shards with their fences, leaders, pools, definitions, what people did to runs, and what the
    audit has repaired. The last 5000 are kept. With --json each event of -f is one line.
    """
    client = state().client()
    found = client.events(limit)
    if state().json and not follow:
        print_json(found)
        return
    if not found and not follow:
        message("no events yet")
    for event in found:
        _print(event)
    if follow:
        for event in client.follow_events(found[-1]["id"] if found else "$"):
            _print(event)


def _print(event: dict[str, Any]) -> None:
    if state().json:
        click.echo(json.dumps(event))
        return
    at, text = event["at"], f"{event['kind']:<16} {safe(event['text'])}"
    if is_terminal():
        at = click.style(f"{at[:19].replace('T', ' ')}Z", dim=True)
        text = click.style(text, fg=LOUD.get(event["kind"]))
    click.echo(f"{at}  {text}")
