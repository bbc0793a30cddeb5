"""A client without Redis: it answers from dicts and remembers what it was asked to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from click.testing import Result

from redsched.errors import Conflict, NotFound

Call = Callable[..., Result]
DESCRIPTION = 'Comma, "quote",\nnew line, 日本 and 🎉'


def run_of(dag: str, run: str, state: str, **more: Any) -> dict[str, Any]:
    return {
        "dag": dag,
        "run": run,
        "state": state,
        "kind": "manual",
        "logical_date": None,
        "started_at": "2026-01-02T01:00:00Z",
        "ended_at": "2026-01-02T01:00:03Z" if state in ("success", "failed", "cancelled") else None,
        **more,
    }


def task_of(state: str, **more: Any) -> dict[str, Any]:
    base = {"state": state, "attempt": 0, "pool": "default", "worker": None}
    return {**base, "started_at": None, "ended_at": None, "reason": None, **more}


class FakeClient:
    """Answers from dicts; `calls` remembers what was asked to change."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.dag_rows: dict[str, dict[str, Any]] = {}
        self.run_rows: list[dict[str, Any]] = []
        self.states: Iterator[dict[str, Any]] = iter(())
        self.pool_rows: list[dict[str, Any]] = []
        self.event_rows: list[dict[str, Any]] = []
        self.scheduler_rows = [{"scheduler": "a", "expires_in": 2.0, "leader": True}]
        self.worker_rows = [
            {
                "worker": "box:1",
                "pools": ["default"],
                "concurrency": 2,
                "running": 1,
                "last_seen": "2026-01-02T01:00:00Z",
            }
        ]

    def add_dag(self, spec: dict[str, Any], **more: Any) -> None:
        self.dag_rows[spec["dag"]] = {
            "dag": spec["dag"],
            "version": 1,
            "paused": False,
            "schedule": spec.get("schedule"),
            "team": spec["dag"],
            "description": spec.get("description", ""),
            "tasks": len(spec["tasks"]),
            "path": "dags/x.yaml",
            "registered_at": "2026-01-02T01:00:00Z",
            "active_runs": 0,
            "spec": spec,
            **more,
        }

    def close(self) -> None:
        pass

    def dags(self) -> list[dict[str, Any]]:
        return [{k: v for k, v in d.items() if k != "spec"} for d in self.dag_rows.values()]

    def dag(self, dag: str) -> dict[str, Any]:
        if dag not in self.dag_rows:
            raise NotFound(f"DAG {dag!r} does not exist; did you mean orders?")
        return self.dag_rows[dag]

    def register(self, dag: Any, *, paused: bool | None, path: str, dry_run: bool) -> dict[str, Any]:
        self.calls.append(("register", dag.dag, paused, dry_run))
        old = self.dag_rows.get(dag.dag)
        changed = old is None or old["spec"] != dag.written()
        version = (old["version"] if old else 0) + changed
        return {"dag": dag.dag, "version": version, "changed": changed, "path": path}

    def versions(self, dag: str) -> list[dict[str, Any]]:
        at = self.dag(dag)["registered_at"]
        return [{"version": 1, "digest": "ab" * 8, "registered_at": at, "path": "", "current": True}]

    def pause(self, dag: str) -> dict[str, Any]:
        self.calls.append(("pause", dag))
        return {"dag": dag, "paused": True, "changed": True}

    def resume(self, dag: str) -> dict[str, Any]:
        self.calls.append(("resume", dag))
        return {"dag": dag, "paused": False, "changed": True}

    def delete(self, dag: str, force: bool = False) -> dict[str, Any]:
        if self.dag(dag)["active_runs"] and not force:
            raise Conflict(f"DAG {dag!r} has 1 active runs")
        self.calls.append(("delete", dag, force))
        return {"dag": dag, "runs_deleted": 3, "stopped": 0}

    def trigger(
        self, dag: str, params: Any = None, *, date: datetime | None = None, run: str | None = None
    ) -> dict[str, Any]:
        self.dag(dag)
        if run == "taken":
            raise Conflict(f"DAG {dag!r} has a run with id 'taken' already: taken (running)")
        self.calls.append(("trigger", dag, params, date, run))
        return {"dag": dag, "run": run or "r1", "state": "queued"}

    def runs(self, dag: str | None = None, state: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        rows = [r for r in self.run_rows if dag in (None, r["dag"]) and state in (None, r["state"])]
        return rows[:limit]

    def run(self, dag: str, run: str) -> dict[str, Any]:
        return next(self.states)

    def wait(self, dag: str, run: str, timeout: float | None = None) -> dict[str, Any]:
        found = list(self.states)[-1]
        if found["state"] == "running":
            raise TimeoutError(f"run {run} of DAG {dag} is still running after {timeout} s")
        return found

    def cancel(self, dag: str, run: str) -> dict[str, Any]:
        self.calls.append(("cancel", dag, run))
        return {"dag": dag, "run": run, "state": "cancelled", "stopped": 1}

    def logs(self, dag: str, run: str, task: str, attempt: int | None = None) -> Any:
        return SimpleNamespace(attempt=1, state="success", data=b"caf\xe9\x00\n\xff", size=7, done=True)

    def follow_logs(self, dag: str, run: str, task: str, attempt: int | None = None) -> Iterator[bytes]:
        yield b"one\n"
        yield b"two\n"

    def set_pool(self, name: str, slots: int) -> dict[str, Any]:
        self.calls.append(("set_pool", name, slots))
        return {"pool": name, "slots": slots, "used": 0, "waiting": 0}

    def pools(self) -> list[dict[str, Any]]:
        return self.pool_rows

    def pool(self, name: str) -> dict[str, Any]:
        for row in self.pool_rows:
            if row["pool"] == name:
                return {"groups": {}, **row}
        raise NotFound(f"pool {name!r} does not exist")

    def delete_pool(self, name: str) -> dict[str, Any]:
        self.calls.append(("delete_pool", name))
        return {"pool": name, "deleted": True}

    def events(self, limit: int = 50) -> list[dict[str, Any]]:
        return self.event_rows[-limit:]

    def follow_events(self, after: str = "$") -> Iterator[dict[str, Any]]:
        yield {"id": "9-0", "at": "2026-01-02T01:00:09Z", "kind": "leader", "text": f"after {after}"}

    def shards(self) -> list[dict[str, Any]]:
        return [
            {
                "shard": 0,
                "owner": "a",
                "fence": 3,
                "expires_in": 2.1,
                "inbox": 0,
                "ready": 0,
                "refused_writes": 0,
            }
        ]

    def schedulers(self) -> list[dict[str, Any]]:
        return self.scheduler_rows

    def workers(self) -> list[dict[str, Any]]:
        return self.worker_rows

    def status(self) -> dict[str, Any]:
        return {
            "redis": {"url": "redis://***@h:6379/0", "version": "Redis 7.0.15"},
            "schedulers": len(self.scheduler_rows),
            "workers": len(self.worker_rows),
            "dags": len(self.dag_rows),
            "runs": {"queued": 0, "running": 0},
            "pools": self.pool_rows,
            "oldest_ready_s": None,
            "warnings": ["no scheduler is alive"] if not self.scheduler_rows else [],
        }
