"""Getting an effect once although a task may run more than once: two recipes to copy.

A body has two things for that: `idempotency_key`, the same for every attempt at this task in this run, and `attempt`, which
only grows and so can be a fencing token: whoever shows a lower one than has been seen comes too late.
"""

from __future__ import annotations

import sqlite3
import urllib.request

from redsched import context, task


def write_row(db: sqlite3.Connection, key: str, attempt: int, amount: int) -> bool:
    """A row with a token column: the newest attempt wins, an older one that wakes up late changes nothing.

    Returns whether this attempt's value is the one that stands.
    """
    with db:
        db.execute(
            "INSERT INTO charges (key, attempt, amount) VALUES (?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET attempt = excluded.attempt, amount = excluded.amount "
            "WHERE excluded.attempt >= charges.attempt",
            (key, attempt, amount),
        )
    return bool(db.execute("SELECT attempt FROM charges WHERE key = ?", (key,)).fetchone()[0] == attempt)


def post_once(url: str, key: str, body: bytes) -> int:
    """An HTTP call with a key: a server that knows `Idempotency-Key` answers a repeated call without doing it again."""
    request = urllib.request.Request(url, data=body, headers={"Idempotency-Key": key}, method="POST")  # noqa: S310 - the URL is yours
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return int(answer.status)


@task
def charge(database: str, amount: int) -> bool:
    """The first recipe as a task."""
    me = context()
    with sqlite3.connect(database) as db:
        return write_row(db, me.idempotency_key, me.attempt, amount)


@task
def notify(url: str, text: str) -> int:
    """The second recipe as a task, and `once` for a server that knows no keys.

    The claim is given back if the call fails, so that the next attempt makes it; a worker that dies between the call and
    its end keeps the claim: then the call is not made again. Choose by what is worse, none or two.
    """
    me = context()
    with me.once("notify") as mine:
        return post_once(url, me.idempotency_key, text.encode()) if mine else 0
