"""A run that waits for its turn, and is edited twice before it comes."""

from __future__ import annotations

from .harness import Engine


def test_what_was_cleared_and_then_marked_does_not_run(engine: Engine) -> None:
    """The last edit of a queued run says what becomes of a task, not the sum of all edits."""
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}}, max_active_runs=1)
    engine.client.trigger("d", run="first")
    engine.client.trigger("d", run="second")
    engine.client.clear("d", "second")
    engine.client.clear("d", "second")
    engine.client.mark("d", "second", "success", "a")
    engine.settle()
    assert [(a.task, a.attempt) for a in engine.started if a.run == "second"] == [(1, 1)], "b alone, and once"
    assert engine.client.run("d", "second")["state"] == "success"
