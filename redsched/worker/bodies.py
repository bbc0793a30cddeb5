"""Task bodies: commands and Python calls, and what their ends mean. Knows nothing of leases, batches or Redis.

Nothing that came from Redis is executed but the definition's own command or function: parameters reach a command by
environment variables only, and a function by keyword arguments.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from redsched.context import Branch, Context, Fail, Retry, Skip, running
from redsched.errors import DefinitionError
from redsched.store import Store
from redsched.worker.jobs import Job, Say, Task, instant
from redsched.worker.logs import LogFile

REASON_LIMIT: Final = 500
ENV_VALUE_LIMIT: Final = 100 * 1024  # Linux takes 128 KiB a string
ENV_TOTAL_LIMIT: Final = 512 * 1024  # and 2 MiB in all, with the worker's own
STALE: Final = re.compile(
    r"REDSCHED_(DAG|RUN|TASK|ATTEMPT|LOGICAL_DATE|INTERVAL_.*|IDEMPOTENCY_KEY|RESULT|INPUTS?|INPUT_.*|PARAM_.*)"
)
_OURS: Final = frozenset(
    str(Path(__file__).parent.parent / p) for p in ("worker/bodies.py", "definition/python.py")
)


class Outcome(NamedTuple):
    """How a body ended. `branch`: the direct downstream tasks it chose; None: it did not choose."""

    outcome: Literal["success", "failed", "skipped"]
    reason: str = ""
    result: str | None = None
    final: bool = False
    retry_ms: int | None = None
    branch: tuple[str, ...] | None = None


class Stopped(BaseException):
    """Raised inside a Python body that is to stop, so that its `finally` blocks run."""


class Gate:
    """Whether a signal may raise Stopped at this moment."""

    open = False


def failed(reason: str, *, final: bool = False) -> Outcome:
    return Outcome("failed", clean(reason), final=final)


def clean(text: str) -> str:
    """One line of at most 500 characters that can be sent and shown anywhere."""
    text = text.encode("utf-8", "backslashreplace").decode()
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * REASON_LIMIT]).split())
    return text if len(text) <= REASON_LIMIT else text[: REASON_LIMIT - 1] + "…"


def killed(number: int) -> str:
    return f"killed by signal {number}"


def ended(status: int) -> str:
    """Why a body failed whose process ended under it."""
    return killed(-status) if status < 0 else f"its process ended with exit code {status}"


# ---------------------------------------------------------------- Python calls


def call(
    job: Job, functions: dict[str, Callable[..., Any]], gate: Gate, note: Callable[[str], None], limit: int
) -> Outcome:
    """Load and run the function in this thread. Raises Stopped only; `note` gets the traceback of an error."""
    from redsched.definition.python import call_body

    target = job.task.call or ""
    try:
        try:
            gate.open = True
            function = functions.get(target) or _load(target, functions)
            value = call_body(function, job.arguments)
        finally:
            gate.open = False
    except Stopped:
        raise
    except Skip as skip:
        return Outcome("skipped", clean(_said(skip)))
    except Fail as fail:
        return failed(_said(fail) or "Fail", final=True)
    except Retry as retry:
        return Outcome("failed", clean(_said(retry) or "Retry"), retry_ms=retry.delay_ms)
    except SystemExit as leave:
        return _exit(job.task, leave, note)
    except CannotLoad as error:
        if not isinstance(error.cause, DefinitionError):  # that one's message says it all
            note(_traceback(error.cause))
        return failed(str(error))
    except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt too: a body never ends its worker
        note(_traceback(error))
        return failed(describe(error))
    if isinstance(value, Branch):
        return chosen(job, value.names)
    return value_outcome(value, limit)


class CannotLoad(Exception):
    """The function of a `call:` can't be imported."""

    def __init__(self, text: str, cause: BaseException) -> None:
        super().__init__(text)
        self.cause = cause


