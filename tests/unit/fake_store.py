"""A store without Redis for tests of the worker: one in the test's process, spoken to over a Unix socket by the worker's.

It keeps the promises of the real one that a worker leans on: hints are delivered once, grants are idempotent by nonce,
give_back and release look at the nonce, a heartbeat names what is not wanted.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from types import SimpleNamespace
from typing import Any

from redsched.errors import MayHaveHappened, NotFound, Unavailable
from redsched.store.pool import Hint
from redsched.store.shard import Report


class FakeRedis:
    """The state, and everything that a test wants to see of it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.specs: dict[str, dict[str, Any]] = {}
        self.params: dict[str, Any] = {}
        self.stream: list[Hint] = []
        self.pending: dict[str, list[Hint]] = {}
        self.grants: dict[str, tuple[str, str]] = {}  # attempt id -> (nonce, worker)
        self.queued: set[str] = set()
        self.unwanted: set[str] = set()
        self.reports: list[Report] = []
        self.report_times: list[float] = []
        self.notices: list[tuple[str, int]] = []
        self.logs: dict[str, bytearray] = {}
        self.claims: dict[str, str] = {}
        self.beats: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.consumers: set[str] = set()
        self.left: list[str] = []
        self.events: list[str] = []
        self.down = False
        self.lose_next: Counter[str] = Counter()  # calls that happen, but whose reply is lost
        self._entries = 0

    # ---- for tests

    def dag(self, dag: str, tasks: dict[str, dict[str, Any]], **more: Any) -> None:
        self.specs[dag] = {"dag": dag, "tasks": tasks, "_names": list(tasks), **more}

    def queue(self, dag: str, index: int = 0, run: str = "r1", attempt: int = 1, flags: str = "") -> str:
        attempt_id = f"{dag}/{run}/{index}/{attempt}"
        with self.lock:
            self.queued.add(attempt_id)
            self._push(attempt_id, f"1,,manual,{flags},0a")
        return attempt_id

    def _push(self, attempt_id: str, payload: str) -> None:
        self._entries += 1
        self.stream.append(Hint("default", f"{self._entries}-0", attempt_id, payload))

    def report(self, attempt_id: str) -> Report:
        return next(r for r in self.reports if r.attempt_id == attempt_id)

    def reported(self, *attempt_ids: str) -> bool:
        return set(attempt_ids) <= {r.attempt_id for r in self.reports}

    def log(self, attempt_id: str) -> str:
        return bytes(self.logs.get(attempt_id, b"")).decode(errors="replace")

    # ---- calls

    def pool_read(
        self, consumer: str, pools: list[str], count: int, block_ms: int, history: bool = False
    ) -> Any:
        with self.lock:
            self.consumers.add(consumer)
            mine = self.pending.setdefault(consumer, [])
            if history:
                return mine[:count]
            got, self.stream = self.stream[:count], self.stream[count:]
            mine += got
            return got

    def _finish(self, hints: list[Hint]) -> None:
        entries = {h.entry for h in hints}
        for consumer, mine in self.pending.items():
            self.pending[consumer] = [h for h in mine if h.entry not in entries]

    def pool_start(self, worker: str, nonce: str, hints: list[Hint]) -> list[bool]:
        self._finish(hints)
        answers = []
        for h in hints:
            if h.attempt_id in self.queued:
                self.queued.discard(h.attempt_id)
                self.grants[h.attempt_id] = (nonce, worker)
            held = self.grants.get(h.attempt_id)
            answers.append(held is not None and held[0] == nonce and h.attempt_id not in self.unwanted)
        return answers

    def pool_give_back(self, worker: str, nonce: str, hints: list[Hint]) -> None:
        fresh = {h.entry for mine in self.pending.values() for h in mine}
        self._finish(hints)
        for h in hints:
            mine = self.grants.get(h.attempt_id, ("", ""))[0] == nonce
            if mine:
                del self.grants[h.attempt_id]
                self.queued.add(h.attempt_id)
            if mine or (h.attempt_id in self.queued and h.entry in fresh):
                self._push(h.attempt_id, h.payload)

    def pool_release(self, nonce: str, hints: list[Hint]) -> None:
        for h in hints:
            if self.grants.get(h.attempt_id, ("", ""))[0] == nonce:
                del self.grants[h.attempt_id]

    def pool_heartbeat(self, worker: str, pool: str, ids: list[str]) -> list[str]:
        self.beats.update(ids)
        return [i for i in ids if i in self.unwanted or self.grants.get(i, ("", ""))[1] != worker]

    def pool_leave(self, consumer: str, pools: list[str]) -> bool:
        if not self.pending.get(consumer):
            self.consumers.discard(consumer)
            self.left.append(consumer)
        return True

    def shard_report(self, worker_no: int, reports: list[Report]) -> None:
        assert worker_no == 7
        self.reports += reports
        self.report_times += [time.monotonic()] * len(reports)

    def shard_running(self, worker_no: int, items: list[tuple[str, int]]) -> None:
        self.notices += items

    def shard_spec(self, dag: str, digest: str) -> dict[str, Any]:
        if dag not in self.specs:
            raise NotFound(f"no DAG {dag}")
        return self.specs[dag]

    def shard_header(self, dag: str, run: str) -> dict[str, Any]:
        return {"logical_ms": None, "created_ms": 0, "kind": "manual", "params": self.params, "version": 1}

    def shard_inputs(self, dag: str, run: str, names: dict[str, int]) -> dict[str, Any]:
        import json

        found = {
            i: r for r in self.reports for i in [int(r.attempt_id.split("/")[2])] if r.outcome == "success"
        }
        return {n: json.loads(found[i].result or "null") if i in found else None for n, i in names.items()}

    def shard_once(self, attempt_id: str, name: str, nonce: str) -> bool:
        return self.claims.setdefault(f"{attempt_id.rsplit('/', 1)[0]}/{name}", nonce) == nonce

    def shard_once_undo(self, attempt_id: str, name: str, nonce: str) -> None:
        self.claims.pop(f"{attempt_id.rsplit('/', 1)[0]}/{name}", None)

    def shard_log_write(self, attempt_id: str, offset: int, data: bytes) -> None:
        log = self.logs.setdefault(attempt_id, bytearray())
        log.extend(b"\0" * (offset + len(data) - len(log)))
        log[offset : offset + len(data)] = data

    def control_worker_beat(self, name: str, info: dict[str, Any]) -> int:
        return 7

    def events_add(self, kind: str, text: str, **data: Any) -> None:
        self.events.append(kind)

    def control_worker_leave(self, name: str) -> None:
        self.left.append(name)

    def call(
        self, name: str, args: tuple[Any, ...], more: dict[str, Any], gone: Callable[[], bool] = lambda: False
    ) -> Any:
        """Blocking reads wait outside the lock, and end when Redis goes down or their client has `gone`."""
        until = time.monotonic() + (args[3] / 1000 if name == "pool_read" and not more.get("history") else 0)
        while not gone():
            with self.lock:
                self.calls[name] += 1
                if self.down:
                    raise Unavailable("connection refused")
                answer = getattr(self, name)(*args, **more)
                if self.lose_next[name]:
                    self.lose_next[name] -= 1
                    raise MayHaveHappened("connection lost")
            if answer or time.monotonic() >= until:
                return answer
            time.sleep(0.002)


