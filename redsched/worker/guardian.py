"""The last one out: a tiny process that kills what a worker left behind when the worker itself was killed.

Run as `python -I -S guardian.py LIFE NEWS FOLDER` with two pipes. LIFE says nothing; its end means that the supervisor
is gone. NEWS brings lines `+pgid` and `-pgid`. Imports nothing but os, select, signal and sys: it starts in milliseconds.
"""

from __future__ import annotations

import os
import select
import signal
import sys

LINGER_S = 0.3  # for lines of children that were just being killed


def apply(lines: bytes, groups: set[int]) -> bytes:
    """Keep account of process groups; returns the unfinished last line."""
    *whole, rest = lines.split(b"\n")
    for line in whole:
        if line[:1] == b"+":
            groups.add(int(line[1:]))
        elif line[:1] == b"-":
            groups.discard(int(line[1:]))
    return rest


def kill(groups: set[int]) -> None:
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def sweep(folder: str) -> None:
    """Remove the worker's private folder, and what bodies may have put there."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def main(life: int, news: int, folder: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    rest = b""
    ended = False
    while True:
        ready, _, _ = select.select([news] if ended else [news, life], [], [], LINGER_S if ended else None)
        if news in ready:
            data = os.read(news, 65536)
            rest = apply(rest + data, groups)
            if not data:
                break
        elif life in ready:
            ended = True
            kill(groups)
        elif ended:
            break
    kill(groups)
    sweep(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
