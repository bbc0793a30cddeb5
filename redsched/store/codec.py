"""How a run is stored, and how it is read back: live (a hash) or packed (one compressed value), the same either way.

Twin of `lua/lib/record.lua`. Each packed value begins with its format number, so version N reads N-1.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from redsched.states import ENDED, LETTERS, SETTLED

FORMAT: Final = b"\x01"
RECORD: Final = re.compile(r"([a-z])(\d+),(\d*),(\d*),(\d*),(\d*),(\d*),(\d*),(\d*)")
# What packed runs have in common: deflate finds it here instead of storing it in each.
DICTIONARY: Final = (
    b'"failed",",,,,,,,","success"],"s1,,,,,,,"s1,,,0,0,1,2,1","s1,,,1,1,2,3,1","s1,,,10,11,12,13,2",'
    b'{"state":"success","head":"1,","nonce":"","started":"17","ended":"17","tasks":["s1,,,0,1,2,3,1","s1,,,2,'
)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task of a run. Times are ms since the run was created, None where it has not come to that."""

    state: str
    attempt: int = 0
    failures: int = 0
    losses: int = 0
    ready: int | None = None
    queued: int | None = None
    started: int | None = None
    ended: int | None = None
    worker: int | None = None


@dataclass(frozen=True, slots=True)
class Try:
    """An attempt that ended without success, or was cleared."""

    outcome: str
    started: int | None
    ended: int | None
    worker: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as stored. `created`, `started`, `ended`, `logical` are ms since the epoch."""

    state: str
    version: int
    digest: str
    kind: str
    logical: int | None
    created: int
    started: int | None
    ended: int | None
    failed: int
    tasks: dict[int, str]
    tries: dict[str, str] = field(default_factory=dict)
    has_params: bool = False
    left: int = 0
    edits: int = 0
    late: bool = False

    def task(self, index: int) -> TaskRecord:
        record = decode_record(self.tasks.get(index))
        if self.state in ENDED and record.state not in SETTLED:  # cancelled, or over its run_timeout
            return TaskRecord("cancelled", record.attempt)
        return record

    def histories(self) -> dict[int, list[tuple[int, Try]]]:
        """Of each task by index, the attempts before its last one: (number, how it ended), oldest first."""
        found: dict[int, list[tuple[int, Try]]] = {}
        for name in self.tries:
            index, dot, number = name.partition(".")
            if not dot:
                continue
            task, old = self.task(int(index)), self.attempt(int(index), int(number))
            if old is not None and (int(number) < task.attempt or task.attempt == 0):
                found.setdefault(int(index), []).append((int(number), old))
        return {index: sorted(tries, key=lambda x: x[0]) for index, tries in found.items()}

    def last_attempt(self, index: int) -> int:
        """The highest attempt number that was given out, also for a task that was cleared since."""
        return max(self.task(index).attempt, int(self.tries.get(f"last{index}", "0")))

    def not_chosen(self, index: int) -> tuple[int, ...]:
        """Direct downstream tasks that this task, when it succeeded, did not choose."""
        text = self.tries.get(f"branch{index}", "")
        return tuple(map(int, text.split(","))) if text else ()

    def marked(self, index: int) -> bool:
        return f"mark{index}" in self.tries

    def attempt(self, index: int, attempt: int) -> Try | None:
        text = self.tries.get(f"{index}.{attempt}")
        if text is None:
            return None
        outcome, started, ended, worker, reason = text.split(",", 4)
        return Try(outcome, number(started), number(ended), number(worker), reason)


def number(text: str) -> int | None:
    return int(text) if text else None


def offered_of(members: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    """(task index, attempt) of the members of a ready set: `<index>` of a first attempt, `<index>/<attempt>` of a later one."""
    for member in members:
        index, _, attempt = member.partition(b"/")
        yield int(index), int(attempt or 1)


def decode_record(value: str | None) -> TaskRecord:
    """The record of a task's field: absent, or counters of its upstreams, mean `none`."""
    found = RECORD.fullmatch(value) if value else None
    if not found:
        return TaskRecord("none")
    letter, attempt, failures, losses, *rest = found.groups()
    ready, queued, started, ended, worker = map(number, rest)
    return TaskRecord(
        LETTERS[letter],
        int(attempt),
        int(failures or 0),
        int(losses or 0),
        ready,
        queued,
        started,
        ended,
        worker,
    )


def run_from_hash(fields: Mapping[str, str], tries: Mapping[str, str]) -> RunRecord:
    version, digest, kind, logical, created, flags = fields["head"].split(",")
    return RunRecord(
        state=fields["state"],
        version=int(version),
        digest=digest,
        kind=kind,
        logical=number(logical),
        created=int(created),
        started=number(fields.get("started", "")),
        ended=number(fields.get("ended", "")),
        failed=int(fields.get("failed", "0")),
        tasks={int(k): v for k, v in fields.items() if k.isdecimal()},
        tries=dict(tries),
        has_params="p" in flags,
        left=int(fields.get("left", "0")),
        edits=int(fields.get("edits", "0")),
        late="late" in fields,
    )


def pack(fields: Mapping[str, str], tries: Mapping[str, str]) -> bytes:
    """A finished run as one value: about 400 B for 20 tasks."""
    rest = {k: v for k, v in fields.items() if not k.isdecimal() and k != "pending"}
    tasks = {int(k): v for k, v in fields.items() if k.isdecimal()}
    listed = [tasks.get(i, "") for i in range(max(tasks) + 1)] if tasks else []
    text = json.dumps([rest, listed, dict(tries)], separators=(",", ":"), ensure_ascii=False)
    press = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zdict=DICTIONARY)
    return FORMAT + press.compress(text.encode()) + press.flush()


def unpack(value: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """The hash and the tries that `pack` was given. Raises ValueError for a format of a newer version."""
    if value[:1] != FORMAT:
        raise ValueError(f"packed run of format {value[0]}: this version reads format {FORMAT[0]}")
    press = zlib.decompressobj(-15, zdict=DICTIONARY)
    rest, listed, tries = json.loads(press.decompress(value[1:]) + press.flush())
    fields: dict[str, Any] = dict(rest)
    fields.update({str(i): v for i, v in enumerate(listed) if v != ""})
    return fields, tries


def run_from_packed(value: bytes) -> RunRecord:
    return run_from_hash(*unpack(value))


def text_map(flat: Any) -> dict[str, str]:
    """A HGETALL reply (dict, or flat list from a pipeline of scripts) as text."""
    if isinstance(flat, Mapping):
        return {k.decode(): v.decode(errors="replace") for k, v in flat.items()}
    return {flat[i].decode(): flat[i + 1].decode(errors="replace") for i in range(0, len(flat), 2)}
