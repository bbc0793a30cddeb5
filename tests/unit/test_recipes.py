"""The recipes of docs/guarantees.md do what they say."""

from __future__ import annotations

import logging
import sqlite3
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from redsched.context import Context, running

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "exactly_once"))
import recipes


@pytest.fixture
def db() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    made.execute("CREATE TABLE charges (key TEXT PRIMARY KEY, attempt INTEGER, amount INTEGER)")
    return made


def test_the_newest_attempt_wins_and_a_late_one_changes_nothing(db: sqlite3.Connection) -> None:
    assert recipes.write_row(db, "d/r/t", 1, 10)
    assert recipes.write_row(db, "d/r/t", 2, 20)
    assert not recipes.write_row(db, "d/r/t", 1, 10), "attempt 1 slept, woke up and wrote"
    assert recipes.write_row(db, "d/r/t", 2, 20), "attempt 2 says it again"
    assert db.execute("SELECT key, attempt, amount FROM charges").fetchall() == [("d/r/t", 2, 20)]


def test_a_server_that_knows_keys_does_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    effects: Counter[str] = Counter()
    seen: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            key = self.headers["Idempotency-Key"]
            if key not in seen:
                seen.add(key)
                effects[key] += 1
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    claims: set[str] = set()

    def claim(name: str) -> bool:
        fresh = name not in claims
        claims.add(name)
        return fresh

    def attempt(number: int) -> int:
        me = Context(
            dag="d",
            run="r",
            task="t",
            attempt=number,
            logical_date=None,
            data_interval_start=None,
            data_interval_end=None,
            params={},
            log=logging.getLogger("t"),
            claim=claim,
            undo=claims.discard,
        )
        with running(me):
            return recipes.notify(url, "hello")

    try:
        assert [recipes.post_once(url, "k", b"x") for _ in range(3)] == [200, 200, 200]
        assert attempt(1) == 200
        assert attempt(2) == 0, "another attempt finds the step done"
        assert effects == {"k": 1, "d/r/t": 1}
    finally:
        server.shutdown()
        server.server_close()
