"""The few calls that are said thousands of times a second, written to the socket and read from it without redis-py between.

Connections are redis-py's: it knows logins, TLS and sentinels. They are kept here, one for each call under way, and as
everywhere nothing is said twice: a call whose reply did not come closes its connection.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from hiredis import Reader, pack_command
from redis import Redis
from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError

QUICK: Final = frozenset({"FCALL", "XREADGROUP", "XREAD"})
READ_SIZE: Final = 65536
# A connection that was not used for so long is looked at first: the server may have closed it.
FRESH_S: Final = 1.0
NOTHING: Final = object()

Words = Sequence[str | bytes | int | float]


class Quick(Redis):
    """A client whose scripts and stream reads are quick; replies to these are as they came."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lines: list[_Line] = []

    def execute_command(self, *words: Any, **options: Any) -> Any:
        if words[0] not in QUICK:
            return super().execute_command(*words, **options)  # type: ignore[no-untyped-call]
        reply = self._say(_packed(words), 1)[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def many(self, calls: Sequence[Words]) -> list[Any]:
        """In one round trip; errors of single calls are in the list."""
        return self._say(b"".join(map(_packed, calls)), len(calls))

    def forget(self) -> None:
        """In a forked child: the parent's connections are not ours."""
        self._lines = []

    def close(self) -> None:
        while self._lines:
            self._lines.pop().close()
        super().close()

    def _say(self, packed: bytes, count: int) -> list[Any]:
        line = self._lines.pop() if self._lines else _Line(self)
        try:
            replies = line.say(packed, count)
        except BaseException:
            line.close()
            raise
        if any(_left(reply) for reply in replies):
            line.close()
        else:
            self._lines.append(line)
        return replies


def _packed(words: Words) -> bytes:
    packed: bytes = pack_command(tuple(words))  # type: ignore[arg-type]  # its stub allows a single word only
    return packed


def _left(reply: Any) -> bool:
    """The server is no master (any more): the next connection may find the one that is."""
    return isinstance(reply, ReadOnlyError) or (
        isinstance(reply, ResponseError) and str(reply).startswith("UNBLOCKED")
    )


class _Line:
    """One connection."""

    def __init__(self, client: Quick) -> None:
        self.pool = client.connection_pool
        self.connection: Any = self.pool.get_connection()
        self.used = time.monotonic()
        self._meet()

    def _meet(self) -> None:
        self.sock = self.connection._sock
        self.reader = Reader(replyError=self.connection._parser.parse_error, notEnoughData=NOTHING)

    def say(self, packed: bytes, count: int) -> list[Any]:
        now = time.monotonic()
        if now - self.used > FRESH_S and _over(self.connection):
            self.connection.disconnect()
            self.connection.connect()
            self._meet()
        self.connection.check_health()  # with sentinels: is this still the master?
        if self.connection._sock is not self.sock:
            self._meet()
        self.used = now
        self.sock.sendall(packed)
        replies: list[Any] = []
        gets = self.reader.gets
        while len(replies) < count:
            reply = gets()
            if reply is NOTHING:
                data = self.sock.recv(READ_SIZE)
                if not data:
                    raise ConnectionError("Connection closed by server")
                self.reader.feed(data)
            else:
                replies.append(reply)
        return replies

    def close(self) -> None:
        self.connection.disconnect()
        self.pool.release(self.connection)


def _over(connection: Any) -> bool:
    """Whether the server has hung up, or says something that nobody asked for."""
    try:
        return bool(connection.can_read(timeout=0))
    except (ConnectionError, OSError):
        return True
