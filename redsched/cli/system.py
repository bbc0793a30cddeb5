"""The installation as a whole: `status`, `shards`, `workers`, and the two kinds of processes."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from redsched.cli.base import Command, state
from redsched.cli.names import POOL, Duration
from redsched.cli.output import Bar, Instant, duration, fields, message, print_json, say, table, warning

# ---- looking


@click.command(cls=Command, json=True, short_help="Who is alive, what runs, what waits, what is wrong.")
def status() -> None:
    """One screen: who is alive, what runs, what waits, what is wrong."""
    found = state().client().status()
    if state().json:
        print_json(found)
        return
    redis, runs = found["redis"], found["runs"]
    fields(
        {
            "redis": "  ".join(str(redis[k]) for k in ("url", "version") if redis.get(k)),
            "schedulers": str(found["schedulers"]),
            "workers": str(found["workers"]),
            "dags": str(found["dags"]),
            "runs": f"{runs['running']} running, {runs['queued']} queued",
            "oldest ready": duration(found["oldest_ready_s"])
            if found["oldest_ready_s"] is not None
            else "nothing waits",
        }
    )
    if found["pools"]:
        say("")
        rows = [(p["pool"], Bar((p["used"], p["slots"])), p["waiting"]) for p in found["pools"]]
        table(("pool", "used", "waiting"), rows, right=("waiting",))
    for text in found["warnings"]:
        warning(text)


@click.command(cls=Command, json=True)
def workers() -> None:
    """The workers that are alive."""
    found = state().client().workers()
    if state().json:
        print_json(found)
        return
    if not found:
        message("no worker is alive; start one with `redsched worker` or `redsched up`")
        return
    rows = [
        (w["worker"], w["pools"], Bar((w["running"], w["concurrency"])), Instant(w["last_seen"]))
        for w in found
    ]
    table(("worker", "pools", "running", "last seen"), rows)


# ---- processes


def log_lines() -> None:
    """A process that runs for days tells what it does, on stderr; a child of `up` leaves the time to `up`."""
    from redsched.cli.parent import is_child

    form = "%(levelname)s %(message)s" if is_child() else "%(asctime)s %(levelname)s %(message)s"
    level = logging.DEBUG if state().verbose else logging.INFO
    logging.basicConfig(stream=sys.stderr, level=level, format=form, force=True)


@click.command(cls=Command, short_help="Run a scheduler: it decides what runs when.")
@click.option(
    "--name", metavar="NAME", help="Name shown as the owner of shards; host and process if not given."
)
def scheduler(name: str | None) -> None:
    """Run a scheduler: it decides what runs when, and never runs task code.

    Start several for safety: they share the shards, and take over from one that dies. SIGTERM hands over at once.
    """
    from redsched.scheduler.loop import run_scheduler

    settings = state().connected_settings()
    log_lines()
    raise click.exceptions.Exit(run_scheduler(settings, name=name))


@click.command(cls=Command, short_help="Run a worker: it runs task code.")
@click.argument("paths", metavar="[PATH]…", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--pool", "pools", type=POOL, multiple=True, metavar="POOL", help="Serve this pool; repeat it [default]."
)
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), metavar="N", help="Tasks at a time [number of cores]."
)
@click.option(
    "--grace",
    type=Duration(),
    default="30s",
    show_default=True,
    metavar="TIME",
    help="Time for tasks to end at SIGTERM.",
)
def worker(paths: tuple[Path, ...], pools: tuple[str, ...], concurrency: int | None, grace: float) -> None:
    """Run a worker: it runs task code, and never decides.

    Each PATH (a folder, or a file's folder) is put first on the import path of the tasks.
    SIGTERM: take nothing new, let tasks end; a second one stops them.
    """
    from redsched.worker.supervisor import run_worker

    settings = state().connected_settings()
    log_lines()
    code = run_worker(
        settings,
        pools=list(pools) or ["default"],
        concurrency=concurrency or cores(),
        paths=list(paths),
        grace_s=grace,
    )
    raise click.exceptions.Exit(code)


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---- completion

HOW = {
    "bash": 'eval "$(redsched completion bash)"      # in ~/.bashrc',
    "zsh": 'eval "$(redsched completion zsh)"       # in ~/.zshrc',
    "fish": "redsched completion fish | source       # in ~/.config/fish/config.fish",
}


@click.command(
    cls=Command,
    redis=False,
    help="Print the completion script of your SHELL.\n\n\b\n" + "\n".join(HOW.values()),
    short_help="Completion for bash, zsh and fish.",
)
@click.argument("shell", type=click.Choice(list(HOW)))
def completion(shell: str) -> None:
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, "redsched", "_REDSCHED_COMPLETE").source())
