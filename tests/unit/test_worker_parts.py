"""The parts of a worker, each alone: lines and board, the log file, the name, the guardian's account."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from redsched.store.pool import Hint
from redsched.store.shard import Report
from redsched.worker import guardian, logs, wire
from redsched.worker.logs import LogFile
from redsched.worker.names import take_name
from redsched.worker.slots import Slot

HINTS = [Hint("default", f"{i}-0", f"d/r/{i}/1", "1,,manual,") for i in range(3)]


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    made = Slot(0, wire.Board(tmp_path / "lock"))
    return made


def say(slot: Slot, *lines: str) -> None:
    for line in lines:
        for one in line.splitlines():
            letter, _, text = one.partition("\t")
            slot.take_in(letter, text)


def begin(index: int, serial: int) -> str:
    return f"B\t{index}\t{serial}\t0\t0\t10000\tp\tlog-0-1\ttask"


@pytest.mark.parametrize(
    "report",
    [
        Report("d/r/0/1", "success", 5),
        Report("d/r/0/1", "success", 5, result='{"a":"\\t\\n"}', skip=(1, 2)),
        Report("d/r/0/1", "failed", 5, "tab\tnewline\nä", None, True, 30_000),
    ],
)
def test_a_report_survives_its_line(report: Report) -> None:
    """Whatever a reason or result holds, it stays one line, and comes back equal."""
    line = wire.over(0, report)
    assert line.count("\n") == 1
    assert wire.report_of("d/r/0/1", line.rstrip("\n").split("\t")[2:]) == report


def test_a_slot_follows_its_child(slot: Slot) -> None:
    """asked → held → on → over → gone; at any moment it is known what is to be done if the child dies."""
    say(slot, wire.held("n1", HINTS))
    assert slot.in_state("asked") == HINTS
    say(slot, "G\t101")
    assert slot.in_state("held") == [HINTS[0], HINTS[2]]
    say(slot, begin(0, 1))
    assert slot.body and slot.body.hint == HINTS[0]
    say(slot, wire.over(0, Report("d/r/0/1", "success", 1)), begin(2, 2))
    rest, done, reports = slot.take()
    assert (rest, done, [r.attempt_id for r in reports]) == ([], [HINTS[0]], ["d/r/0/1"])
    assert slot.in_state("on") == [HINTS[2]]
    say(slot, "F")
    assert slot.body is None
    say(slot, "R")
    assert slot.hints == []


def test_only_the_body_that_is_on_is_held(slot: Slot) -> None:
    """Who decides about a body knows, inside the lock, whether it is still on."""
    slot.board.cells[wire.BODY] = 7
    with slot.board.holding(7) as on:
        assert on
    with slot.board.holding(8) as on:
        assert not on
    slot.board.judge(7, "timeout")
    assert (slot.board.verdict(7), slot.board.verdict(8)) == ("timeout", "")


def test_head_and_tail_are_shipped_the_middle_is_not(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log", 100, 10, create=True)
    os.write(log.fd, bytes(range(250)) * 4)
    assert b"".join(d for _, d in log.pieces(0, 1000)) == bytes(range(100)) + bytes(range(150, 250))
    assert [o for o, _ in log.pieces(0, 1000)] == [0, 900]
    assert list(log.pieces(950, 960)) == [(950, bytes(range(200, 210)))]


@pytest.mark.parametrize("holes", [True, False])
def test_a_flood_is_trimmed(tmp_path: Path, holes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets stay absolute, with holes in the file and without; what was cut off is never asked for again."""
    if not holes:
        monkeypatch.setattr(logs, "_punch_hole", lambda *_: False)
    log = LogFile(tmp_path / "log", 1000, 10, create=True)
    shipped, seen = 0, {}
    for i in range(40):
        os.write(log.fd, b"%07d\n" % i * 131072)
        for offset, data in log.pieces(shipped, log.size()):
            shipped = offset + len(data)
            seen[offset] = data
        log.trim(shipped)
        assert os.fstat(log.fd).st_blocks * 512 < 12_000_000
    assert log.size() == 40 * 1_048_576
    assert seen[max(seen)] == b"0000039\n" * 125
    assert seen[0] == b"0000000\n" * 125


def test_a_full_disk_costs_the_line_and_not_the_worker() -> None:
    log = LogFile(Path("/dev/full"), 1000, 10)
    log.note("redsched: exit code 1")
    log.close()


def test_the_last_marked_line_counts(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log", 1000, 10, create=True)
    os.write(log.fd, b"::result:: 1\nnot ::result:: 2\n::result::3\r\nx\n::branch:: [] ")
    assert log.last_lines(b"::result::", b"::branch::", b"::none::") == [b"3", b"[]", None]
    log.note("redsched: end")
    assert os.pread(log.fd, 99, log.size() - 16) == b"] \nredsched: end\n"[-16:]
    log.restart()
    assert log.last_lines(b"::result::") == [None]


def test_names_are_stable_and_not_shared(tmp_path: Path) -> None:
    """The first free number is taken, and taken again by the successor."""
    first, second = take_name(folder=tmp_path), take_name(folder=tmp_path)
    assert (first.text[-2:], second.text[-2:]) == (":0", ":1")
    first.close()
    assert take_name(folder=tmp_path).text == first.text
    assert take_name("my/own name").text == "my-own-name"


def test_the_guardians_account() -> None:
    groups: set[int] = set()
    assert guardian.apply(b"+5\n+6\n-5\n+7", groups) == b"+7"
    assert groups == {6}


def test_lines_read_at_once_and_one_by_one_say_the_same(tmp_path: Path) -> None:
    """Bodies that came and went between two looks are noted in short: nothing else is different by it."""
    fine, failed = (
        Report("d/r/0/1", "success", 4),
        Report("d/r/1/1", "failed", 5, "no"),
    )
    with_result = Report("d/r/2/1", "success", 6, result="[1]")
    lines = [
        *(wire.held("n1", HINTS), "G\t111\n"),
        *(begin(0, 1) + "\n", wire.over(0, fine), begin(1, 2) + "\n", wire.over(1, failed)),
        *(begin(2, 3) + "\n", wire.over(2, with_result)),
    ]
    for count in range(1, len(lines) + 1):
        told = []
        for chunks in (["".join(lines[:count])], lines[:count]):
            slot = Slot(0, wire.Board(tmp_path / "lock"))
            slot.pipe, write = os.pipe()
            os.set_blocking(slot.pipe, False)
            said = []
            for chunk in chunks:
                os.write(write, chunk.encode())
                said += list(slot.read())
            on = slot.body and (slot.body.index, slot.body.serial)
            told.append((said, slot.states, on, slot.ran_something, slot.take()))
            os.close(write)
            os.close(slot.pipe)
        assert told[0] == told[1], count