class Server:
    """Serves one FakeRedis to other processes."""

    def __init__(self, redis: FakeRedis, path: str) -> None:
        self.redis, self.path = redis, path
        self._listener = Listener(path, family="AF_UNIX", backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Any) -> None:
        try:
            while True:
                name, args, more = connection.recv()
                try:
                    answer = True, self.redis.call(name, args, more, lambda: connection.poll(0))
                except Exception as error:  # noqa: BLE001 - it is raised at the caller's
                    answer = False, error
                connection.send(answer)
        except (EOFError, OSError):
            connection.close()

    def close(self) -> None:
        self._listener.close()


class _Part:
    def __init__(self, store: FakeStore, part: str) -> None:
        self._store, self._part = store, part

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: self._store.call(f"{self._part}_{name}", args, more)


class FakeStore:
    """Looks like `Store`; `direct` answers in this process."""

    def __init__(self, path: str = "", direct: FakeRedis | None = None) -> None:
        self._path, self._direct, self._connection = path, direct, None
        self.clients = SimpleNamespace(block_ms=2000)
        self.pool, self.shard, self.control, self.events = (
            _Part(self, part) for part in ("pool", "shard", "control", "events")
        )

    def call(self, name: str, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        if self._direct:
            return self._direct.call(name, args, more)
        try:
            if self._connection is None:
                self._connection = Client(self._path, family="AF_UNIX")
            self._connection.send((name, args, more))
            fine, answer = self._connection.recv()
        except BaseException as error:
            self.close()
            if isinstance(error, EOFError | OSError):
                raise MayHaveHappened(str(error)) from None
            raise
        if not fine:
            raise answer
        return answer

    def fork_safe_reset(self) -> None:
        self._connection = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
