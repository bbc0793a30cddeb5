"""A run in this process, without Redis: for tests, debuggers and `redsched dag test`.

Same rules as in a real run, but one task at a time, retries at once, and no pools or limits. A
time-out stops commands only; a Python body is run in the caller's thread, where breakpoints work.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple

from redsched.context import Branch, Context, Fail, Retry, Skip, running
from redsched.definition.model import DagSpec, TaskSpec
from redsched.definition.params import parse_params, render_params
from redsched.definition.plan import check_graph, not_chosen
from redsched.definition.python import Body, bind_inputs, call_body, resolve_call
from redsched.definition.values import instant_text, references
from redsched.errors import DefinitionError, NotFound
from redsched.rules import decide
from redsched.states import RunState, TaskState

RUN_ID: Final = "test"
_ENV_VALUE_LIMIT: Final = 100 * 1024  # bytes; Linux takes 128 KiB a string
_MARK: Final = re.compile(r"^::(result|branch):: (.*)$", re.MULTILINE)


@dataclass(slots=True)
class TaskTrial:
    """How a task ended. `exception` is what its body raised; `output` what its command printed."""

    state: TaskState = "none"
    result: Any = None
    error: str = ""
    exception: BaseException | None = None
    output: str = ""
    attempts: int = 0


@dataclass(slots=True)
class Trial:
    """How the run ended."""

    dag: str
    state: RunState
    params: dict[str, Any]
    tasks: dict[str, TaskTrial]

    def result(self, task: str) -> Any:
        """The result of a task, as its downstream got it."""
        if task not in self.tasks:
            raise NotFound(f"DAG {self.dag} has no task {task!r}; it has: {', '.join(list(self.tasks)[:20])}")
        return self.tasks[task].result


class _Outcome(NamedTuple):
    state: Literal["success", "failed", "skipped"]
    error: str = ""
    result: Any = None
    exception: BaseException | None = None
    final: bool = False
    choice: tuple[str, ...] | None = None
    output: str = ""


def try_dag(
    spec: DagSpec,
    params: Mapping[str, Any] | None = None,
    *,
    bodies: Mapping[str, Body] | None = None,
    logical_date: datetime | None = None,
) -> Trial:
    """Run the DAG here and now. `bodies`: functions by task, instead of importing what `call:` names."""
    check_graph(spec)
    moment = logical_date or datetime.now(UTC).replace(microsecond=0)
    values = render_params(spec, parse_params(spec, params or {}), logical_date=moment)
    machine = _Machine(spec, values, bodies or {}, moment)
    machine.run()
    bad = (t.state == "failed" and not spec.tasks[name].allow_failure for name, t in machine.tasks.items())
    return Trial(spec.dag, "failed" if any(bad) else "success", values, machine.tasks)


@dataclass(slots=True)
class _Counts:
    success: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass(slots=True)
class _Machine:
    """The states of the tasks, and which is next: the one defined first among those that may run."""

    spec: DagSpec
    params: dict[str, Any]
    bodies: Mapping[str, Body]
    moment: datetime
    tasks: dict[str, TaskTrial] = field(init=False)
    names: list[str] = field(init=False)
    index: dict[str, int] = field(init=False)
    downstream: dict[str, list[str]] = field(init=False)
    counts: dict[str, _Counts] = field(init=False)
    claims: set[tuple[str, str]] = field(default_factory=set)
    ready: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = list(self.spec.tasks)
        self.index = {name: i for i, name in enumerate(self.names)}
        self.tasks = {name: TaskTrial() for name in self.names}
        self.counts = {name: _Counts() for name in self.names}
        self.downstream = {name: [] for name in self.names}
        for name, task in self.spec.tasks.items():
            for other in task.needs:
                self.downstream[other].append(name)

    def run(self) -> None:
        for name, task in self.spec.tasks.items():
            if not task.needs or task.trigger_rule == "always":
                self._make_ready(name)
        while self.ready:
            self._run_task(self.names[heapq.heappop(self.ready)])

    def _make_ready(self, name: str) -> None:
        self.tasks[name].state = "ready"
        heapq.heappush(self.ready, self.index[name])

    def _run_task(self, name: str) -> None:
        task, trial = self.spec.tasks[name], self.tasks[name]
        unchosen: list[str] = []
        while True:
            trial.attempts += 1
            outcome = self._attempt(name, task, trial.attempts)
            if outcome.choice is not None:
                needs = {other: spec.needs for other, spec in self.spec.tasks.items()}
                try:
                    unchosen = not_chosen(needs, name, outcome.choice)
                except DefinitionError as error:
                    outcome = _Outcome("failed", str(error), exception=error, final=True)
            if outcome.state != "failed" or outcome.final or trial.attempts > task.retries:
                break
        trial.result, trial.error, trial.exception = outcome.result, outcome.error, outcome.exception
        trial.output = outcome.output
        self._settle(name, outcome.state, unchosen)

    def _settle(self, name: str, state: TaskState, unchosen: list[str]) -> None:
        """This task's end, and what follows from it without running anything."""
        self.tasks[name].state = state
        todo = [(name, set(unchosen))]
        while todo:
            done, skips = todo.pop()
            for child in self.downstream[done]:
                if self.tasks[child].state != "none":
                    continue
                verdict = "skipped" if child in skips else self._told(child, self.tasks[done].state)
                if verdict == "run":
                    self._make_ready(child)
                elif verdict != "wait":
                    self.tasks[child].state = verdict
                    todo.append((child, set()))

    def _told(self, name: str, state: TaskState) -> Literal["wait", "run", "skipped", "upstream_failed"]:
        counts, task = self.counts[name], self.spec.tasks[name]
        kind = "failed" if state == "upstream_failed" else state
        setattr(counts, kind, getattr(counts, kind) + 1)
        return decide(task.trigger_rule, len(task.needs), counts.success, counts.failed, counts.skipped)

    def _attempt(self, name: str, task: TaskSpec, attempt: int) -> _Outcome:
        results = {other: self.tasks[other].result for other in task.needs}
        inputs = bind_inputs(task, results, self.params)
        context = Context(
            dag=self.spec.dag,
            run=RUN_ID,
            task=name,
            attempt=attempt,
            logical_date=self.moment,
            data_interval_start=self.moment,
            data_interval_end=self.moment,
            params=self.params,
            claim=lambda step: self._claim(name, step),
            undo=lambda step: self.claims.discard((name, step)),
        )
        if task.call is not None:
            return _call(context, task, self.bodies.get(name), inputs)
        asked = {other: results[other] for other in references(task.with_) if other in results}
        return _command(context, task, task.cwd or self.spec.cwd, {**inputs, **asked})

    def _claim(self, name: str, step: str) -> bool:
        first = (name, step) not in self.claims
        self.claims.add((name, step))
        return first


