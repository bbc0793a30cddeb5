"""redsched: a lightweight scheduler for workflows that lives in one Redis.

The public names, and nothing else. What is dear to import comes at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Not lazy, because importing the module `redsched.context` would put itself under this name.
from redsched.context import Branch, Fail, Retry, Skip, context
from redsched.errors import (
    Conflict,
    DefinitionError,
    Fenced,
    MayHaveHappened,
    NotFound,
    RedschedError,
    Unavailable,
)

if TYPE_CHECKING:
    from redsched.client import AsyncClient, Client
    from redsched.definition.python import command, dag, task

__all__ = [
    "AsyncClient",
    "Branch",
    "Client",
    "Conflict",
    "DefinitionError",
    "Fail",
    "Fenced",
    "MayHaveHappened",
    "NotFound",
    "RedschedError",
    "Retry",
    "Skip",
    "Unavailable",
    "command",
    "context",
    "dag",
    "task",
]

_LAZY = {
    "AsyncClient": "redsched.client",
    "Client": "redsched.client",
    "command": "redsched.definition.python",
    "dag": "redsched.definition.python",
    "task": "redsched.definition.python",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'redsched' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
