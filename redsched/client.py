"""What programs call, and what the command line and the web are thin layers over.

Everything is JSON-ready and in the shapes of the reference. A call whose reply was lost is said again: each is harmless
when said twice. Knows Redis only through the store.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from redsched.errors import Conflict, DefinitionError, NotFound, RedschedError, Unavailable
from redsched.keys import dated_run_id, iso
from redsched.settings import Settings, load_settings
from redsched.states import ENDED, SETTLED
from redsched.store import Store
from redsched.store.codec import RunRecord, TaskRecord, Try
from redsched.store.pool import DEFAULT_POOL

if TYPE_CHECKING:
    from redsched.definition.model import DagSpec
    from redsched.edit import Edit, Graph, Now
    from redsched.editing import Edited
    from redsched.timing import Timing

P = ParamSpec("P")
T = TypeVar("T")

# How long a client that has reached Redis before keeps trying when it goes away (a restart takes about a second).
PATIENCE_S = 10.0
FOLLOW_S = 0.25
EVENTS_BLOCK_MS = 1000
RUNS_AT_ONCE = 100
KNOWN_SPECS = 1000


@dataclass(frozen=True, slots=True)
class LogView:
    """An attempt's log: `data` is what is kept, `size` what was written; `done` when no more can come."""

    attempt: int
    state: str
    data: bytes
    size: int
    done: bool


def manual_run_id(now: datetime | None = None) -> str:
    now = now or datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z-{secrets.token_hex(3)}"


