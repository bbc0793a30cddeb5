"""Passwords leave the command line of what runs for long, because `ps` shows it to everybody on the machine.

The process starts again in its own place, with the option moved into the environment that stands for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import islice
from typing import Final

STAYS: Final = frozenset({"up", "scheduler", "worker", "web"})
VARIABLES: Final = {"--redis": "REDSCHED_REDIS_URL", "--password": "REDSCHED_PASSWORD"}


def hide_passwords() -> None:
    """Returns only if there is nothing to hide."""
    words = sys.argv[1:]
    rest, moved = without_passwords(words)
    if moved and sys.executable and STAYS & set(rest):
        first = sys.orig_argv[1 : len(sys.orig_argv) - len(words)]
        os.execve(sys.executable, [sys.executable, *first, *rest], {**os.environ, **moved})  # noqa: S606 - no shell is wanted


def without_passwords(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words without options that hold a password, and these as variables; the last one counts, as for the options."""
    rest: list[str] = []
    moved: dict[str, str] = {}
    left = iter(words)
    for word in left:
        option, equals, value = word.partition("=")
        if option not in VARIABLES:
            rest.append(word)
            continue
        more = [] if equals else list(islice(left, 1))
        value = more[0] if more else value
        if value and (option == "--password" or "@" in value):
            moved[VARIABLES[option]] = value
        else:
            moved.pop(VARIABLES[option], None)
            rest += [word, *more]
    return rest, moved
