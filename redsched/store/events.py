"""What a person wants to know afterwards: one small stream in the control cell, the last MAX events.

Rare things only, never one for each run. An event that can't be written is let go: nothing depends on it.
"""

from __future__ import annotations

import getpass
import json
import logging
import socket
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from redsched.errors import RedschedError
from redsched.keys import iso

if TYPE_CHECKING:
    from redsched.store import Store

log = logging.getLogger("redsched.events")

MAX = 5000


class Event(NamedTuple):
    """`id` is its place in the stream and begins with its time in ms."""

    id: str
    kind: str
    text: str
    data: dict[str, Any]

    @property
    def ms(self) -> int:
        return int(self.id.partition("-")[0])

    def shown(self) -> dict[str, Any]:
        return {"id": self.id, "at": iso(self.ms), "kind": self.kind, "text": self.text, **self.data}


class EventStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def _key(self) -> str:
        return self._store.keys.control + "events"

    def add(self, kind: str, text: str, **data: Any) -> None:
        """Write one; `data` is JSON for programs, `text` the sentence for people."""
        fields = {"kind": kind, "text": text, "data": json.dumps(data, ensure_ascii=False)}
        try:
            with self._store.translate():
                self._store.client.xadd(self._key, fields, maxlen=MAX, approximate=True)
        except RedschedError as error:
            log.debug("event not written (%s): %s %s", error, kind, text)

    def add_by_person(self, kind: str, text: str, **data: Any) -> None:
        self.add(kind, f"{text}, by {somebody()}", by=somebody(), **data)

    def last(self, limit: int) -> list[Event]:
        """The last ones, the oldest first."""
        with self._store.translate():
            found = self._store.client.xrevrange(self._key, count=limit)
        return [_event(*x) for x in reversed(found)]

    def after(self, event_id: str, block_ms: int) -> list[Event]:
        """What came after an event, waiting for the next one up to `block_ms`."""
        from redsched.store.connect import stream_entries

        with self._store.translate():
            reply = self._store.reader.xread(
                {self._key: event_id}, count=100, block=min(block_ms, self._store.clients.block_ms)
            )
        return [_event(*x) for _, entries in stream_entries(reply) for x in entries]


def _event(entry: bytes, fields: dict[bytes, bytes]) -> Event:
    known = {k.decode(): v.decode(errors="replace") for k, v in fields.items()}
    return Event(
        entry.decode(), known.get("kind", ""), known.get("text", ""), json.loads(known.get("data", "{}"))
    )


@cache
def somebody() -> str:
    """Who does this: the user and the host of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
