"""`redsched bench`: what redsched does on this machine. Each workload is a command, made from its description."""

from __future__ import annotations

import signal
from typing import Any, NoReturn

import click

from redsched.bench.measure import faults_of, measure
from redsched.bench.numbers import MEANING, shown
from redsched.bench.site import Setup
from redsched.bench.workloads import ALL, Size, Workload
from redsched.cli.base import Command, Group, state
from redsched.cli.output import message, print_json, say, table, warning

COUNTS = {
    "runs": "Runs of the DAG.",
    "dags": "DAGs that the runs are spread over.",
    "tasks": "Tasks.",
    "waiting": "Runs that wait.",
}
PROCESSES = {
    "schedulers": "Schedulers.",
    "workers": "Workers.",
    "concurrency": "Tasks at a time in a worker.",
}


@click.group(cls=Group, short_help="Measure what redsched does on this machine.")
def bench() -> None:
    """Measure what redsched does on this machine: real processes on a server of their own, thrown away afterwards.

    With --redis that server is used, in a namespace of its own that is deleted afterwards. Each task writes down that it
    ran, so that what was lost, ran twice or out of order is seen: exit 1 then. Machines are noisy: compare ratios.
    """


def command(workload: Workload) -> click.Command:
    def run(**given: Any) -> None:
        if given["aof"] and "redis" in state().given:
            raise click.UsageError("--aof is for the private server; leave it or --redis away")
        size = Size(**{name: given[name] for name in workload.takes}, **_untaken(workload))
        processes = {name: given[name] for name in PROCESSES}
        show(measured(workload, Setup(**processes, aof=given["aof"], redis=_named_redis()), size))

    return Command(
        workload.name,
        callback=run,
        json=True,
        help=f"{workload.title}.",
        params=[*_size_options(workload), *_setup_options(workload)],
    )


def _untaken(workload: Workload) -> dict[str, Any]:
    names = ("runs", "dags", "tasks", "seconds", "waiting")
    return {name: getattr(workload.size, name) for name in names if name not in workload.takes}


def _size_options(workload: Workload) -> list[click.Option]:
    options = []
    for name in workload.takes:
        default = getattr(workload.size, name)
        if name == "seconds":
            kind: click.ParamType[Any] = click.FloatRange(1, 86_400)
            options.append(_option(name, kind, default, "How long."))
        else:
            low = 3 if name == "tasks" else 1
            options.append(_option(name, click.IntRange(low, 10_000_000), default, COUNTS[name]))
    return options


def _setup_options(workload: Workload) -> list[click.Option]:
    defaults = {**{name: getattr(Setup, name) for name in PROCESSES}, **workload.setup}
    options = [_option(n, click.IntRange(1, 1000), defaults[n], text) for n, text in PROCESSES.items()]
    aof = click.Option(["--aof"], is_flag=True, help="The server writes an append-only file, once a second.")
    return [*options, aof]


def _option(name: str, kind: click.ParamType[Any], default: float, text: str) -> click.Option:
    return click.Option([f"--{name}"], type=kind, default=default, show_default=True, metavar="N", help=text)


def _named_redis() -> Any:
    """The server that --redis names. One that is only known by environment or file is never used by accident."""
    return state().settings() if "redis" in state().given else None


def measured(workload: Workload, setup: Setup, size: Size) -> dict[str, Any]:
    """Measure; SIGTERM takes the same road as Ctrl-C, so that no process and no server stays behind."""

    def stop(_number: int, _frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        return measure(workload, setup, size)
    finally:
        signal.signal(signal.SIGTERM, before)


def show(result: dict[str, Any]) -> None:
    """The result as a table or as JSON; exit 1 if something was lost, ran twice, out of order, or failed."""
    wrong = faults_of(result)
    if state().json:
        print_json(result)
    else:
        _show_tables(result)
    if wrong:
        message("NOT RIGHT: " + ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in wrong.items()))
        raise click.exceptions.Exit(1)


def _show_tables(result: dict[str, Any]) -> None:
    rows = [(name, shown(name, result[name]), MEANING[name][1]) for name in MEANING if name in result]
    table((result["workload"], "value", "meaning"), rows, right=("value",))
    for name, found in result.items():
        if isinstance(found, dict) and name != "versions":
            say("")
            _show_parts(name.replace("_", " "), found)
    say("")
    processes = " × ".join(f"{result[name]} {name}" for name in ("schedulers", "workers"))
    kind = "" if result["aof"] is None else ", append-only file" if result["aof"] else ", no persistence"
    say(f"{processes} × {result['concurrency']} tasks; {result['server']}{kind}; {result['machine']}")
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    say(f"{versions}; {result['at']}; load {result['load']}; {result['command']}")
    if result["load"] > 1.5:
        warning(f"the machine was busy with other things (load {result['load']}): compare ratios only")


def _show_parts(title: str, parts: dict[str, float]) -> None:
    rows = [(part, f"{n:,.2f}" if isinstance(n, float) else f"{n:,}") for part, n in parts.items()]
    table((title, "value"), rows, right=("value",))


for _workload in ALL.values():
    bench.add_command(command(_workload))
