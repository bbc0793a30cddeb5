"""An attempt's output: one file that its body appends to, stored piece by piece at absolute offsets while it grows.

Bytes stay bytes. The store keeps a head and a tail, so the middle of a huge output is neither sent nor kept on disk:
a body that prints for ever can't fill the disk. Knows nothing of Redis; the caller writes the pieces.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

PIECE: Final = 262_144  # bytes a call: about 1 ms of Redis time
SLACK: Final = 8_388_608  # a file may be longer than what is kept of it by this much
PUNCH_HOLE_KEEP_SIZE: Final = 3


class LogFile:
    """An open log. Offsets are absolute: `cut` bytes at the front may be gone (only where files can't have holes)."""

    def __init__(self, path: Path, half: int, result_limit: int, *, create: bool = False) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        if create:  # who tidies up /tmp may have taken the folder away
            path.parent.mkdir(mode=0o700, exist_ok=True)
        self.fd = os.open(path, flags, 0o600)
        self.half = half
        # The end of the file is where `::result::` is looked for, so as much of it as a result may need stays.
        self.keep = max(1_048_576, half, 2 * result_limit)
        self.cut = 0
        self._hole_end = half

    def size(self) -> int:
        return self.cut + os.fstat(self.fd).st_size

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """What the store keeps of [start, end): (offset, bytes), at most PIECE each."""
        start = max(start, self.cut)
        for low, high in ((start, min(end, self.half)), (max(start, self.half, end - self.half), end)):
            while low < high:
                data = os.pread(self.fd, min(PIECE, high - low), low - self.cut)
                if not data:
                    break
                yield low, data
                low += len(data)

    def trim(self, shipped: int) -> None:
        """Give the disk back what nobody will ask for: the middle between head and end."""
        size = self.size()
        end = size - self.keep
        if end - self._hole_end < SLACK:
            return
        if not self.cut and _punch_hole(self.fd, self._hole_end, end - self._hole_end):
            self._hole_end = end
        elif shipped >= size - PIECE:
            # Without holes the file starts anew: what was printed between these two lines is lost, and may be a
            # `::result::` line that more than SLACK bytes followed. $REDSCHED_RESULT has no such edge.
            size = self.size()
            os.ftruncate(self.fd, 0)
            self.cut = self._hole_end = size

    def restart(self) -> None:
        """Begin again at 0."""
        if self.cut or os.fstat(self.fd).st_size:
            os.ftruncate(self.fd, 0)
            self.cut, self._hole_end = 0, self.half

    def note(self, text: str) -> None:
        """Append a line of our own, beginning on a new line; if the disk has room for it."""
        size = os.fstat(self.fd).st_size
        fresh = size == 0 or os.pread(self.fd, 1, size - 1) == b"\n"
        line = ("" if fresh else "\n") + text.rstrip("\n") + "\n"
        with contextlib.suppress(OSError):
            os.write(self.fd, line.encode(errors="backslashreplace"))

    def last_lines(self, *marks: bytes) -> list[bytes | None]:
        """For each mark, what follows it on the last line that begins with it."""
        size = os.fstat(self.fd).st_size
        start = max(0, size - self.keep - SLACK)
        text = _read(self.fd, start, size)
        return [_last_line(text, mark, whole=start == 0) for mark in marks]

    def close(self) -> None:
        os.close(self.fd)


def _read(fd: int, start: int, end: int) -> bytes:
    parts = []
    while start < end and (part := os.pread(fd, end - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _last_line(text: bytes, mark: bytes, *, whole: bool) -> bytes | None:
    at = text.rfind(b"\n" + mark)
    if at < 0 and not (whole and text.startswith(mark)):
        return None
    begin = at + 1 + len(mark)
    end = text.find(b"\n", begin)
    return text[begin : end if end >= 0 else len(text)].strip()


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _punch_hole(fd: int, offset: int, length: int) -> bool:
    try:
        fallocate = _libc().fallocate
    except (AttributeError, OSError):
        return False
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(fd, PUNCH_HOLE_KEEP_SIZE, offset, length) == 0)
