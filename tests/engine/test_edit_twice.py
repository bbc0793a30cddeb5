"""A run that waits for its turn, and is edited twice before it comes."""

from __future__ import annotations

import pytest

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


def test_a_run_in_the_middle_of_a_big_edit_is_not_packed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner carries a big edit out in slices; packed between two of them the run would stay half edited for good."""
    monkeypatch.setattr("redsched.store.shard.EDIT_AT_ONCE", 1)
    engine.register("d", {"a": {}, "b": {"needs": ["a"]}})
    engine.client.trigger("d", run="r")
    engine.settle()
    word, _, _ = engine.store.shard.edit_run("d", "r", "success/0/0", "nonce", {0: "ready", 1: "none:0"})
    assert word == "STAGED"
    shard = engine.store.shard.of("d")
    assert engine.store.shard.pack(shard, engine.scheduler.ownership.tokens[shard], [("d", "r")]) == 0
    engine.settle()
    assert [a.attempt for a in engine.started] == [1, 1, 2, 2]
    assert engine.client.run("d", "r")["state"] == "success"
