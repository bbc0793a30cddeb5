"""A pool counted again: each entry in its places, each place with an entry, and no entry that its shard does not want."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from redsched.audit.difference import Difference
from redsched.keys import AttemptId


@dataclass(frozen=True, slots=True)
class EntryLook:
    """An attempt in its pool at one instant; state '' if there is no entry. hint: None where it was not looked for."""

    pool: str
    id: str
    state: str
    slots: int = 0
    group: str = ""
    held: int = 0
    leased: bool = False
    in_line: bool = False
    group_in_line: bool = False
    lost: bool = False
    gone: bool = False
    hint: bool | None = None


@dataclass(frozen=True, slots=True)
class ListsLook:
    """What a pool keeps beside its entries and nobody stands behind. `first` waits although there is room."""

    pool: str
    held: tuple[str, ...]
    leases: tuple[str, ...]
    waits: tuple[tuple[str, str], ...]
    groups: tuple[str, ...]
    hints: tuple[tuple[str, str], ...]
    first: str


STATES = {"W": "waiting", "Q": "queued", "R": "running", "S": "stopping"}


def _about(
    pool: str, id: str, key: str, there: str, should: str, means: str, what: str, value: str = ""
) -> Difference:
    try:
        attempt = AttemptId.parse(id.partition("#")[0])
    except ValueError:
        return Difference(f"pool {pool}", key, there, should, means, (what, id, value))
    return Difference(
        f"pool {pool}",
        key,
        there,
        should,
        means,
        (what, id, value),
        attempt.dag,
        attempt.run,
        str(attempt.task),
        attempt.attempt,
    )


def audit_entry(look: EntryLook) -> list[Difference]:
    """An entry and its places."""
    return list(_entry(look))


def _entry(look: EntryLook) -> Iterator[Difference]:
    one = partial(_about, look.pool, look.id)
    if look.state == "W":
        if not (look.in_line and look.group_in_line):
            yield one(
                f"wait:{look.group}", "not in line", "in line: it waits", "it never gets a slot", "wait"
            )
        return
    if look.state not in STATES:
        return
    state = STATES[look.state]
    if look.held != look.slots:
        yield one(
            "held",
            f"{look.held} slots",
            f"{look.slots}: it is {state}",
            "the pool gives out too many slots",
            "hold",
        )
    if look.state == "Q" and look.hint is False:
        yield one("stream", "no hint", "one: it is queued", "no worker hears of it", "hint")
    if look.state in "RS" and not look.leased:
        yield one("lease", "none", f"one: it is {state}", "if its worker dies, nobody notices", "lease")


def audit_lists(look: ListsLook) -> list[Difference]:
    """Places without an entry."""
    return list(_lists(look))


def _lists(look: ListsLook) -> Iterator[Difference]:
    one = partial(_about, look.pool)
    for member in look.held:
        yield one(
            member,
            "held",
            "a slot is taken",
            "free: nobody has it",
            "the pool is smaller than it should be",
            "free",
        )
    for id in look.leases:
        yield one(id, "lease", "a lease", "none: it is not granted", "nothing, but it is wrong", "unlease")
    for group, id in look.waits:
        yield one(
            id,
            f"wait:{group}",
            "in line",
            "not in line: it does not wait",
            "nothing, but it is wrong",
            "unwait",
            group,
        )
    for group in look.groups:
        means = "the pool looks there in vain"
        yield Difference(
            f"pool {look.pool}",
            "groups",
            f"{group} in line",
            "not in line: nobody waits in it",
            means,
            ("unline", group, ""),
        )
    for entry, id in look.hints:
        yield one(
            id,
            "stream",
            f"hint {entry} is delivered to nobody",
            "pending, or on the stream anew",
            "no worker hears of it",
            "redeliver",
            entry,
        )
    if look.first:
        yield one(
            look.first,
            "held",
            "slots are free",
            f"given to {look.first}, first in line",
            "it waits in vain",
            "admit",
        )


def audit_shadow(look: EntryLook, known_as: str) -> Difference:
    """An entry that waits or is queued, and that its shard does not want."""
    return _about(
        look.pool,
        look.id,
        "entries",
        STATES[look.state],
        f"gone: its shard knows it as {known_as}",
        "a worker would run it for nothing",
        "drop",
    )
