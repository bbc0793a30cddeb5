"""The kinds of arguments: names that the shell can complete from what is registered, and durations.

Completion never complains and never waits long: without Redis it offers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from redsched.cli.base import State

if TYPE_CHECKING:
    from redsched.client import Client

SHOWN = 200


class Name(click.ParamType):  # type: ignore[type-arg]
    """A name; `known(client, ctx)` lists the candidates for completion."""

    def __init__(self, name: str, known: Callable[[Client, click.Context], Iterable[str]]) -> None:
        self.name = name
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail(f"an empty text is no {self.name} id", param, ctx)
        if not value.isprintable():  # because bytes that are no UTF-8 can't even be sent
            self.fail(f"{value!r} can't be a {self.name} id", param, ctx)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            client = (ctx.find_root().obj or State()).client()
            found = [CompletionItem(n) for n in self.known(client, ctx) if n.startswith(incomplete)]
            return found[:SHOWN]
        except Exception:  # noqa: BLE001 - because a shell must not show errors while one types
            return []


def _runs(client: Client, ctx: click.Context) -> list[str]:
    return ["latest", *(r["run"] for r in client.runs(dag=ctx.params.get("dag"), limit=SHOWN))]


def _tasks(client: Client, ctx: click.Context) -> list[str]:
    return list(client.dag(ctx.params["dag"])["spec"]["tasks"])


DAG = Name("dag", lambda client, _ctx: [d["dag"] for d in client.dags()])
RUN = Name("run", _runs)
TASK = Name("task", _tasks)
POOL = Name("pool", lambda client, _ctx: [p["pool"] for p in client.pools()])


class Duration(click.ParamType):  # type: ignore[type-arg]
    """500ms, 30s, 10m, 2h, 1d or seconds; the value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        from redsched.definition.model import parse_duration

        return parse_duration(value, f"--{param.name}" if param is not None else "duration") / 1000
