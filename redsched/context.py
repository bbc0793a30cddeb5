"""What a task's body may know and say: `context()`, and Skip, Fail, Retry, Branch.

Knows nothing of Redis: the worker plugs its own claim functions into `once`, `.test()` a dict.
Imports only the standard library, since `import redsched` imports it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from redsched.errors import RedschedError


def _not_given(name: str) -> Any:
    raise RedschedError("once() has nowhere to record claims here")


@dataclass(frozen=True, slots=True)
class Context:
    """The attempt that is running. `logical_date` is None where the run stands for no slot."""

    dag: str
    run: str
    task: str
    attempt: int
    logical_date: datetime | None = None
    data_interval_start: datetime | None = None
    data_interval_end: datetime | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    log: logging.Logger = field(default=logging.getLogger("redsched.task"), repr=False)
    claim: Callable[[str], bool] = field(default=_not_given, repr=False)
    undo: Callable[[str], None] = field(default=_not_given, repr=False)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this task in this run: give it to outside systems."""
        return f"{self.dag}/{self.run}/{self.task}"

    def once(self, name: str) -> Once:
        """Truthy if no attempt has claimed the name before.

            with context().once("charge") as first:
                if first:
                    charge(card)

        An exception inside gives the claim back, so that the next attempt may try again.
        """
        return Once(name, self.claim(name), self.undo)


class Once:
    """A claim to a step of a body that should run once over all attempts."""

    __slots__ = ("_undo", "first", "name")

    def __init__(self, name: str, first: bool, undo: Callable[[str], None]) -> None:
        self.name = name
        self.first = first
        self._undo = undo

    def __bool__(self) -> bool:
        return self.first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.first and kind is not None:
            self._undo(self.name)


_current: ContextVar[Context] = ContextVar("redsched_context")


def context() -> Context:
    """The context of the body that is running here."""
    try:
        return _current.get()
    except LookupError:
        raise RedschedError(
            "context() works only while a task's body runs; to try a body use the DAG's .test(), "
            "and in a thread of your own run the target with contextvars.copy_context().run(…)"
        ) from None


class running:
    """Make this the context of the body that runs inside. (A generator would take three times as long.)"""

    __slots__ = ("_token", "current")

    def __init__(self, current: Context) -> None:
        self.current = current

    def __enter__(self) -> Context:
        self._token = _current.set(self.current)
        return self.current

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


class Skip(Exception):
    """Raise it to settle the task as skipped; its downstream decides by its trigger rules."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Fail(Exception):
    """Raise it to fail for good, whatever `retries` says."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Exception):
    """Raise it to fail this attempt and have the next one after `delay` (else the task's own delay).

    It takes one of the task's `retries`, like every failure.
    """

    def __init__(self, delay: str | float | timedelta | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay_ms = None if delay is None else _milliseconds(delay)


def _milliseconds(delay: str | float | timedelta) -> int:
    from redsched.definition.values import parse_duration

    return parse_duration(delay, "Retry(delay=…)")


class Branch:
    """Return it to choose among the direct downstream; what isn't chosen is skipped."""

    __slots__ = ("names",)

    def __init__(self, *tasks: str) -> None:
        for task in tasks:
            if not isinstance(task, str):
                raise RedschedError(f"Branch({task!r}): write the ids of tasks, like Branch('a', 'b')")
        self.names: tuple[str, ...] = tasks

    def __repr__(self) -> str:
        return f"Branch({', '.join(map(repr, self.names))})"
