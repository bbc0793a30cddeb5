"""A scheduler that is told to go ends in order, whatever it is doing."""

from __future__ import annotations

import pytest

from redsched.errors import Unavailable

from .harness import Engine


def test_a_scheduler_told_to_stop_while_redis_is_away_ends_in_order(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while it waits for Redis to come back; the pause between two tries is where it stands then."""
    scheduler = engine.new_scheduler("one")
    scheduler.upkeep()
    assert scheduler.ownership.tokens

    def away() -> None:
        scheduler.asked_to_stop = True
        raise Unavailable("Redis is away")

    monkeypatch.setattr(scheduler, "turn", away)
    scheduler.run()
    assert not scheduler.ownership.tokens, "its shards are handed over"
