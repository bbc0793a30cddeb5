"""A slot: what the supervisor knows of one child, from the lines it sent. Pure book-keeping; calls nobody.

Each hint of a batch is in one of these: asked (start was called) → held → on (its body runs) → over (not yet reported)
→ gone (reported, given back, or never granted).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from redsched.store.pool import Hint
from redsched.store.shard import Report
from redsched.worker import wire
from redsched.worker.logs import LogFile

State = Literal["asked", "held", "on", "over", "gone"]
READ = 65536


@dataclass
class Body:
    """The body that is on, by the child's last word. Times are ms of this host's monotonic clock."""

    index: int
    hint: Hint
    serial: int
    begun: float
    timeout_ms: int
    grace_ms: int
    kind: str
    log_name: str
    task: str
    pgid: int | None = None
    noticed: bool = False  # shown as running
    taken: bool = False
    verdict: wire.Verdict = ""
    kill_at: float | None = None
    give_up_at: float | None = None  # the child itself is killed
    owed: bool = False  # a SIGTERM, as soon as its process group is known
    log: LogFile | None = None
    shipped: int = 0
    next_tail: float = 0
    tail_ms: float = 250

    @property
    def title(self) -> str:
        return f"{self.hint.attempt_id} ({self.task})"

    def elapsed(self, now: float) -> int:
        return max(0, int(now - self.begun))

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None


@dataclass
class Slot:
    """One child, or the place where the next one will be."""

    number: int
    board: wire.Board
    pid: int = 0
    pipe: int = -1
    incarnation: int = 0
    born: float = 0
    ran_something: bool = False
    quick_deaths: int = 0
    fork_at: float = 0
    recycling: bool = False
    lost: bool = False  # it can't reach Redis
    nonce: str = ""
    since: float = 0  # when the batch began
    hints: list[Hint] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    overs: dict[int, Report | int] = field(default_factory=dict)  # a success without a result: its ms
    body: Body | None = None
    _rest: bytes = b""

    @property
    def log_name(self) -> str:
        return f"log-{self.number}-{self.incarnation}"

    # ---------------------------------------------------------------- what the child says

    def read(self) -> Iterator[tuple[str, str]]:
        """Take in all lines there are. Yields those that are not about a batch: (L, K or X, text)."""
        while True:
            try:
                data = os.read(self.pipe, READ)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            at = 0
            while at < len(lines):
                if self._came_and_went(lines[at : at + 2]):
                    at += 2
                    continue
                letter, _, fields = lines[at].decode(errors="replace").partition("\t")
                at += 1
                if letter in ("L", "K", "X"):
                    yield letter, fields
                elif said := self.take_in(letter, fields):
                    yield said
            if len(data) < READ:
                return

    def _came_and_went(self, lines: list[bytes]) -> bool:
        """Most bodies begin and succeed between two looks: of these only that is noted, because lines come in thousands."""
        if len(lines) < 2 or not lines[0].startswith(b"B\t"):
            return False
        begun, over = lines[0].split(b"\t", 2), lines[1].split(b"\t")
        if len(over) != 3 or over[:2] != [b"D", begun[1]]:
            return False
        self._end_body()
        index = int(begun[1])
        self.ran_something, self.states[index], self.overs[index] = True, "over", int(over[2])
        return True

    def take_in(self, letter: str, text: str) -> tuple[str, str] | None:
        """One line about the batch. A failure is handed back for the worker's log."""
        fields = text.split("\t")
        if letter == "B":
            self._begin(fields)
        elif letter == "D":
            return self._over(int(fields[0]), fields[1:])
        elif letter == "P":
            if self.body and self.body.serial == int(fields[0]):
                self.body.pgid = int(fields[1])
        elif letter == "H":
            self.forget()
            self.nonce, self.hints = fields[0], wire.hints_of(fields[1:])
            self.states = ["asked"] * len(self.hints)
            self.since = wire.monotonic_ms()
        elif letter == "G":
            self.states = ["held" if c == "1" else "gone" for c in fields[0]]
        elif letter == "F":
            self._end_body()
            self.overs.clear()
            self.states = ["gone" if s in ("on", "over") else s for s in self.states]
        elif letter == "R":
            self.forget()
        return None

    def _begin(self, fields: list[str]) -> None:
        self._end_body()
        index, serial, begun, timeout, grace = map(int, fields[:5])
        self.ran_something = True
        self.states[index] = "on"
        now = wire.monotonic_ms()
        self.body = Body(
            index,
            self.hints[index],
            serial,
            begun,
            timeout,
            grace,
            fields[5],
            fields[6],
            fields[7],
            next_tail=now + 250,
        )

    def _over(self, index: int, fields: list[str]) -> tuple[str, str] | None:
        title = attempt_id = self.hints[index].attempt_id
        if self.body and self.body.index == index:
            title = self.body.title
            self._end_body()
        report = self.overs[index] = wire.report_of(attempt_id, fields)
        self.states[index] = "over"
        return ("D", f"{title} failed: {report.reason}") if report.outcome == "failed" else None

    def _end_body(self) -> None:
        if self.body:
            self.body.close()
            self.body = None

    def forget(self) -> None:
        """The batch is done, or somebody else's now."""
        self._end_body()
        self.nonce, self.hints, self.states = "", [], []
        self.overs.clear()

    # ---------------------------------------------------------------- what the supervisor asks

    def in_state(self, *states: State) -> list[Hint]:
        return [h for h, s in zip(self.hints, self.states, strict=True) if s in states]

    def take(self) -> tuple[list[Hint], list[Hint], list[Report]]:
        """Everything but the body that is on leaves this slot: (not begun, over, their reports)."""
        rest, done = self.in_state("asked", "held"), self.in_state("over")
        reports = [
            x if isinstance(x, Report) else Report(self.hints[i].attempt_id, "success", x)
            for i, x in self.overs.items()
        ]
        self.overs.clear()
        self.states = [s if s == "on" else "gone" for s in self.states]
        return rest, done, reports

    def open_log(self, folder: Path, half: int, result_limit: int) -> LogFile | None:
        """The log of the body that is on; None if it has no file (any more)."""
        body = self.body
        if body and body.log is None:
            try:
                body.log = LogFile(folder / body.log_name, half, result_limit)
            except FileNotFoundError:
                return None
        return body.log if body else None
