"""The errors that redsched raises, each with the exit code of the command line.

RedschedError
├── DefinitionError   a definition, parameter or argument is wrong; says the place and what to write   (2)
├── NotFound          no such DAG, run, task, attempt, pool                                            (3)
├── Conflict          it exists already, or its state does not allow this now                          (4)
├── Unavailable       Redis can't be reached, is not ready, or refuses writes                          (5)
│   └── Resharded     the number of shards has changed, or is being changed                            (5)
├── MayHaveHappened   the connection was lost after the call was sent; said again, it is harmless      (5)
└── Fenced            the caller is not the owner any more; nothing was changed                        (1)

The three answers to "did it happen?": Unavailable = no, MayHaveHappened = can't tell, Fenced = no, and don't retry.
"""

from __future__ import annotations


class RedschedError(Exception):
    """Base of everything that redsched raises on purpose."""

    exit_code = 1


class DefinitionError(RedschedError):
    """Wrong input: the message names the place, the value, and what to write instead."""

    exit_code = 2


class NotFound(RedschedError):
    """The thing that was named does not exist."""

    exit_code = 3


class Conflict(RedschedError):
    """The state of things does not allow this now; the message says which state."""

    exit_code = 4


class Unavailable(RedschedError):
    """Redis did not take the call: it did not happen, and may be tried again."""

    exit_code = 5


class MayHaveHappened(Unavailable):
    """The reply was lost: the call may have run. Every call of redsched may be said again."""


class Resharded(Unavailable):
    """Nothing was written: the caller's number of shards is out of date, or they are just being moved. Ask for it again."""


class Fenced(RedschedError):
    """Somebody else owns this shard now; nothing was written."""
