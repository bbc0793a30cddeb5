"""What a hint stands for: the task of a DAG version, its parameters and inputs, as far as its body needs them.

Definitions never change under a version, so they are kept; a no-op of a known task asks Redis for nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final

from redsched.definition.values import parse_duration
from redsched.errors import NotFound
from redsched.keys import AttemptId
from redsched.store.pool import Hint
from redsched.store.shard import ShardStore

KNOWN_TASKS: Final = 100_000  # tasks of all DAG versions kept, about 2 KB each
KNOWN_RUNS: Final = 256

Say = Callable[..., Any]  # calls a store method again until Redis has answered


@dataclass(frozen=True, slots=True)
class Task:
    """A node as its body sees it."""

    dag: str
    name: str
    run: str | tuple[str, ...] | None
    call: str | None
    with_: Mapping[str, Any]
    sources: Mapping[str, int]  # upstream tasks whose results it asked for
    env: Mapping[str, str]
    cwd: str | None
    timeout_ms: int
    grace_ms: int
    skip_exit_code: int
    fail_exit_codes: frozenset[int]


@dataclass(slots=True)
class Definition:
    """A DAG version. Tasks are built when they are first run."""

    spec: dict[str, Any]
    names: list[str]
    tasks: dict[int, Task] = field(default_factory=dict)

    def interval(self, logical_ms: int) -> tuple[int, int]:
        """The data interval of a logical date: from the slot before it; the date itself where there is no schedule."""
        from redsched.schedule import Schedule, interval

        written = self.spec.get("schedule")
        zone = self.spec.get("timezone", "UTC")
        if isinstance(written, str):
            return interval(Schedule(cron=written, timezone=zone), logical_ms)
        if isinstance(written, dict) and "every" in written:
            return logical_ms - parse_duration(written["every"]), logical_ms
        return logical_ms, logical_ms

    def downstream(self, name: str) -> dict[str, int]:
        """Direct downstream tasks and their indexes. O(edges): only a body that branches asks."""
        tasks = self.spec["tasks"]
        return {other: i for i, other in enumerate(self.names) if name in tasks[other].get("needs", ())}


@dataclass(slots=True)
class Job:
    """One attempt, ready to be run."""

    attempt_id: str
    attempt: AttemptId
    task: Task
    definition: Definition
    logical_ms: int | None
    kind: str
    version: int
    params: dict[str, Any]
    arguments: dict[str, Any]
    inputs: dict[str, Any]

    @property
    def interval(self) -> tuple[int, int] | None:
        return None if self.logical_ms is None else self.definition.interval(self.logical_ms)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this task in this run."""
        return f"{self.attempt.dag}/{self.attempt.run}/{self.task.name}"


class Jobs:
    """Makes jobs of hints. `say` says a store call until it is answered; NotFound means that the run is gone."""

    def __init__(self, shard: ShardStore, say: Say) -> None:
        self._shard = shard
        self._say = say
        self._definitions: OrderedDict[tuple[str, str], Definition] = OrderedDict()
        self._kept = 0
        self._headers: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()

    def job(self, hint: Hint) -> Job:
        attempt = AttemptId.parse(hint.attempt_id)
        version_text, logical, kind, flags, digest = hint.payload.split(",")
        version = int(version_text)
        definition = self._definition(attempt, digest)
        index = attempt[2]
        task = definition.tasks.get(index) or self._task(attempt.dag, definition, index)
        job = Job(
            hint.attempt_id,
            attempt,
            task,
            definition,
            int(logical) if logical else None,
            kind,
            version,
            *({}, {}, {}),
        )
        if "p" in flags or "params" in definition.spec:
            job.params = self._params(job)
        if task.sources:
            job.inputs = self._say(self._shard.inputs, attempt.dag, attempt.run, dict(task.sources))
        if task.with_:
            from redsched.definition.python import fill

            job.arguments = {name: fill(value, job.inputs, job.params) for name, value in task.with_.items()}
        return job

    def _definition(self, attempt: AttemptId, digest: str) -> Definition:
        """Kept by what it says: a DAG that was deleted, or lost, and made again begins with version 1 anew."""
        key = (attempt.dag, digest)
        known = self._definitions.get(key)
        if known is not None:
            self._definitions.move_to_end(key)
            return known
        spec = self._say(self._shard.spec, attempt.dag, digest)
        made = self._definitions[key] = Definition(spec, spec["_names"])
        self._kept += len(made.names)
        while self._kept > KNOWN_TASKS and len(self._definitions) > 1:
            self._kept -= len(self._definitions.popitem(last=False)[1].names)
        return made

    def _task(self, dag: str, definition: Definition, index: int) -> Task:
        if index >= len(definition.names):
            raise NotFound(f"DAG {dag} has no task number {index} in this version")
        name = definition.names[index]
        raw = definition.spec["tasks"][name]
        run = raw.get("run")
        wanted = _references(raw["with"]) if "with" in raw else ()
        numbers = {n: definition.names.index(n) for n in wanted if not n.startswith("params.")}
        task = definition.tasks[index] = Task(
            dag=dag,
            name=name,
            run=run if run is None or isinstance(run, str) else tuple(run),
            call=raw.get("call"),
            with_=raw.get("with", {}),
            sources=numbers,
            env=raw.get("env", {}),
            cwd=raw.get("cwd") or definition.spec.get("cwd"),
            timeout_ms=parse_duration(raw.get("timeout", 0)),
            grace_ms=parse_duration(raw.get("kill_grace", 10)),
            skip_exit_code=raw.get("skip_exit_code", 99),
            fail_exit_codes=frozenset(raw.get("fail_exit_codes", ())),
        )
        return task

    def _header(self, job: Job) -> dict[str, Any]:
        key = (job.attempt_id.partition("/")[0], job.attempt.run)
        known: dict[str, Any] | None = self._headers.get(key)
        if known is None:
            known = self._headers[key] = self._say(self._shard.header, job.attempt.dag, job.attempt.run)
            if len(self._headers) > KNOWN_RUNS:
                self._headers.popitem(last=False)
        return known

    def _params(self, job: Job) -> dict[str, Any]:
        """The run's own values over the defaults; a default that names the logical date is filled in."""
        from redsched.definition.params import render_params, template_of

        header = self._header(job)
        schemas: dict[str, dict[str, Any]] = job.definition.spec.get("params", {})
        values: dict[str, Any] = {
            name: s["default"] for name, s in schemas.items() if "default" in s
        } | header["params"]
        if any(template_of(s.get("default")) for s in schemas.values()):
            moment = instant(header["created_ms"] if job.logical_ms is None else job.logical_ms)
            shape: Any = SimpleNamespace(params=schemas, timezone=job.definition.spec.get("timezone", "UTC"))
            span = job.interval or (job.logical_ms, job.logical_ms)
            start, end = (moment if ms is None else instant(ms) for ms in span)
            return render_params(
                shape, values, logical_date=moment, data_interval_start=start, data_interval_end=end
            )
        return values


def instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _references(value: Any) -> list[str]:
    from redsched.definition.model import references

    return list(dict.fromkeys(references(value)))
