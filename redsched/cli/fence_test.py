"""`redsched fence-test`: see with your own eyes that a scheduler which slept can't write."""

from __future__ import annotations

import signal
from typing import NoReturn

import click

from redsched.cli.base import Command, state
from redsched.cli.output import message, print_json, say


@click.command(
    "fence-test",
    cls=Command,
    json=True,
    short_help="Let a scheduler sleep past its lease, and see its writes refused.",
)
def fence_test() -> None:
    """Prove on this installation that a scheduler which slept past its lease can't write any more; about 15 s.

    One more scheduler joins, reads the trigger of a canary run, and is stopped (SIGSTOP) before it has passed it on. The
    others take its shards over and finish the run; it wakes and tries to go on. Says what it tried, and which fence refused
    it. The canary has a pool and a worker of its own; shards of the one that sleeps have no owner for a lease (3 s). Nothing
    stays, also after Ctrl-C. Exit 0: every write was refused, and the canary's tasks ran exactly once; else 1.
    """
    from redsched.fence_test import fence_test as run

    settings = state().connected_settings()
    signal.signal(signal.SIGTERM, _interrupted)
    found = run(settings, message)
    if state().json:
        print_json(found.as_json())
    else:
        refused = sum(x.refused for x in found.tried)
        say(
            f"{refused} of {len(found.tried)} writes with fence {found.fence} were refused "
            f"(the shard's is {found.successor_fence}); shard {found.shard} counts {found.refused_writes} refused writes more"
        )
        times = ", ".join(f"{task} ran {found.executions.get(task, 0)} ×" for task in found.attempts)
        say(f"the canary's run: {found.run_state}; {times}")
        say(f"{'ok' if found.ok else 'WRONG'}, in {found.seconds:g} s")
    if not found.ok:
        raise click.exceptions.Exit(1)


def _interrupted(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
