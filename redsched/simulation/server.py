"""The simulation's own Redis: the real scripts with a simulated clock, and a log from which its past can be said again.

A script's `redis` is laid under a table that answers TIME itself and gives stream entries ids of that time; the time comes
as one more argument of each call. So production scripts are what runs here, and nothing in them knows of it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import hiredis
from redis.exceptions import ResponseError

from redsched import embedded
from redsched.store.scripts import all_scripts

Words = tuple[Any, ...]

# Delivered entries carry the simulated time of their delivery as their delivery count (see `World._stamp`).
CLOCK: Final = """
local simulated, special = 0, {}
function special.TIME()
  return { string.format('%d', math.floor(simulated / 1000)), string.format('%d', simulated % 1000 * 1000) }
end
function special.XADD(how, command, key, id, ...)
  return how(command, key, id == '*' and string.format('%d-*', simulated) or id, ...)
end
function special.XPENDING(how, command, key, group, word, ...)
  if word ~= 'IDLE' then return how(command, key, group, word, ...) end
  local idle, first, last, count = ...
  local found, old = how(command, key, group, first, last, 10000), {}
  if found.err then return found end
  for _, p in ipairs(found) do
    if simulated - p[4] >= tonumber(idle) and #old < tonumber(count) then old[#old + 1] = p end
  end
  return old
end
local function call(...) return redis.call(...) end
local function pcall(...) return redis.pcall(...) end
local function error_reply(...) return redis.error_reply(...) end
local register_function = redis.register_function
local function said(how, command, ...)
  local other = special[command]
  if other then return other(how, command, ...) end
  return how(command, ...)
end
local redis = {
  call = function(...) return said(call, ...) end,
  pcall = function(...) return said(pcall, ...) end,
  error_reply = error_reply, register_function = register_function,
}
"""
CALLBACK: Final = "callback = function(KEYS, ARGV)\n"
TAKE_TIME: Final = CALLBACK + "simulated = tonumber(table.remove(ARGV))\n"
UNKNOWN: Final = "Function not found"
NAME: Final = re.compile(r"^#!lua name=(\w+)\n")
_READS = """
EXISTS GET GETRANGE HELLO HGET HGETALL HKEYS HLEN HMGET HSCAN KEYS LLEN MGET SCAN SCARD SISMEMBER SMEMBERS SMISMEMBER SRANDMEMBER XINFO XLEN XPENDING
SSCAN XRANGE XREAD XREVRANGE ZCARD ZMSCORE ZRANGE ZRANGEBYSCORE ZRANK ZREVRANGE ZSCORE
"""
READS: Final = frozenset(_READS.split())


def simulated(library: str) -> str:
    """A script's library with the clock laid under it."""
    head, _, body = library.partition("\n")
    return f"{head}\n{CLOCK}{body.replace(CALLBACK, TAKE_TIME)}"


@contextmanager
def private_server(change: Callable[[str], str] = str) -> Iterator[Server]:
    """A server for simulations, thrown away afterwards. `change` is done to the text of each script."""
    folder = Path(tempfile.mkdtemp(prefix="redsched-sim-"))
    try:
        url = embedded.ensure(folder, {"appendonly": "no"})
        with contextlib.closing(Server(unquote(url.removeprefix("unix://")), change)) as server:
            yield server
    finally:
        embedded.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


class Server:
    """One raw connection, because a simulation makes a thousand calls a tenth of a second; and the log of all writes."""

    def __init__(self, path: str, change: Callable[[str], str] = str) -> None:
        self._change = change
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link.connect(path)
        self._reader = hiredis.Reader(replyError=_error)
        self._loaded: set[str] = set()
        self.known: set[str] = set()  # functions that clients have loaded since it was last forgetful
        self.log: list[bytes] = []
        self.keeps = True  # the log, for restarts that lose writes

    def close(self) -> None:
        self._link.close()

    def fresh(self) -> None:
        """Empty, but for the scripts, so that every simulation begins alike."""
        self.log.clear()
        for script in all_scripts().values():
            self._load(script.library)
        self.raw([("FLUSHALL",)])

    def say(self, commands: Sequence[Words], now: int) -> list[Any]:
        """Run commands at the simulated time `now`; a refusal is among the replies, as an exception."""
        replies: list[Any] = []
        batch: list[Words] = []
        for words in commands:
            own = self._own(words, now)
            if own is None:
                batch.append(_dated(words, now))
                continue
            replies += self._logged(batch)
            batch = []
            replies.append(own)
        return replies + self._logged(batch)

    def _own(self, words: Words, now: int) -> Any:
        """The answer to what the server itself is not asked; None otherwise."""
        if words[0] == "TIME":
            return [str(now // 1000).encode(), str(now % 1000 * 1000).encode()]
        if words[0] == "FCALL" and words[1] not in self.known:
            return ResponseError(UNKNOWN)
        if words[0] == "FUNCTION LOAD":
            return self._load(words[-1])
        return None

    def _load(self, library: str) -> bytes:
        found = NAME.match(library)
        assert found is not None
        if found[1] not in self._loaded:
            (reply,) = self.raw([("FUNCTION", "LOAD", "REPLACE", simulated(self._change(library)))])
            if isinstance(reply, Exception):
                raise reply
            self._loaded.add(found[1])
        self.known.add(found[1])
        return found[1].encode()

    def _logged(self, commands: Sequence[Words]) -> list[Any]:
        packed = [_packed(words) for words in commands]
        if self.keeps:
            self.log += [data for data, words in zip(packed, commands, strict=True) if words[0] not in READS]
        return self._exchange(packed)

    def raw(self, commands: Sequence[Words]) -> list[Any]:
        """As they are: no clock, no log. For those who only look."""
        return self._exchange([_packed(words) for words in commands])

    def _exchange(self, packed: Sequence[bytes]) -> list[Any]:
        if not packed:
            return []
        self._link.sendall(b"".join(packed))
        replies: list[Any] = []
        while len(replies) < len(packed):
            reply = self._reader.gets()
            if reply is False:
                data = self._link.recv(262_144)
                if not data:
                    raise OSError("the simulation's server went away")
                self._reader.feed(data)
            else:
                replies.append(reply)
        return replies

    def lose(self, writes: int) -> None:
        """Restart with the last `writes` calls lost: what remains is a prefix of history, said again."""
        del self.log[max(0, len(self.log) - writes) :]
        self.raw([("FLUSHALL",)])
        for i in range(0, len(self.log), 500):
            self._exchange(self.log[i : i + 500])


def _dated(words: Words, now: int) -> Words:
    """A call that depends on the time, with the simulated one."""
    if words[0] == "FCALL":
        return (*words, now)
    if words[0] == "XADD":
        return tuple(f"{now}-*" if word in ("*", b"*") else word for word in words)
    return words


def _error(text: str) -> Exception:
    return ResponseError(text.removeprefix("ERR "))


def _packed(words: Words) -> bytes:
    if " " in words[0]:
        words = (*words[0].split(), *words[1:])
    data: bytes = hiredis.pack_command(words)
    return data
