"""What a supervisor and one of its children say to each other: lines on a pipe, and a board of numbers in shared memory.

Lines go one way (child to supervisor), so a short body waits for nobody. The board answers "is this body still on?"
at any moment; who changes something because of that answer holds the board's lock, and so does a child leaving a long body.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from redsched.store.pool import Hint
from redsched.store.shard import Report

# A body longer than this leaves under the lock, because the supervisor may have taken its batch's rest away by then.
LONG_S: Final = 0.020
# In one body for longer than this: the supervisor takes the rest. Far above LONG_S, so that the two never miss each other.
TAKE_S: Final = 0.050

Verdict = Literal["", "timeout", "unwanted", "stopped"]
VERDICTS: Final[tuple[Verdict, ...]] = ("", "timeout", "unwanted", "stopped")

# Cells of the board, 8 bytes each: one aligned store, so a reader never sees half a number.
WORKER: Final = 0  # number of this worker + 1; 0 = not known yet        (written by the supervisor)
BODY: Final = 1  # serial of the body that is on; 0 = none               (written by the child)
TAKEN: Final = 2  # serial of the body whose batch was taken away        (supervisor)
VERDICT: Final = 3  # why the body is being stopped                      (supervisor)
JUDGED: Final = 4  # serial of the body that this is about               (supervisor)
SHIPPED: Final = 5  # how much of the live log is stored                 (supervisor)
SHIPPED_OF: Final = 6  # serial of that log                              (supervisor)
DRAIN: Final = 7  # take nothing new and leave                           (supervisor)
RECHECK: Final = 8  # some of the batch is not wanted any more: ask      (supervisor)
CUT: Final = 9  # bytes cut off the front of the live log by truncation  (supervisor)
CELLS: Final = 16


class Board:
    """16 numbers shared with one child, and a lock (POSIX, so that no grandchild can inherit it)."""

    def __init__(self, lock_path: Path) -> None:
        self._memory = mmap.mmap(-1, CELLS * 8)
        self.cells = memoryview(self._memory).cast("Q")
        self._lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def holding(self, serial: int) -> Iterator[bool]:
        """Whether body `serial` is on, and stays on inside this block. Never waits: a stopped child may hold the lock."""
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            yield False
            return
        try:
            yield self.cells[BODY] == serial
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def verdict(self, serial: int) -> Verdict:
        return VERDICTS[self.cells[VERDICT]] if self.cells[JUDGED] == serial else ""

    def judge(self, serial: int, verdict: Verdict) -> None:
        self.cells[VERDICT] = VERDICTS.index(verdict)
        self.cells[JUDGED] = serial

    def shipped(self, serial: int) -> int:
        return self.cells[SHIPPED] if self.cells[SHIPPED_OF] == serial else 0

    def close(self) -> None:
        self.cells.release()
        self._memory.close()
        os.close(self._lock)


# ---------------------------------------------------------------- lines: a letter, then fields between tabs
#   H nonce (pool entry id payload)*   about to be granted        G 0101…   which of them were
#   B i serial begun_ms timeout_ms grace_ms kind log task         body of hint i is on (kind: c command, p Python)
#   P serial pgid                      its command was spawned    D i ms [json]   it is over, not yet reported
#   F                                  all that is over has been reported and released
#   R                                  the batch is done          L text / K      Redis lost / back      X text  an error


def held(nonce: str, hints: list[Hint]) -> str:
    return "\t".join(("H", nonce, *(x for h in hints for x in h))) + "\n"


def hints_of(fields: list[str]) -> list[Hint]:
    return [Hint(*fields[i : i + 4]) for i in range(0, len(fields) - 3, 4)]


def over(index: int, report: Report) -> str:
    plain = report.outcome == "success" and report.result is None and not report.skip
    if plain:
        return f"D\t{index}\t{report.ms}\n"
    rest = [report.outcome, report.reason, report.result, report.final, report.retry_ms, list(report.skip)]
    return f"D\t{index}\t{report.ms}\t{json.dumps(rest)}\n"


def report_of(attempt_id: str, fields: list[str]) -> Report:
    """The report in a D line's fields after the index."""
    ms = int(fields[0])
    if len(fields) == 1:
        return Report(attempt_id, "success", ms)
    outcome, reason, result, final, retry_ms, skip = json.loads(fields[1])
    return Report(attempt_id, outcome, ms, reason, result, final, retry_ms, tuple(skip))


def monotonic_ms() -> float:
    """The same clock in every process of this host."""
    return time.monotonic() * 1000
