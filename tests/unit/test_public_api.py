"""The public face fits one screen."""

from __future__ import annotations

import redsched


def test_the_public_names() -> None:
    """Each name of `__all__` is there, and these are all."""
    assert {name: callable(getattr(redsched, name)) for name in redsched.__all__} == dict.fromkeys(
        [
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
        ],
        True,
    )
