"""What all commands share: the global options, the way to a Client, and groups that load a command when it is called.

Imports only click and the standard library, because `redsched --help` should not wait for pydantic or redis.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from redsched.errors import Unavailable

if TYPE_CHECKING:
    from redsched.client import Client
    from redsched.settings import Settings

# Exit codes beside those of the errors.
INTERNAL, TIMED_OUT, INTERRUPTED, BROKEN_PIPE = 70, 124, 130, 141

# Given before the command or after it; each is also a variable in the environment or a line in redsched.toml.
CONNECTION = ("redis", "namespace", "data", "username", "password", "db")


class State:
    """What the global options said; `settings()` and `client()` are made when a command first asks for them."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.json = False
        self.verbose = 0
        self._settings: Settings | None = None

    def settings(self) -> Settings:
        if self._settings is None:
            from redsched.settings import load_settings

            self._settings = load_settings(self.given)
        return self._settings

    def connected_settings(self) -> Settings:
        """Settings that name a Redis. Raises Unavailable with the three ways to get one."""
        settings = self.settings()
        if settings.redis is None:
            raise Unavailable(
                f"no Redis URL is set and no embedded server runs in {settings.data}; "
                "start one with `redsched up`, or give --redis URL or REDSCHED_REDIS_URL"
            )
        return settings

    def client(self) -> Client:
        settings = self.connected_settings()
        from redsched.client import Client

        client = Client(settings=settings)
        context = click.get_current_context(silent=True)
        if context is not None:  # there is none while a shell completes
            context.call_on_close(client.close)
        return client


def state() -> State:
    """The state of this invocation."""
    return click.get_current_context().ensure_object(State)


# ---- options ----


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that puts a global option into the State; what stands nearer to the command wins."""

    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        root = ctx.find_root()
        ctx.obj = kept = root.obj = root.obj or State()
        if name == "json":
            kept.json = kept.json or bool(value)
        elif name == "verbose":
            kept.verbose = max(kept.verbose, value)
        elif value is not None:
            kept.given[name] = value
        return value

    return callback


def _option(*names: str, keep: str, **attributes: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_keep(keep), **attributes)


def connection_options() -> list[click.Option]:
    return [
        _option(
            "--redis", keep="redis", metavar="URL", help="Redis to use; else REDSCHED_REDIS_URL, else --data."
        ),
        _option("--namespace", keep="namespace", metavar="NAME", help="Installation inside that Redis [rs]."),
        _option("--data", keep="data", metavar="DIR", help="Folder of the embedded server [.redsched]."),
        _option("--username", keep="username", metavar="NAME", hidden=True),
        _option("--password", keep="password", metavar="TEXT", hidden=True),
        _option("--db", keep="db", metavar="N", hidden=True),
    ]


def json_option() -> click.Option:
    return _option(
        "--json", keep="json", is_flag=True, help="One JSON document on stdout, nothing else there."
    )


def verbose_option() -> click.Option:
    return _option(
        "-v", "--verbose", keep="verbose", count=True, help="More messages on stderr; -vv for all."
    )


# ---- commands and groups ----


class Command(click.Command):
    """A command with the global options; `json=True`: it has --json; `redis=False`: it needs no Redis."""

    def __init__(self, *args: Any, json: bool = False, redis: bool = True, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.takes_json = json
        self.global_options = connection_options() if redis else []
        self.global_options.append(verbose_option())
        if json:
            self.params.append(json_option())
        self.params.extend(self.global_options)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.obj = ctx.find_root().obj or State()
        if ctx.obj.json and not self.takes_json:
            raise click.UsageError(f"'{ctx.command_path}' has no JSON output; leave --json away", ctx)
        _log_to_stderr(ctx.obj.verbose)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [p for p in self.get_params(ctx) if p not in self.global_options]
        for title, options in (("Options", own), ("Global options", self.global_options)):
            records = [r for p in options if isinstance(p, click.Option) and (r := p.get_help_record(ctx))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Group(click.Group):
    """A group whose commands may be named as "module:attribute" and are imported when they are asked for."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, lazy: dict[str, str] | None = None, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*(name for name in self.commands if name not in self.lazy), *self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy and cmd_name not in self.commands:
            module, _, attribute = self.lazy[cmd_name].partition(":")
            self.commands[cmd_name] = getattr(importlib.import_module(module), attribute)
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            raise click.UsageError(f"no command '{name}'{meant(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)


def _log_to_stderr(verbose: int) -> None:
    import logging

    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s", force=True
    )


# ---- words ----


def meant(word: str, words: Iterable[str]) -> str:
    """ " (did you mean 'orders'?)", or nothing."""
    close = get_close_matches(word, list(words), n=3, cutoff=0.6)
    if not close:
        return ""
    return " (did you mean " + " or ".join(f"'{name}'" for name in close) + "?)"
