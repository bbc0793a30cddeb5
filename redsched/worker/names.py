"""The stable name of a worker: `host:0`, `host:1`, … by the first lock in the temp folder that nobody holds.

A worker that was killed leaves its lock free, so its successor takes the name, and with it the hints it had not begun.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import tempfile
from pathlib import Path

MAX_WORKERS = 10_000


class Name:
    """A name that is ours while `fd` is open."""

    def __init__(self, text: str, fd: int | None = None) -> None:
        self.text = text
        self.fd = fd

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def take_name(wanted: str | None = None, folder: Path | None = None) -> Name:
    """`wanted`, else this host's name with its first free number."""
    if wanted:
        return Name(_clean(wanted))
    host = _clean(socket.gethostname()) or "host"
    folder = folder or Path(tempfile.gettempdir())
    for number in range(MAX_WORKERS):
        fd = _lock(folder / f"redsched-worker-{os.getuid()}-{number}.lock")
        if fd is not None:
            return Name(f"{host}:{number}", fd)
    return Name(f"{host}:{os.getpid()}")


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.:-]", "-", name)[:100]


def _lock(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