def _load(target: str, functions: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A function that was loaded is kept; a failure is not, since the file may come or be mended."""
    from redsched.definition.python import resolve_call

    importlib.invalidate_caches()
    try:
        function = functions[target] = resolve_call(target)
    except DefinitionError as error:
        raise CannotLoad(str(error), error) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything
        module = target.partition(":")[0]
        raise CannotLoad(f"can't import {module!r} for call {target!r}: {describe(error)}", error) from None
    return function


def entered(job: Job, store: Store, say: Say) -> contextlib.AbstractContextManager[object]:
    """What a Python body finds around it: `context()`, and the task's `env`."""
    nonce = f"{random.getrandbits(64):x}"
    moment = None if job.logical_ms is None else instant(job.logical_ms)
    start, end = (None, None) if job.interval is None else map(instant, job.interval)
    current = Context(
        dag=job.attempt.dag,
        run=job.attempt.run,
        task=job.task.name,
        attempt=job.attempt.attempt,
        logical_date=moment,
        data_interval_start=start,
        data_interval_end=end,
        params=job.params,
        claim=lambda name: bool(say(store.shard.once, job.attempt_id, name, nonce)),
        undo=lambda name: say(store.shard.once_undo, job.attempt_id, name, nonce),
    )
    return _with_env(job.task.env, current) if job.task.env else running(current)


@contextlib.contextmanager
def _with_env(env: Mapping[str, str], current: Context) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        with running(current):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def describe(error: BaseException) -> str:
    text = _said(error)
    return clean(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise
        return ""


def _traceback(error: BaseException) -> str:
    """Without our own frames on top."""
    frame = error.__traceback__
    while frame and frame.tb_next and frame.tb_frame.f_code.co_filename in _OURS:
        frame = frame.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frame))
    except Exception:  # noqa: BLE001 - it calls the user's __str__ too
        return describe(error)


def _exit(task: Task, leave: SystemExit, note: Callable[[str], None]) -> Outcome:
    code = leave.code
    if code is None or isinstance(code, int):
        return exit_outcome(task, code or 0)
    note(str(code))
    return failed(f"SystemExit: {code}")


def value_outcome(value: Any, limit: int) -> Outcome:
    """A return value as a result: JSON or nothing."""
    if value is None:
        return Outcome("success")
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except UnicodeEncodeError:  # lone surrogates: fine as escapes
        text = json.dumps(value, separators=(",", ":"))
        size = len(text)
    except (TypeError, ValueError, RecursionError) as error:
        return failed(f"result is not JSON: {error}", final=True)
    if size > limit:
        return too_big(size, limit)
    return Outcome("success", result=text)


def too_big(size: int, limit: int) -> Outcome:
    return failed(f"result too big: {size} > {limit} bytes", final=True)


def chosen(job: Job, names: tuple[str, ...]) -> Outcome:
    below = job.definition.downstream(job.task.name)
    for name in names:
        if name not in below:
            known = ", ".join(list(below)[:20]) or "none"
            return failed(
                f"branch: {name!r} is not directly downstream of {job.task.name!r} (those are: {known})",
                final=True,
            )
    return Outcome("success", branch=tuple(names))


def skips(job: Job, outcome: Outcome) -> tuple[int, ...]:
    """Indexes of the direct downstream tasks to be skipped: neither chosen nor below the chosen."""
    if outcome.branch is None:
        return ()
    from redsched.definition.plan import not_chosen

    definition = job.definition
    needs = {name: task.get("needs", ()) for name, task in definition.spec["tasks"].items()}
    return tuple(definition.names.index(n) for n in not_chosen(needs, job.task.name, outcome.branch))


# ---------------------------------------------------------------- commands


