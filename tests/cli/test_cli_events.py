"""`redsched events`, and what `redsched doctor --audit` shows."""

from __future__ import annotations

import json

import pytest

from redsched.audit import Difference
from redsched.auditing import Findings
from redsched.cli.base import State
from redsched.settings import Settings

from .fake_client import Call, FakeClient

EVENTS = [
    {"id": f"{i}-0", "at": f"2026-01-02T01:00:0{i}Z", "kind": kind, "text": text}
    for i, (kind, text) in enumerate([("leader", "s1 leads, fence 3"), ("audit", "repaired\x1b[2J it")])
]
WRONG = Difference("shard 3", "run:d:r", "left 5", "left 4", "it never ends", ("count",), "d", "r")


@pytest.fixture
def doctor(fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """Everything is well, but for what an audit finds."""
    monkeypatch.setattr(State, "settings", lambda _: Settings(redis="redis://h"))
    well = {"check": "redis", "ok": True, "detail": "answers", "fix": ""}
    monkeypatch.setattr("redsched.doctor.checks", lambda _: [dict(well)])
    monkeypatch.setattr(fake, "store", None, raising=False)
    return fake


def audited(monkeypatch: pytest.MonkeyPatch, found: Findings) -> list[bool]:
    fixes: list[bool] = []
    monkeypatch.setattr("redsched.scheduler.audit.audit", lambda _, fix: fixes.append(fix) or found)
    return fixes


def test_events_are_lines_without_control_characters(call: Call, fake: FakeClient) -> None:
    fake.event_rows = EVENTS
    result = call("events")
    assert result.stdout.splitlines() == [
        "2026-01-02T01:00:00Z  leader           s1 leads, fence 3",
        "2026-01-02T01:00:01Z  audit            repaired\\x1b[2J it",
    ]
    assert json.loads(call("events", "--limit", "1", "--json").stdout) == EVENTS[-1:]


def test_followed_with_json_each_event_is_a_line(call: Call, fake: FakeClient) -> None:
    fake.event_rows = EVENTS
    lines = call("events", "-f", "--limit", "1", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["1-0", "9-0"]


def test_no_events_yet(call: Call, fake: FakeClient) -> None:
    result = call("events")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no events yet\n")


def test_the_doctor_counts_again_only_when_asked(call: Call, doctor: FakeClient) -> None:
    assert call("doctor").stdout == "ok    redis: answers\n"


def test_a_difference_is_shown_with_what_to_do(
    call: Call, doctor: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixes = audited(monkeypatch, Findings(looked=2, differences=[WRONG]))
    result = call("doctor", "--audit")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:] == [
        "WRONG audit: 2 runs counted again, 1 difference",
        "      shard 3 run:d:r (d/r): left 5, should be left 4: it never ends",
        "      redsched doctor --fix",
    ]
    assert fixes == [False]
    assert json.loads(call("doctor", "--audit", "--json").stdout)[-1]["differences"] == [WRONG.shown()]


def test_fix_shows_what_was_repaired(call: Call, doctor: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Findings(looked=2, differences=[WRONG], repaired=[WRONG], unsure={"d/r2"})
    assert not audited(monkeypatch, found)
    result = call("doctor", "--fix")
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()[1:]
    assert first.startswith(
        "ok    audit: 2 runs counted again, 1 difference repaired, all is well, 1 could not be judged"
    )
    assert second == "      repaired shard 3 run:d:r (d/r): left 5, should be left 4: it never ends"