class Client:
    """One installation. `Client()` finds it like the command line does: argument, environment, file, embedded server.

    Raises Unavailable, NotFound, Conflict or DefinitionError, as the name says.
    """

    def __init__(
        self, redis: str | None = None, namespace: str | None = None, *, settings: Settings | None = None
    ) -> None:
        self.settings = settings or load_settings({"redis": redis, "namespace": namespace})
        self.store = Store.open(self.settings, "client")
        self._reached = False
        self._plans: dict[tuple[str, str], tuple[dict[str, Any], list[str]]] = {}
        self._specs: dict[tuple[str, str], DagSpec] = {}

    @classmethod
    def from_url(cls, url: str | None = None, namespace: str | None = None) -> Client:
        return cls(url, namespace)

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _say(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Say it, and say it again while Redis is away, if it was reached before."""
        end, pause = time.monotonic() + PATIENCE_S, 0.05
        while True:
            try:
                answer = call(*args, **kwargs)
            except Unavailable:
                if not self._reached or time.monotonic() + pause > end:
                    raise
                time.sleep(pause)
                pause = min(1.0, pause * 2)
            else:
                self._reached = True
                return answer

    # ---- DAGs

    def register(
        self, dag: DagSpec, *, paused: bool | None = None, path: str = "", dry_run: bool = False
    ) -> dict[str, Any]:
        """Make the definition the DAG's current version. The same content is no new version.

        Raises DefinitionError for a cycle, an unknown pool and the like; nothing has changed then.
        """
        from redsched.definition.plan import compile_plan

        spec = getattr(dag, "spec", dag)
        plan = compile_plan(spec)
        self._say(self._check_pools, spec)
        digest = spec.digest()
        if dry_run:
            return self._say(self._would_register, spec, digest, path)
        for name, slots in spec.pools.items():
            if self._say(self.store.pool.configure, name, slots, only_new=True):
                self._event("pool_set", f"pool {name} made with {slots} slots for DAG {spec.dag}", pool=name)
        info = {
            "schedule": _schedule_text(spec.schedule),
            "description": spec.description,
            "tasks": len(plan.names),
            "timezone": spec.timezone,
            **({"retention": {k: v for k, v in spec.retention if v is not None}} if spec.retention else {}),
        }
        timing = self._timing(spec)
        after = getattr(spec.schedule, "after", None)
        # Written before: a definition that is in force without its trigger would wait for ever.
        self._say(self.store.control.set_after, spec.dag, after)

        def stage_and_register() -> tuple[int, bool]:
            self.store.shard.stage_plan(spec.dag, digest, plan.fields)
            return self.store.shard.register(
                spec.dag,
                digest,
                paused="" if paused is None else str(int(paused)),
                path=path,
                team=spec.team or spec.dag,
                max_active_runs=spec.max_active_runs,
                max_active_tasks=spec.max_active_tasks,
                info=json.dumps(info, ensure_ascii=False),
                schedule=timing.stored,
                slot=timing.slot,
                look=timing.look,
                created=timing.now,
            )

        version, new = self._say(stage_and_register)
        if new:
            self._event(
                "dag_registered", f"DAG {spec.dag} is at version {version}", dag=spec.dag, version=version
            )
        row = {"dag": spec.dag, "version": version, "changed": new, "path": path}
        return {**row, **({"schedule": timing.change} if timing.change else {})}

    def _timing(self, spec: DagSpec) -> Timing:
        from redsched.timing import timing_of

        try:
            known = self._say(self.store.shard.dag_hash, spec.dag)
        except NotFound:
            known = {}
        return timing_of(spec, known, self._say(self.store.control.now))

    def _check_pools(self, spec: DagSpec) -> None:
        wanted = {t.pool for t in spec.tasks.values()} - {DEFAULT_POOL} - set(spec.pools)
        known = self.store.pool.names() if wanted else []
        for task, t in spec.tasks.items():
            if t.pool in wanted and t.pool not in known:
                near = get_close_matches(t.pool, [*known, DEFAULT_POOL], 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise DefinitionError(
                    f"DAG {spec.dag!r}, task {task!r}: pool {t.pool!r} does not exist{hint} Make it with "
                    f"`redsched pool set {t.pool} --slots N`, or write pool: {{name: {t.pool}, slots: N}}"
                )
        sizes = {p: self.store.pool.show(p)["slots"] for p in known if p in wanted} | spec.pools
        for task, t in spec.tasks.items():
            size = sizes.get(t.pool)
            if size is not None and size > 0 and t.pool_slots > size:
                raise DefinitionError(
                    f"DAG {spec.dag!r}, task {task!r}: pool_slots {t.pool_slots} is more than pool {t.pool!r} has ({size})"
                )

    def _would_register(self, spec: DagSpec, digest: str, path: str) -> dict[str, Any]:
        try:
            known = self.store.shard.dag_hash(spec.dag)
        except NotFound:
            known = {}
        version, same = int(known.get("version", 0)), known.get("digest") == digest
        return {
            "dag": spec.dag,
            "version": version if same else version + 1,
            "changed": not same,
            "path": path,
        }

    def dags(self) -> list[dict[str, Any]]:
        """All DAGs by name, with their current version."""
        names = sorted(self._say(self.store.shard.all_dags))
        rows = self._say(self.store.shard.dag_hashes, names)
        return [
            _dag_row(n, known, active)
            for n, (known, active) in zip(names, rows, strict=True)
            if known and "deleted" not in known
        ]

    def dag(self, dag: str) -> dict[str, Any]:
        """One DAG with its `spec`. Raises NotFound with close matches."""
        known = self._dag_hash(dag)
        ((_, active),) = self._say(self.store.shard.dag_hashes, [dag])
        return {**_dag_row(dag, known, active), "spec": self._plan(dag, known["digest"])[0]}

    def versions(self, dag: str) -> list[dict[str, Any]]:
        """All versions, the newest first."""
        known = self._dag_hash(dag)
        rows = []
        for version in range(int(known["version"]), 0, -1):
            digest, ms, path = known[f"v{version}"].split(",", 2)
            rows.append(
                {
                    "version": version,
                    "digest": digest,
                    "registered_at": iso(int(ms)),
                    "path": path,
                    "current": version == int(known["version"]),
                }
            )
        return rows

    def pause(self, dag: str) -> dict[str, Any]:
        """Nothing of the DAG starts any more, until `resume`; what runs goes on."""
        return self._pause(dag, True)

    def resume(self, dag: str) -> dict[str, Any]:
        return self._pause(dag, False)

    def _pause(self, dag: str, paused: bool) -> dict[str, Any]:
        self._dag_hash(dag)
        changed = self._say(self.store.shard.pause, dag, paused)
        if changed:
            word = "paused" if paused else "resumed"
            self._event(f"dag_{word}", f"DAG {dag} {word}", dag=dag)
        return {"dag": dag, "paused": paused, "changed": changed}

    def delete(self, dag: str, force: bool = False) -> dict[str, Any]:
        """Delete the DAG with all its runs. With active runs it is refused, unless `force`: then they are stopped."""
        try:
            word, active = self._say(self.store.shard.delete_dag, dag, "begin", force=force)
        except NotFound:
            raise self._no_dag(dag) from None
        if word == "ACTIVE":
            raise Conflict(f"DAG {dag!r} has {active} active runs; cancel them, or delete with --force")
        self._say(self.store.control.set_after, dag, None)
        stopped, gone = 0, 0
        while True:
            for run in self._say(self.store.shard.run_ids, dag, 0, 500):
                stopped += self._forget(dag, run)
                gone += 1
            try:
                word, _ = self._say(self.store.shard.delete_dag, dag, "finish")
            except NotFound:
                word = "OK"  # it was said before, and its reply was lost
            if word == "OK":
                self._event("dag_deleted", f"DAG {dag} deleted with {gone} runs", dag=dag, runs=gone)
                return {"dag": dag, "runs_deleted": gone, "stopped": stopped}

    def _forget(self, dag: str, run: str) -> int:
        from redsched.editing import thawed

        stopped = 0
        thawed(self.store, dag, run, self._say)
        try:
            stopped = self._say(self.store.shard.cancel_run, dag, run)[2]
            if stopped:
                self._say(self.store.shard.revoke_stops, self.store.shard.of(dag))
        except NotFound:
            pass
        self._say(self.store.shard.forget_run, dag, run, force=True)
        return stopped

    def _dag_hash(self, dag: str) -> dict[str, str]:
        try:
            return self._say(self.store.shard.dag_hash, dag)
        except NotFound:
            raise self._no_dag(dag) from None

    def _no_dag(self, dag: str) -> NotFound:
        near = get_close_matches(dag, self.store.shard.all_dags(), 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; see: redsched dag list"
        return NotFound(f"DAG {dag!r} does not exist{hint}")

    def _plan(self, dag: str, digest: str) -> tuple[dict[str, Any], list[str]]:
        key = (dag, digest)
        if key not in self._plans:
            self._plans[key] = self._say(self.store.shard.plan, dag, digest)
        return self._plans[key]

    # ---- runs

    def trigger(
        self,
        dag: str,
        params: dict[str, Any] | None = None,
        *,
        date: datetime | None = None,
        run: str | None = None,
    ) -> dict[str, Any]:
        """Start a run of the current version. Raises Conflict if the id or the logical date is taken."""
        from redsched.definition.model import check_id

        spec = self._spec(dag)
        text, keys = self._values(spec, params)
        if run is not None:
            check_id(run, "run id")
        logical = None if date is None else int(aware(date, spec.timezone).timestamp() * 1000)
        while True:
            run_id = run or (manual_run_id() if logical is None else dated_run_id(logical))
            nonce = secrets.token_hex(6)
            created, state, found = self._say(
                self.store.shard.create_run, dag, run_id, "manual", logical, text, nonce, keys
            )
            if created:
                return {"dag": dag, "run": run_id, "state": state}
            if run is not None or logical is not None:
                what = f"logical date {iso(logical)}" if found != run else f"id {run!r}"
                raise Conflict(f"DAG {dag!r} has a run with {what} already: {found} ({state})")

    def trigger_many(self, dag: str, runs: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
        """Start a run for each of these params, many in a round trip; the answers come in their order.

        All params are checked before the first run is made. Raises what `trigger` raises.
        """
        spec, name = self._spec(dag), manual_run_id()
        wanted = [
            (f"{name}.{i}", *self._values(spec, params), secrets.token_hex(6))
            for i, params in enumerate(runs)
        ]
        made: list[dict[str, Any]] = []
        for i in range(0, len(wanted), RUNS_AT_ONCE):
            answers = self._say(self.store.shard.create_runs, dag, wanted[i : i + RUNS_AT_ONCE])
            made += [{"dag": dag, "run": run, "state": state} for run, state in answers]
        return made

    def _spec(self, dag: str) -> DagSpec:
        """The current version, checked once a digest."""
        from redsched.definition.model import DagSpec

        digest = self._dag_hash(dag)["digest"]
        spec = self._specs.get((dag, digest))
        if spec is None:
            spec = self._specs[dag, digest] = DagSpec.model_validate(self._plan(dag, digest)[0])
            if len(self._specs) > KNOWN_SPECS:
                del self._specs[next(iter(self._specs))]
        return spec

    def _values(self, spec: DagSpec, params: dict[str, Any] | None) -> tuple[str, dict[int, str]]:
        """(params as JSON, '' for none; concurrency keys by task index)."""
        from redsched.definition.model import parse_params
        from redsched.definition.plan import concurrency_keys

        values = parse_params(spec, params or {})
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":")) if values else ""
        if len(text.encode()) > self.settings.params_limit:
            raise DefinitionError(
                f"params of DAG {spec.dag!r}: {len(text.encode())} bytes > limit {self.settings.params_limit}; "
                "pass a reference (a path, a key) instead of the data"
            )
        return text, concurrency_keys(spec, values)

    def run(self, dag: str, run: str) -> dict[str, Any]:
        """One run with all its tasks; `latest` is the newest. Raises NotFound."""
        run = self._resolve(dag, run)
        record = self._record(dag, run)
        return self._show(dag, run, record)

    def _record(self, dag: str, run: str) -> RunRecord:
        try:
            return self._say(self.store.shard.record, dag, run)
        except NotFound:
            self._dag_hash(dag)
            near = get_close_matches(run, self.store.shard.run_ids(dag, 0, 200), 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; see: redsched run list --dag {dag}"
            raise NotFound(f"run {run!r} of DAG {dag!r} does not exist{hint}") from None

    def _resolve(self, dag: str, run: str) -> str:
        if run != "latest":
            return run
        newest = self._say(self.store.shard.run_ids, dag, 0, 1)
        if not newest:
            self._dag_hash(dag)
            raise NotFound(f"DAG {dag!r} has no runs; start one with: redsched run start {dag}")
        return newest[0]

    def _show(self, dag: str, run: str, record: RunRecord) -> dict[str, Any]:
        spec, names = self._plan(dag, record.digest)
        tasks = [record.task(i) for i in range(len(names))]
        histories = record.histories()
        seen = {t.worker for t in tasks} | {old.worker for tries in histories.values() for _, old in tries}
        workers = self._say(self.store.control.worker_names, {n for n in seen if n is not None})
        return {
            **self._row(dag, run, record),
            "version": record.version,
            "created_at": iso(record.created),
            "params": self._say(self.store.shard.params, dag, run) if record.has_params else {},
            "tasks": {
                name: self._task(record, i, t, spec["tasks"][name], workers, histories.get(i, []))
                for i, (name, t) in enumerate(zip(names, tasks, strict=True))
            },
        }

    @staticmethod
    def _row(dag: str, run: str, record: RunRecord) -> dict[str, Any]:
        return {
            "dag": dag,
            "run": run,
            "state": record.state,
            "kind": record.kind,
            "logical_date": iso(record.logical),
            "started_at": iso(record.started),
            "ended_at": iso(record.ended),
            **({"late": True} if record.late else {}),
        }

    @staticmethod
    def _task(
        record: RunRecord,
        index: int,
        t: TaskRecord,
        spec: dict[str, Any],
        workers: dict[int, str],
        history: list[tuple[int, Try]],
    ) -> dict[str, Any]:
        def at(ms: int | None) -> str | None:
            return None if ms is None else iso(record.created + ms)

        last = record.attempt(index, t.attempt)
        reason = last.reason if last and t.state != "success" else ""
        if t.state == "upstream_failed":
            reason = "an upstream task failed"
        return {
            "state": t.state,
            "attempt": t.attempt,
            "pool": spec.get("pool", DEFAULT_POOL),
            "worker": None if t.worker is None else workers.get(t.worker, f"worker {t.worker}"),
            "ready_at": at(t.ready),
            "queued_at": at(t.queued),
            "started_at": at(t.started),
            "ended_at": at(t.ended),
            "reason": reason or None,
            "history": [
                {
                    "attempt": number,
                    "outcome": ended.outcome,
                    "started_at": at(ended.started),
                    "ended_at": at(ended.ended),
                    "worker": None if ended.worker is None else workers.get(ended.worker),
                    "reason": ended.reason or None,
                }
                for number, ended in history
            ],
        }

    def runs(
        self,
        dag: str | None = None,
        state: str | None = None,
        limit: int = 50,
        *,
        include_skipped: bool = False,
    ) -> list[dict[str, Any]]:
        """Runs, the newest first; over all DAGs those that are active, and the last thousand a shard.

        `include_skipped`: beside the runs of a DAG its slots that became none, with the reason.
        """
        if include_skipped and dag is None:
            raise DefinitionError("skipped slots are listed for one DAG: name it")
        if dag is not None:
            self._dag_hash(dag)
            rows = self._runs_of(dag, state, limit)
            return (
                _with_skipped(dag, rows, self._say(self.store.shard.skips, dag, limit))[:limit]
                if (include_skipped)
                else rows
            )
        lists = {"queued": "queued_runs", "running": "running_runs"}
        wanted = limit if state is None or state in lists else 1000
        pairs = self._say(self.store.shard.recent_runs, lists.get(state or "", "recent"), wanted)
        records = self._say(self.store.shard.records, pairs) if pairs else []
        rows = [self._row(d, r, x) for (d, r), x in zip(pairs, records, strict=True) if x is not None]
        return [r for r in rows if state is None or r["state"] == state][:limit]

    def _runs_of(self, dag: str, state: str | None, limit: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        offset, page = 0, max(limit, 100)
        while len(rows) < limit:
            ids = self._say(self.store.shard.run_ids, dag, offset, page)
            if not ids:
                break
            records = self._say(self.store.shard.records, [(dag, r) for r in ids])
            rows += [
                self._row(dag, r, x)
                for r, x in zip(ids, records, strict=True)
                if x is not None and (state is None or x.state == state)
            ]
            offset += page
        return rows[:limit]

    def wait(self, dag: str, run: str, timeout: float | None = None) -> dict[str, Any]:
        """Until the run has ended; returns it. Raises TimeoutError after `timeout` seconds."""
        run = self._resolve(dag, run)
        end, pause = None if timeout is None else time.monotonic() + timeout, 0.01
        while True:
            record = self._record(dag, run)
            if record.state in ENDED:
                return self._show(dag, run, record)
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"run {run} of DAG {dag} is still {record.state} after {timeout} s")
            time.sleep(pause)
            pause = min(0.25, pause * 1.5)

    def cancel(self, dag: str, run: str) -> dict[str, Any]:
        """Nothing of the run starts any more; what runs is stopped. Raises Conflict if it has ended."""
        run = self._resolve(dag, run)
        from redsched.editing import thawed

        self._record(dag, run)
        thawed(self.store, dag, run, self._say)
        changed, state, stopped = self._say(self.store.shard.cancel_run, dag, run)
        if not changed and state != "cancelled":
            raise Conflict(f"run {run} of DAG {dag} has ended already")
        self._say(self.store.shard.revoke_stops, self.store.shard.of(dag))
        if changed:
            text = f"run {run} of {dag} cancelled, {stopped} attempts stopped"
            self._event("run_cancelled", text, dag=dag, run=run, stopped=stopped)
        return {"dag": dag, "run": run, "state": state, "stopped": stopped}

    def clear(
        self,
        dag: str,
        run: str,
        tasks: Sequence[str] | None = None,
        *,
        downstream: bool = False,
        upstream: bool = False,
        only_failed: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Let tasks run again (None: all of the run), with a fresh budget of retries, in one step.

        What was skipped or upstream_failed only because of them opens again by itself; running attempts are stopped.
        `dry_run` tells exactly what would happen. The run stays on its version.
        """
        from redsched.edit import plan_clear, select

        def plan(graph: Graph, now: Now) -> Edit:
            chosen = None if tasks is None else self._indexes(dag, graph.names, tasks)
            named = select(
                graph, now, chosen, downstream=downstream, upstream=upstream, only_failed=only_failed
            )
            return plan_clear(graph, now, named)

        run = self._resolve(dag, run)
        done = self._edit(dag, run, plan, dry_run)
        if done.edit.cleared and not dry_run:
            text = f"{len(done.edit.cleared)} tasks of run {run} of {dag} cleared"
            self._event("run_cleared", text, dag=dag, run=run, stopped=done.stopped)
        return {
            "dag": dag,
            "run": run,
            "version": done.version,
            "cleared": [done.names[i] for i in done.edit.cleared],
            "run_state": done.run_state,
            "stopped": done.stopped,
        }

    def runs_between(self, dag: str, first_ms: int, last_ms: int) -> list[str]:
        """Runs with a logical date in the range (inclusive), the oldest first."""
        self._dag_hash(dag)
        return self._say(self.store.shard.runs_between, dag, first_ms, last_ms)

    def mark(self, dag: str, run: str, state: str, task: str | None = None) -> dict[str, Any]:
        """Settle a task (or all of the run that is not settled well) as success, failed or skipped: final at once."""
        from redsched.edit import LETTER, plan_mark

        if state not in LETTER or state == "upstream_failed":
            raise DefinitionError(f"state {state!r}: write success, failed or skipped")

        def plan(graph: Graph, now: Now) -> Edit:
            if task is not None:
                return plan_mark(graph, now, dict.fromkeys(self._indexes(dag, graph.names, [task]), state))
            left = [i for i, s in enumerate(now.states) if s not in ("success", "skipped")]
            return plan_mark(graph, now, dict.fromkeys(left, state))

        run = self._resolve(dag, run)
        done = self._edit(dag, run, plan, False)
        if done.edit.changes:
            text = f"{task or 'all that did not end well'} in run {run} of {dag} marked {state}"
            self._event("run_marked", text, dag=dag, run=run, task=task, state=state)
        return {
            "dag": dag,
            "run": run,
            "marked": [done.names[i] for i, c in done.edit.changes.items() if c.startswith("mark:")],
            "reopened": [done.names[i] for i in done.edit.cleared],
            "run_state": done.run_state,
            "stopped": done.stopped,
        }

    @staticmethod
    def _indexes(dag: str, names: Sequence[str], tasks: Sequence[str]) -> list[int]:
        index = {n: i for i, n in enumerate(names)}
        for task in tasks:
            if task not in index:
                near = get_close_matches(task, names, 3)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                raise NotFound(f"DAG {dag!r} has no task {task!r}{hint}")
        return [index[t] for t in tasks]

    def _edit(self, dag: str, run: str, plan: Callable[[Graph, Now], Edit], dry_run: bool) -> Edited:
        from redsched.editing import edit_run

        self._record(dag, run)
        return edit_run(self.store, dag, run, plan, dry_run=dry_run, say=self._say)

    def explain(self, dag: str, run: str, task: str | None = None) -> list[dict[str, Any]]:
        """Why tasks are not running: for each, what it waits for, and whether that clears by itself."""
        from redsched.explain import explain

        return explain(self, dag, self._resolve(dag, run), task)

    def critical_path(
        self,
        dag: str,
        run: str | None = None,
        *,
        last: int = 1,
        what_if: dict[str, int] | None = None,
        pools: dict[str, int] | None = None,
    ) -> dict[str, Any]:
        """Where the time of a run went (or the medians of the last n), and what other durations or slots would change."""
        from redsched.critical_path import of_client

        return of_client(self, dag, run, last=last, what_if=what_if, pools=pools)

    # ---- backfills

    def backfill(
        self,
        dag: str,
        first: datetime,
        last: datetime,
        *,
        max_active: int = 4,
        order: str = "oldest",
        on_existing: str = "skip",
        every_ms: int | None = None,
        params: dict[str, Any] | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Runs for the logical dates of the DAG's schedule from `first` to `last`, both inclusive, made as room allows.

        `every_ms`: the distance, for a DAG without a schedule. `dry_run`: the plan only. Raises Conflict, naming the
        backfill, if the range overlaps one that is active.
        """
        from redsched.backfill import start

        return start(
            self,
            dag,
            first,
            last,
            max_active=max_active,
            order=order,
            on_existing=on_existing,
            every_ms=every_ms,
            params=params or {},
            dry_run=dry_run,
        )

    def backfills(self, dag: str | None = None) -> list[dict[str, Any]]:
        """All backfills, or those of a DAG, the newest first."""
        from redsched.backfill import listed

        return listed(self, dag)

    def backfill_show(self, ident: str) -> dict[str, Any]:
        """One backfill with its progress. Raises NotFound."""
        from redsched.backfill import show

        return show(self, ident)

    def backfill_set(self, ident: str, state: str) -> dict[str, Any]:
        """`paused`, `running` again, or `cancelled`: then its active runs are cancelled, too. Raises Conflict if it is over."""
        from redsched.backfill import set_state

        return set_state(self, ident, state)

    # ---- logs

    def logs(self, dag: str, run: str, task: str, attempt: int | None = None) -> LogView:
        """The log of an attempt, the latest if none is named. Raises NotFound."""
        return self._log(dag, self._resolve(dag, run), task, attempt, 0)

    def _log(self, dag: str, run: str, task: str, attempt: int | None, start: int) -> LogView:
        record = self._record(dag, run)
        names = self._plan(dag, record.digest)[1]
        if task not in names:
            near = get_close_matches(task, names, 3)
            raise NotFound(
                f"DAG {dag!r} has no task {task!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
            )
        index = names.index(task)
        t = record.task(index)
        last = record.last_attempt(index)
        number = attempt if attempt is not None else t.attempt or last
        if number > last or number < 0 or (attempt is not None and attempt == 0):
            tried = f"attempts 1 to {last}" if last else "not been tried"
            raise NotFound(f"task {task!r} of run {run} has {tried}; there is no attempt {number}")
        found = self._say(self.store.shard.log_read, dag, run, index, number, start) if number else None
        data, size = found or (b"", 0)
        over = number < last or t.state in SETTLED or t.state == "retrying"
        return LogView(number, t.state, data, size, over)

    def follow_logs(self, dag: str, run: str, task: str, attempt: int | None = None) -> Iterator[bytes]:
        """Pieces of the log as they are written, over all attempts to come, until the task has settled."""
        run = self._resolve(dag, run)
        number, start = attempt, 0
        while True:
            view = self._log(dag, run, task, number, start)
            if number is None and view.attempt:
                number = view.attempt
                view = self._log(dag, run, task, number, start)
            if view.data:
                start = view.size
                yield view.data
            if view.done and not view.data:
                if attempt is not None or (
                    view.state in SETTLED and view.attempt == self._latest(dag, run, task)
                ):
                    return
                if view.attempt < self._latest(dag, run, task):
                    number, start = view.attempt + 1, 0
                    continue
            time.sleep(FOLLOW_S)

    def _latest(self, dag: str, run: str, task: str) -> int:
        record = self._record(dag, run)
        return record.task(self._plan(dag, record.digest)[1].index(task)).attempt

    def result(self, dag: str, run: str, task: str) -> Any:
        """What the attempt that settled the task returned; None if there is nothing."""
        run = self._resolve(dag, run)
        record = self._record(dag, run)
        names = self._plan(dag, record.digest)[1]
        if task not in names:
            raise NotFound(f"DAG {dag!r} has no task {task!r}")
        index = names.index(task)
        t = record.task(index)
        if t.state != "success":
            return None
        return self._say(self.store.shard.result, dag, run, index, t.attempt)

    # ---- pools

    def set_pool(self, name: str, slots: int) -> dict[str, Any]:
        """Make a pool or change its slots; 0 closes it."""
        from redsched.definition.model import check_id

        check_id(name, "pool")
        if slots < 0:
            raise DefinitionError(f"pool {name!r}: slots {slots}; write a whole number from 0 (closed) up")
        new = self._say(self.store.pool.configure, name, slots)
        text = f"pool {name} {'made with' if new else 'has'} {slots} slots"
        self._event("pool_set", text, pool=name, slots=slots)
        return {**self.pool(name), "changed": True, "new": new}

    def pools(self) -> list[dict[str, Any]]:
        rows = []
        for name in self._say(self.store.pool.names):
            try:
                rows.append(self.pool(name))
            except NotFound:
                continue
        return rows

    def pool(self, name: str) -> dict[str, Any]:
        try:
            return self._say(self.store.pool.show, name)
        except NotFound:
            near = get_close_matches(name, self.store.pool.names(), 1)
            hint = f"; did you mean {near[0]}?" if near else "; see: redsched pool list"
            raise NotFound(f"pool {name!r} does not exist{hint}") from None

    def delete_pool(self, name: str) -> dict[str, Any]:
        if name not in self._say(self.store.pool.names):
            self.pool(name)  # says what is there instead
        try:
            left = self._say(self.store.pool.delete, name)
        except NotFound:
            left = 0  # it was said before, and its reply was lost
        if left:
            raise Conflict(
                f"pool {name!r} holds {left} tasks; let them end, or cancel their runs, then delete it"
            )
        self._say(self.store.pool.forget, name)
        self._event("pool_deleted", f"pool {name} deleted", pool=name)
        return {"pool": name, "deleted": True}

    # ---- the installation

    def _event(self, kind: str, text: str, **data: Any) -> None:
        """What a person did, told once it is done."""
        self.store.events.add_by_person(kind, text, **data)

    def events(self, limit: int = 50) -> list[dict[str, Any]]:
        """What happened to the installation itself (the last 5000 events are kept), the oldest first."""
        return [e.shown() for e in self._say(self.store.events.last, limit)] if limit > 0 else []

    def follow_events(self, after: str = "$") -> Iterator[dict[str, Any]]:
        """Events as they come, after the one with this id; waits for ever."""
        last = after
        if after == "$":
            newest = self._say(self.store.events.last, 1)
            last = newest[-1].id if newest else "0-0"
        while True:
            for event in self._say(self.store.events.after, last, EVENTS_BLOCK_MS):
                last = event.id
                yield event.shown()

    def shards(self) -> list[dict[str, Any]]:
        """Each shard with its owner, fence and what waits there. `expires_in`: seconds left of the owner's lease."""
        alive = self._say(self.store.control.schedulers)
        rows = []
        for row in self._say(self.store.shard.overview):
            owner = row["token"].rpartition(":")[0]
            left = alive.get(owner, 0) / 1000
            rows.append(
                {
                    "shard": row["shard"],
                    "owner": owner or None,
                    "fence": row["fence"],
                    "expires_in": round(max(0.0, left), 3),
                    "inbox": row["inbox"],
                    "ready": row["ready"],
                    "refused_writes": row["refused"],
                    "stale_reports": row["stale"],
                    "dags": row["dags"],
                    "runs_queued": row["queued"],
                    "runs_running": row["running"],
                }
            )
        return rows

    def schedulers(self) -> list[dict[str, Any]]:
        leader = self._say(self.store.control.leader)
        return [
            {
                "scheduler": name,
                "expires_in": round(left / 1000, 3),
                "leader": leader.rpartition(":")[0] == name,
            }
            for name, left in sorted(self._say(self.store.control.schedulers).items())
            if left > 0
        ]

    def workers(self) -> list[dict[str, Any]]:
        now = time.time()
        return [
            {
                "worker": w["worker"],
                "pools": w.get("pools", []),
                "concurrency": w.get("concurrency", 0),
                "running": w.get("running", 0),
                "last_seen": iso(int(now * 1000) - w["silent_ms"]),
                **{k: w[k] for k in ("host", "pid", "version", "started_at") if k in w},
            }
            for w in self._say(self.store.control.workers)
        ]

    def status(self) -> dict[str, Any]:
        """One screen: who is alive, what runs, what waits, what is wrong."""
        from redsched.settings import mask_url

        shards = self._say(self.store.shard.overview)
        schedulers, workers, pools = self.schedulers(), self.workers(), self.pools()
        ready = [s["oldest_ready"] for s in shards if s["oldest_ready"] is not None]
        oldest = round(max(0.0, time.time() - min(ready) / 1000), 1) if ready else None
        served = {p for w in workers for p in w["pools"]}
        warnings = []
        if not schedulers:
            warnings.append(
                "no scheduler is alive: nothing starts; run `redsched scheduler` or `redsched up`"
            )
        for p in pools:
            if (p["waiting"] or p["used"] > p["running"]) and p["pool"] not in served:
                warnings.append(
                    f"no worker serves pool {p['pool']!r}: run `redsched worker --pool {p['pool']}`"
                )
        if not workers and not any("no worker serves" in w for w in warnings):
            warnings.append("no worker is alive: tasks are queued and wait; run `redsched worker`")
        return {
            "redis": {"url": mask_url(self.settings.redis or ""), **self._server()},
            "schedulers": len(schedulers),
            "workers": len(workers),
            "dags": sum(s["dags"] for s in shards),
            "runs": {
                "queued": sum(s["queued"] for s in shards),
                "running": sum(s["running"] for s in shards),
            },
            "pools": pools,
            "oldest_ready_s": oldest,
            "inbox": sum(s["inbox"] for s in shards),
            "refused_writes": sum(s["refused"] for s in shards),
            "warnings": warnings,
        }

    def _server(self) -> dict[str, Any]:
        from redsched.store.connect import server

        try:
            found = server(self.store.client)
        except RedschedError:
            return {"version": None}
        return {"version": f"{found.name} {found.version}"}


def aware(date: datetime, zone: str) -> datetime:
    """Without a zone an instant is read in the DAG's."""
    from zoneinfo import ZoneInfo

    return date if date.tzinfo else date.replace(tzinfo=ZoneInfo(zone))


def _schedule_text(schedule: Any) -> str | None:
    if schedule is None or isinstance(schedule, str):
        return schedule
    return json.dumps(schedule if isinstance(schedule, dict) else schedule.model_dump(mode="json"))


def _with_skipped(dag: str, rows: list[dict[str, Any]], skips: list[tuple[int, str]]) -> list[dict[str, Any]]:
    """Slots that became no run among the runs, by logical date (runs without one by their start), the newest first."""
    skipped = [
        {
            "dag": dag,
            "run": None,
            "state": "skipped",
            "kind": "scheduled",
            "logical_date": iso(ms),
            "started_at": None,
            "ended_at": None,
            "reason": reason,
        }
        for ms, reason in skips
    ]
    return sorted([*rows, *skipped], key=lambda r: r["logical_date"] or r["started_at"] or "9", reverse=True)


def _dag_row(name: str, known: dict[str, str], active: int) -> dict[str, Any]:
    info = json.loads(known.get("info", "{}"))
    registered = known.get(f"v{known['version']}", ",0,").split(",")[1]
    return {
        "dag": name,
        "version": int(known["version"]),
        "paused": known.get("paused") == "1",
        "schedule": info.get("schedule"),
        "timezone": info.get("timezone", "UTC"),
        "team": known.get("team"),
        "description": info.get("description", ""),
        "tasks": info.get("tasks", 0),
        "path": known.get("path", ""),
        "registered_at": iso(int(registered)),
        "active_runs": active,
        "next": iso(int(known["slot"])) if known.get("slot") else None,
    }


def _in_thread(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    """The method in a worker thread: a call to Redis is short, and never cancelled half-way."""

    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        import asyncio

        return await asyncio.to_thread(method, self.client, *args, **kwargs)

    call.__doc__ = method.__doc__
    return call


class AsyncClient:
    """`Client` for asyncio: the same methods, to be awaited."""

    def __init__(
        self, redis: str | None = None, namespace: str | None = None, *, settings: Settings | None = None
    ) -> None:
        self.client = Client(redis, namespace, settings=settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.close()

    register = _in_thread(Client.register)
    dags = _in_thread(Client.dags)
    dag = _in_thread(Client.dag)
    versions = _in_thread(Client.versions)
    pause = _in_thread(Client.pause)
    resume = _in_thread(Client.resume)
    delete = _in_thread(Client.delete)
    trigger = _in_thread(Client.trigger)
    trigger_many = _in_thread(Client.trigger_many)
    run = _in_thread(Client.run)
    runs = _in_thread(Client.runs)
    wait = _in_thread(Client.wait)
    cancel = _in_thread(Client.cancel)
    clear = _in_thread(Client.clear)
    mark = _in_thread(Client.mark)
    explain = _in_thread(Client.explain)
    backfill = _in_thread(Client.backfill)
    backfills = _in_thread(Client.backfills)
    backfill_show = _in_thread(Client.backfill_show)
    backfill_set = _in_thread(Client.backfill_set)
    critical_path = _in_thread(Client.critical_path)
    logs = _in_thread(Client.logs)
    result = _in_thread(Client.result)
    events = _in_thread(Client.events)
    set_pool = _in_thread(Client.set_pool)
    pools = _in_thread(Client.pools)
    pool = _in_thread(Client.pool)
    delete_pool = _in_thread(Client.delete_pool)
    shards = _in_thread(Client.shards)
    schedulers = _in_thread(Client.schedulers)
    workers = _in_thread(Client.workers)
    status = _in_thread(Client.status)
