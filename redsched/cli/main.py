"""The root command, and the one place where an error becomes a message on stderr and an exit code.

0 done · 1 the run it waited for failed · 2 wrong input · 3 not found · 4 conflict · 5 Redis unavailable
· 70 a bug of redsched · 130 Ctrl-C · 141 the reader of stdout went away
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from redsched.cli.base import (
    BROKEN_PIPE,
    INTERNAL,
    INTERRUPTED,
    Group,
    connection_options,
    json_option,
    verbose_option,
)
from redsched.errors import RedschedError

COMMANDS = {
    "up": "redsched.cli.up:up",
    "dag": "redsched.cli.dag:dag",
    "run": "redsched.cli.run:run",
    "backfill": "redsched.cli.backfill:backfill",
    "pool": "redsched.cli.pool:pool",
    "status": "redsched.cli.system:status",
    "shards": "redsched.cli.shards:shards",
    "workers": "redsched.cli.system:workers",
    "events": "redsched.cli.events:events",
    "doctor": "redsched.cli.doctor:doctor",
    "fence-test": "redsched.cli.fence_test:fence_test",
    "simulate": "redsched.cli.simulate:simulate",
    "bench": "redsched.cli.bench:bench",
    "scheduler": "redsched.cli.system:scheduler",
    "worker": "redsched.cli.system:worker",
    "completion": "redsched.cli.system:completion",
}

EPILOG = """\b
Examples:
  # everything in one command: Redis, a scheduler, a worker, your DAG files watched
  redsched up dags/
  # start a run and wait for its end
  redsched run start orders -p limit=10 --wait
  # what happened in the last run
  redsched run show orders latest

\b
Exit codes: 0 done, 1 the run it waited for failed, 2 wrong input, 3 not found,
4 conflict, 5 Redis unavailable. Completion of your shell: redsched completion --help"""


class Root(Group):
    """Runs click without its own exits, so that each error takes the same road."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        def run() -> Any:
            return super(Root, self).main(
                args,
                prog_name,
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )

        if not standalone_mode:
            return run()
        sys.exit(exit_code(run))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            value = super().invoke(ctx)
            sys.stdout.flush()  # because a reader that went away should be met here, and not at exit
            return value
        except BrokenPipeError:
            _forget_stdout()
            raise click.exceptions.Exit(BROKEN_PIPE) from None


def exit_code(run: Callable[[], Any]) -> int:
    """Run, say on stderr what went wrong, and return the exit code."""
    try:
        code = run()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show(sys.stderr)
        return 2
    except RedschedError as error:
        return _say(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - because nobody should read a traceback for a wrong word
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _say(f"unexpected {text}; run it again with REDSCHED_DEBUG=1 to see where", INTERNAL)


def _say(message: str, code: int) -> int:
    if os.environ.get("REDSCHED_DEBUG", "0") not in ("", "0"):
        traceback.print_exc()
    from redsched.cli.output import safe

    click.echo("Error: " + "\n".join(safe(line) for line in message.splitlines()), err=True)
    return code


def _forget_stdout() -> None:
    """Point stdout at nothing, or the flush at exit would raise once more."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"redsched {version()}")
        ctx.exit()


def version() -> str:
    from importlib import metadata

    try:
        return metadata.version("redsched")
    except metadata.PackageNotFoundError:
        return "0.0.0+source"


cli = Root(
    "redsched",
    lazy=COMMANDS,
    help="A scheduler for workflows (DAGs of dependent tasks) that lives in one Redis.",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    params=[
        *connection_options(),
        json_option(),
        verbose_option(),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="The version.",
        ),
    ],
)


def main() -> NoReturn:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # because LANG=C can't write an é
    from redsched.cli.argv import hide_passwords
    from redsched.cli.parent import follow_parent

    hide_passwords()
    follow_parent()
    cli.main(prog_name="redsched")
    raise AssertionError("cli.main always exits")
