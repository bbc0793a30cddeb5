"""A scheduler that dies while a backfill takes an existing run for its own."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from redsched.errors import MayHaveHappened
from redsched.scheduler import backfill

from .harness import Engine

DAY = datetime(2025, 1, 1, tzinfo=UTC)


def test_a_run_that_was_taken_and_not_yet_cleared_does_not_fill_the_backfill(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one run only, the one that was taken is the one that has to be cleared still."""
    engine.register("d", {"a": {}})
    engine.client.backfill("d", DAY, DAY, every_ms=86_400_000)
    engine.settle()
    first = [a.attempt for a in engine.started]
    again = engine.client.backfill("d", DAY, DAY, every_ms=86_400_000, on_existing="all", max_active=1)

    def dies(*_: object) -> None:
        raise MayHaveHappened("the scheduler dies between the two")

    with monkeypatch.context() as context:
        context.setattr(backfill, "edit_run", dies)
        with pytest.raises(MayHaveHappened):
            engine.step()
    engine.scheduler.doubt()
    engine.settle()
    assert [a.attempt for a in engine.started] == [*first, 2], "it has run again"
    assert engine.client.backfill_show(again["backfill"])["state"] == "done"