# ── Python bodies ────────────────────────────────────────────────────────────────────────────────


def _call(context: Context, task: TaskSpec, body: Body | None, inputs: dict[str, Any]) -> _Outcome:
    try:
        with running(context):
            value = call_body(body or resolve_call(task.call or ""), inputs)
    except Skip as wish:
        return _Outcome("skipped", wish.reason)
    except Fail as wish:
        return _Outcome("failed", wish.reason or "Fail", exception=wish, final=True)
    except Retry as wish:
        return _Outcome("failed", wish.reason or "Retry", exception=wish)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        return _exited(task, code)._replace(exception=end)
    except Exception as error:  # noqa: BLE001 - because a body may raise anything, and that is its outcome
        return _Outcome("failed", f"{type(error).__name__}: {error}", exception=error)
    if isinstance(value, Branch):
        return _Outcome("success", choice=value.names)
    return _with_result(value)


def _with_result(value: Any) -> _Outcome:
    """Through JSON and back, so that the downstream sees here what it will see in a real run."""
    try:
        return _Outcome("success", result=json.loads(json.dumps(value, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        return _Outcome("failed", f"result is not JSON: {error}", exception=error, final=True)


def _exited(task: TaskSpec, code: int) -> _Outcome:
    if code == 0:
        return _Outcome("success")
    if code == task.skip_exit_code:
        return _Outcome("skipped", f"exit code {code}")
    reason = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
    return _Outcome("failed", reason, final=code in task.fail_exit_codes)


# ── commands ─────────────────────────────────────────────────────────────────────────────────────


def _command(context: Context, task: TaskSpec, cwd: str | None, inputs: Mapping[str, Any]) -> _Outcome:
    assert task.run is not None
    with tempfile.TemporaryDirectory(prefix="redsched-test-") as folder, tempfile.TemporaryFile() as log:
        result = Path(folder, "result")
        words = ["/bin/sh", "-c", task.run] if isinstance(task.run, str) else list(task.run)
        env = _environment(context, task, result, inputs)
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return _Outcome("failed", f"can't start {words[0]!r}: {error}", exception=error)
        timely = _wait(process, task)
        output = _read(log)
        if not timely:
            return _Outcome("failed", "timeout", output=output)
        outcome = _exited(task, process.returncode)
        if outcome.state == "success":
            outcome = _said(output, result)
        return outcome._replace(output=output)


def _wait(process: subprocess.Popen[bytes], task: TaskSpec) -> bool:
    """Did it end by itself? Else its process group is stopped: TERM, and KILL after the grace."""
    try:
        process.wait(task.timeout / 1000 if task.timeout else None)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(task.kill_grace / 1000)
        _signal(process, signal.SIGKILL)
        process.wait()
        return False
    except BaseException:  # because Ctrl-C does not reach another session
        _signal(process, signal.SIGKILL)
        raise
    return True


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _read(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")


def _said(output: str, file: Path) -> _Outcome:
    """What a command that ended well left: a file, or its last `::result::` or `::branch::` line."""
    marks = {match[1]: match[2] for match in _MARK.finditer(output)}
    if "branch" in marks:
        return _choice(marks["branch"])
    text = file.read_text(errors="replace") if file.exists() and file.stat().st_size else marks.get("result")
    if text is None:
        return _Outcome("success")
    try:
        return _with_result(json.loads(text))
    except (ValueError, RecursionError) as error:
        return _Outcome("failed", f"result is not JSON: {error}", exception=error, final=True)


def _choice(text: str) -> _Outcome:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return _Outcome(
            "failed", 'branch: write ::branch:: ["a", "b"], ids of direct downstream tasks', final=True
        )
    return _Outcome("success", choice=tuple(names))


def _environment(context: Context, task: TaskSpec, result: Path, inputs: Mapping[str, Any]) -> dict[str, str]:
    moment = instant_text(context.logical_date) if context.logical_date else ""
    values = {f"REDSCHED_PARAM_{_variable(name)}": value for name, value in context.params.items()}
    values |= {f"REDSCHED_INPUT_{_variable(name)}": value for name, value in inputs.items()}
    texts = {name: _as_text(value) for name, value in values.items()}
    return {
        **os.environ,
        **task.env,
        "REDSCHED_DAG": context.dag,
        "REDSCHED_RUN": context.run,
        "REDSCHED_TASK": context.task,
        "REDSCHED_ATTEMPT": str(context.attempt),
        "REDSCHED_LOGICAL_DATE": moment,
        "REDSCHED_INTERVAL_START": moment,
        "REDSCHED_INTERVAL_END": moment,
        "REDSCHED_IDEMPOTENCY_KEY": context.idempotency_key,
        "REDSCHED_RESULT": str(result),
        **{
            name: text
            for name, text in texts.items()
            if len(text.encode()) <= _ENV_VALUE_LIMIT and "\0" not in text
        },
    }


def _variable(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name).upper()


def _as_text(value: Any) -> str:
    """Text as it is, nothing for null, else JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