def spawn(job: Job, log: LogFile, folder: Path, slot: int) -> subprocess.Popen[bytes] | Outcome:
    """Start the command as the leader of its own session and process group."""
    result, inputs = folder / f"result-{slot}", folder / f"inputs-{slot}.json"
    run = job.task.run
    assert run is not None
    try:
        for path in (result, inputs):
            _clear(path)
        env = environment(job, result, inputs)
        return subprocess.Popen(
            ["/bin/sh", "-c", run] if isinstance(run, str) else list(run),
            stdin=subprocess.DEVNULL,
            stdout=log.fd,
            stderr=log.fd,
            env=env,
            cwd=job.task.cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        first = run if isinstance(run, str) else run[0]
        return failed(f"can't start {first[:100]!r}: {error}")


def _clear(path: Path) -> None:
    """What the command before may have made of it: also nothing, its folder gone too, or a folder of its own."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def environment(job: Job, result: Path, inputs: Path) -> dict[str, str]:
    """The worker's own environment, the task's `env`, and what interface promises to a command."""
    env = {k: v for k, v in os.environ.items() if not STALE.fullmatch(k)}
    # The worker's own interpreter first, because `python x.py` in a DAG means the one that redsched was installed with.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    env.update(job.task.env)
    logical = "" if job.logical_ms is None else written(job.logical_ms)
    start, end = ("", "") if job.interval is None else map(written, job.interval)
    env.update(
        REDSCHED_DAG=job.attempt.dag,
        REDSCHED_RUN=job.attempt.run,
        REDSCHED_TASK=job.task.name,
        REDSCHED_ATTEMPT=str(job.attempt.attempt),
        REDSCHED_LOGICAL_DATE=logical,
        REDSCHED_INTERVAL_START=start,
        REDSCHED_INTERVAL_END=end,
        REDSCHED_IDEMPOTENCY_KEY=job.idempotency_key,
        REDSCHED_RESULT=str(result),
    )
    if job.task.with_:
        inputs.write_text(json.dumps(job.arguments, ensure_ascii=False), errors="surrogatepass")
        env["REDSCHED_INPUTS"] = str(inputs)
    _add(env, {f"REDSCHED_PARAM_{variable(k)}": v for k, v in job.params.items()})
    _add(env, {f"REDSCHED_INPUT_{variable(k)}": v for k, v in {**job.arguments, **job.inputs}.items()})
    return env


def written(ms: int) -> str:
    return instant(ms).strftime("%Y-%m-%dT%H:%M:%SZ")


def _add(env: dict[str, str], values: Mapping[str, Any]) -> None:
    room = ENV_TOTAL_LIMIT
    for name, value in values.items():
        text = as_text(value)
        size = len(text.encode(errors="surrogatepass"))
        if size <= min(ENV_VALUE_LIMIT, room) and "\0" not in text:
            room -= size
            env[name] = text


def variable(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name).upper()


def as_text(value: Any) -> str:
    """Text as it is, nothing for null, else JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def exit_outcome(task: Task, code: int) -> Outcome:
    """What an exit code means; negative: killed by that signal, as `subprocess` has it."""
    if code == 0:
        return Outcome("success")
    if code < 0:
        return failed(killed(-code))
    if code == task.skip_exit_code:
        return Outcome("skipped", f"exit code {code}")
    hint = f" ({signal.Signals(code - 128).name})" if code - 128 in list(signal.Signals) else ""
    return failed(f"exit code {code}{hint}", final=code in task.fail_exit_codes)


def command_outcome(job: Job, code: int, log: LogFile, folder: Path, slot: int, limit: int) -> Outcome:
    """The end of a command: its exit code, and if that is 0 what it left as result or choice."""
    outcome = exit_outcome(job.task, code)
    if outcome.outcome != "success":
        return outcome
    line, branch = log.last_lines(b"::result::", b"::branch::")
    if branch is not None:
        outcome = _choice(job, branch)
    left = _left_in_file(folder / f"result-{slot}", limit)
    if isinstance(left, int):
        return too_big(left, limit)
    text = left or line
    if text is None or outcome.outcome != "success":
        return outcome
    return json_outcome(text, limit)._replace(branch=outcome.branch)


def _left_in_file(path: Path, limit: int) -> bytes | int:
    """What the command wrote to $REDSCHED_RESULT, or its size where that is too much."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):  # a pipe would block, and a folder has no text
            return b""
        return info.st_size if info.st_size > limit + 65536 else path.read_bytes().strip()
    except OSError:
        return b""


def json_outcome(data: bytes, limit: int) -> Outcome:
    data = data.strip()
    if len(data) > limit:
        return too_big(len(data), limit)
    try:
        text = data.decode()
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return failed(f"result is not JSON: {error}", final=True)
    return Outcome("success", result=text)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _choice(job: Job, line: bytes) -> Outcome:
    try:
        names = json.loads(line)
    except (ValueError, RecursionError):
        names = None
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        return failed('branch: write ::branch:: ["a", "b"], the names of direct downstream tasks', final=True)
    return chosen(job, tuple(names))
