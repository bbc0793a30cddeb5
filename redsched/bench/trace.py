"""What the bodies wrote, which is the witness of every measurement: what ran, how often, when, and after what.

It lies in memory where the machine has such a folder, and reading it asks Redis for nothing.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

STALL_S = 30.0  # nothing has run for so long: what is missing is lost
TICK_S = 0.002

Plan = Mapping[str, Sequence[str]]  # task -> the tasks that it needs


class Line(NamedTuple):
    """A body began: its run (`dag/run`), its task, and when (ns of CLOCK_MONOTONIC)."""

    run: str
    task: str
    ns: int


class Faults(NamedTuple):
    """Tasks that never ran, ran again, and ran before something that they need."""

    lost: int
    doubled: int
    disordered: int


class Trace:
    """The file of one measurement."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")  # noqa: S108 - a folder in memory; the file's name is random
        handle, name = tempfile.mkstemp(prefix="redsched-trace-", dir=memory if memory.is_dir() else None)
        os.close(handle)
        self.path = Path(name)
        self.lines: list[Line] = []
        self._seen = 0

    def read(self) -> list[Line]:
        """All lines up to now."""
        with self.path.open("rb") as file:
            file.seek(self._seen)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # a line that is half written is read next time
        self._seen += len(whole)
        for text in whole.decode().splitlines():
            run, task, ns = text.split("\t")
            self.lines.append(Line(run, task, int(ns)))
        return self.lines

    def wait(self, count: int, stall_s: float = STALL_S, tick_s: float = TICK_S) -> bool:
        """Until there are so many lines; False if nothing came for `stall_s`."""
        seen, since = -1, time.monotonic()
        while len(self.read()) < count:
            if len(self.lines) != seen:
                seen, since = len(self.lines), time.monotonic()
            elif time.monotonic() - since > stall_s:
                return False
            time.sleep(tick_s)
        return True

    def clear(self) -> None:
        """Forget everything, for the next measurement."""
        os.truncate(self.path, 0)
        self.lines, self._seen = [], 0

    def close(self) -> None:
        self.path.unlink(missing_ok=True)


def faults(lines: Iterable[Line], runs: Iterable[str], plan: Plan) -> Faults:
    """Compare what ran with what should have: each task of each run once, and after all that it needs."""
    ran: Counter[tuple[str, str]] = Counter()
    begun: dict[tuple[str, str], int] = {}
    for run, task, ns in lines:
        ran[run, task] += 1
        begun.setdefault((run, task), ns)
    wanted = {(run, task) for run in runs for task in plan}
    disordered = sum(
        any(begun.get((run, up), ns + 1) > ns for up in plan.get(task, ()))
        for (run, task), ns in begun.items()
    )
    doubled = sum(count - 1 for count in ran.values()) + len(begun.keys() - wanted)
    return Faults(len(wanted - begun.keys()), doubled, disordered)


def gaps_ms(lines: Iterable[Line], order: Sequence[str]) -> list[float]:
    """Of each run: the times from one task of a chain to the next."""
    begun: dict[str, dict[str, int]] = {}
    for run, task, ns in lines:
        begun.setdefault(run, {})[task] = ns
    return [
        (at[after] - at[before]) / 1e6
        for at in begun.values()
        for before, after in pairwise(order)
        if before in at and after in at
    ]
