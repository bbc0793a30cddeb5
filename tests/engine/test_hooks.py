"""What a DAG wants to be told is told at least once, whatever becomes of the one who tells it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from redsched.errors import DefinitionError
from redsched.store.shard import Report

from .harness import Engine, success


def told(engine: Engine) -> None:
    """Let the owner try once to deliver, and wait until that is done: what it finds due, else what would be due later."""
    engine.step()
    if finished(engine):
        return
    for member in outbox(engine):
        engine.store.client.zadd(engine.store.shard.prefix("d") + "hooks", {member: 1})
    for state in engine.scheduler.dispatch.states.values():
        state.next_hook = 1
    engine.step()
    finished(engine)


def finished(engine: Engine) -> bool:
    """Wait for what is under way; whether there was anything."""
    hooks = engine.scheduler.dispatch.hooks
    if hooks._threads is None:
        return False
    hooks._threads.shutdown(wait=True)
    hooks._threads = None
    return True


def outbox(engine: Engine) -> list[bytes]:
    found: list[bytes] = engine.store.client.zrange(engine.store.shard.prefix("d") + "hooks", 0, -1)
    return found


@pytest.fixture
def listener() -> Iterator[tuple[str, list[dict[str, Any]], Callable[[int], None]]]:
    """(url, what was posted, a switch for the status that is answered)."""
    posted: list[dict[str, Any]] = []
    status = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append({**json.loads(body), "key": self.headers["Idempotency-Key"]})
            self.send_response(status[0])
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", posted, lambda code: status.__setitem__(0, code)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("outcome", "event"), [("success", "success"), ("failed", "failure")])
def test_a_command_hears_how_a_run_ended(engine: Engine, tmp_path: Path, outcome: str, event: str) -> None:
    say = f'echo "$REDSCHED_DAG $REDSCHED_EVENT $REDSCHED_STATE" >> {tmp_path}/heard'
    engine.register("d", {"a": {}}, on_success=say, on_failure=["/bin/sh", "-c", say])
    engine.client.trigger("d")
    engine.settle(lambda a, p: Report(str(a), outcome, 1))  # type: ignore[arg-type]
    told(engine)
    assert (tmp_path / "heard").read_text() == f"d {event} {outcome}\n"
    assert outbox(engine) == []


def test_a_url_that_fails_is_told_again_with_the_same_key(engine: Engine, listener: Any) -> None:
    url, posted, answer = listener
    answer(503)
    engine.register("d", {"a": {}}, on_success={"url": url})
    run = engine.client.trigger("d")["run"]
    engine.settle(success)
    told(engine)
    assert len(outbox(engine)) == 1
    answer(200)
    told(engine)
    assert outbox(engine) == []
    assert [(p["run"], p["event"], p["state"]) for p in posted] == [(run, "success", "success")] * 2
    assert posted[0]["key"] == posted[1]["key"]


def test_what_its_owner_did_not_deliver_the_next_one_does(engine: Engine, tmp_path: Path) -> None:
    engine.register("d", {"a": {}}, on_success=f"echo told >> {tmp_path}/heard")
    engine.client.trigger("d")
    engine.scheduler.dispatch.hooks.deliver = lambda shard, now: now + 1000  # type: ignore[method-assign]
    engine.settle(success)
    assert len(outbox(engine)) == 1
    engine._scheduler = None
    engine.store.client.zadd(engine.store.keys.control + "schedulers", {"one": 1})
    engine._scheduler = engine.new_scheduler("two")
    for _ in range(3):
        engine.scheduler.ownership.beat()
    told(engine)
    assert (tmp_path / "heard").read_text() == "told\n"


def test_a_deadline_that_passes_is_told_and_shown_and_the_run_goes_on(engine: Engine, tmp_path: Path) -> None:
    engine.register(
        "d",
        {"a": {}},
        deadline="2h",
        on_deadline=f'echo "$REDSCHED_EVENT $REDSCHED_STATE" >> {tmp_path}/heard',
    )
    engine.client.trigger("d")
    engine.step()
    timers = engine.store.shard.prefix("d") + "timers"
    (timer,) = engine.store.client.zrange(timers, 0, -1)
    engine.store.client.zadd(timers, {timer: 1})
    engine.store.client.xadd(engine.store.shard.prefix("d") + "inbox", {"kind": "limits", "id": "d"})
    told(engine)
    engine.step()
    told(engine)
    assert engine.client.runs("d")[0]["late"] is True
    assert (tmp_path / "heard").read_text() == "deadline running\n"
    engine.settle(success)
    assert engine.client.run("d", "latest")["state"] == "success"


def test_a_run_in_time_is_not_late(engine: Engine) -> None:
    engine.register("d", {"a": {}}, deadline="2h")
    engine.client.trigger("d")
    engine.settle(success)
    timers = engine.store.shard.prefix("d") + "timers"
    (timer,) = engine.store.client.zrange(timers, 0, -1)
    engine.store.client.zadd(timers, {timer: 1})
    engine.store.client.xadd(engine.store.shard.prefix("d") + "inbox", {"kind": "limits", "id": "d"})
    engine.settle(success)
    assert "late" not in engine.client.run("d", "latest")


def test_an_address_that_is_none_is_refused(engine: Engine) -> None:
    from redsched.definition.model import build_dag

    with pytest.raises(DefinitionError, match="https://"):
        build_dag({"dag": "d", "tasks": {"a": {"run": "true"}}, "on_failure": {"url": "mailto:me"}})
