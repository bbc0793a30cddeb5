"""How bodies end, and what their worker makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redsched.worker import bodies

from .worker_harness import WorkerProcess, wait_for

MODULE = """
import asyncio, logging, os, sys, time
from redsched import Branch, Fail, Retry, Skip, context
def add(a, b): return a + b
def quiet(): pass
async def later(): await asyncio.sleep(0.01); return "async"
def boom(): raise ValueError("bad\\nthing")
def rude():
    class Rude(Exception):
        def __str__(self): raise RuntimeError
    raise Rude
def skip(): raise Skip("not today")
def fail(): raise Fail("for good")
def retry(): raise Retry(delay="30s", reason="later")
def leave(code): sys.exit(code)
def interrupt(): raise KeyboardInterrupt
def branch(): return Branch("x")
def wrong_branch(): return Branch("nowhere")
def big(): return "x" * 5000
def odd(): return object()
def nan(): return float("nan")
def out(): print("to stdout"); print("to stderr", file=sys.stderr); logging.getLogger("mine").info("logged"); os.write(1, b"raw\\xff\\0\\n")
def who():
    c = context()
    return [c.dag, c.run, c.task, c.attempt, c.params, c.idempotency_key, bool(c.once("x")), bool(c.once("x"))]
def env(): return os.environ.get("MINE")
def vandal(): sys.stdout.close(); os.close(2); os.chdir("/"); sys.stderr = None; import signal; signal.signal(15, 0)
def fork():
    if os.fork() == 0: return "copy"
    time.sleep(0.3); return "parent"
def die(signal): os.kill(os.getpid(), signal)
def gone(): os._exit(3)
def sleep(s): time.sleep(s)
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder: Path = tmp_path_factory.mktemp("worker")
    (folder / "jobs.py").write_text(MODULE)
    (folder / "broken.py").write_text("import nothing_of_this_name\n")
    (folder / "leaving.py").write_text("import sys; sys.exit(4)\n")
    with WorkerProcess(folder, result_limit=2000) as made:
        yield made


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"call": f"jobs:{name}", **({"with": arguments} if arguments else {})}


@pytest.mark.parametrize(
    ("task", "outcome", "result", "reason", "final"),
    [
        (call("add", a=2, b=3), "success", "5", "", False),
        (call("quiet"), "success", None, "", False),
        (call("later"), "success", '"async"', "", False),
        (call("boom"), "failed", None, "ValueError: bad thing", False),
        (call("rude"), "failed", None, "Rude", False),
        (call("skip"), "skipped", None, "not today", False),
        (call("fail"), "failed", None, "for good", True),
        (call("leave", code=0), "success", None, "", False),
        (call("leave", code=3), "failed", None, "exit code 3", False),
        (call("leave", code=99), "skipped", None, "exit code 99", False),
        ({**call("leave", code=7), "fail_exit_codes": [7]}, "failed", None, "exit code 7", True),
        (call("leave", code="sorry"), "failed", None, "SystemExit: sorry", False),
        (call("interrupt"), "failed", None, "KeyboardInterrupt", False),
        (call("big"), "failed", None, "result too big: 5002 > 2000 bytes", True),
        (
            call("odd"),
            "failed",
            None,
            "result is not JSON: Object of type object is not JSON serializable",
            True,
        ),
        (call("gone"), "failed", None, "its process ended with exit code 3", False),
        (call("die", signal=9), "failed", None, "killed by signal 9", False),
        (call("die", signal=11), "failed", None, "killed by signal 11", False),
        (call("fork"), "success", '"parent"', "", False),
        ({**call("env"), "env": {"MINE": "yes"}}, "success", '"yes"', "", False),
        (call("env"), "success", None, "", False),
        ({**call("sleep", s=30), "timeout": "300ms"}, "failed", None, "timeout after 300ms", False),
        ({"run": "exit 0"}, "success", None, "", False),
        ({"run": "exit 1"}, "failed", None, "exit code 1", False),
        ({"run": "exit 99"}, "skipped", None, "exit code 99", False),
        ({"run": "exit 7", "skip_exit_code": 7}, "skipped", None, "exit code 7", False),
        ({"run": "exit 7", "fail_exit_codes": [7]}, "failed", None, "exit code 7", True),
        ({"run": "exit 137"}, "failed", None, "exit code 137 (SIGKILL)", False),
        ({"run": "kill -9 $$"}, "failed", None, "killed by signal 9", False),
        ({"run": "kill -9 0"}, "failed", None, "killed by signal 9", False),
        ({"run": "kill -9 $PPID; sleep 5"}, "failed", None, "killed by signal 9", False),
        ({"run": ["printf", "::result:: [%s]\n", "1"]}, "success", "[1]", "", False),
        (
            {"run": "echo '::result:: 1'; echo '::result:: {\"a\": 2}'; echo end"},
            "success",
            '{"a": 2}',
            "",
            False,
        ),
        ({"run": "echo 5 > $REDSCHED_RESULT; echo '::result:: 1'"}, "success", "5", "", False),
        ({"run": "echo '::result:: nope'"}, "failed", None, None, True),
        ({"run": "echo '::result:: NaN'"}, "failed", None, "result is not JSON: NaN is not JSON", True),
        (
            {"run": "head -c 9000 /dev/zero > $REDSCHED_RESULT"},
            "failed",
            None,
            "result too big: 9000 > 2000 bytes",
            True,
        ),
        ({"run": "rm -f $REDSCHED_RESULT; mkfifo $REDSCHED_RESULT"}, "success", None, "", False),
        (
            {"run": "trap '' TERM; sleep 9", "timeout": "200ms", "kill_grace": "200ms"},
            "failed",
            None,
            "timeout after 200ms",
            False,
        ),
        ({"run": ["no-such-program"]}, "failed", None, None, False),
        ({"run": "true", "cwd": "/no/such/folder"}, "failed", None, None, False),
    ],
    ids=lambda v: str(v.get("call") or v.get("run")) if isinstance(v, dict) else "",
)
def test_an_end_and_its_outcome(
    worker: WorkerProcess,
    task: dict[str, Any],
    outcome: str,
    result: str | None,
    reason: str | None,
    final: bool,
) -> None:
    """Each way to end a body has one outcome, and the worker serves the next."""
    report = worker.run(task)
    assert (report.outcome, report.result, report.final) == (outcome, result, final)
    assert reason is None or report.reason == reason
    assert worker.run({"run": "true"}).outcome == "success"


def test_retry_at_a_time(worker: WorkerProcess) -> None:
    """Retry(delay=…) travels with the report."""
    report = worker.run(call("retry"))
    assert (report.outcome, report.reason, report.retry_ms) == ("failed", "later", 30_000)


@pytest.mark.parametrize("module", ["broken", "leaving", "no_such_module", "jobs"])
def test_a_call_that_cant_be_imported(worker: WorkerProcess, module: str) -> None:
    """It fails under the normal retry rule, and names the module."""
    report = worker.run({"call": f"{module}:no_such_function"})
    assert (report.outcome, report.final) == ("failed", False)
    assert module in report.reason


def test_branches(worker: WorkerProcess) -> None:
    """What was not chosen is reported by its index; a wrong name fails for good."""
    tasks = {"t": call("branch"), "x": {"run": "true", "needs": ["t"]}, "y": {"run": "true", "needs": ["t"]}}
    for body in (call("branch"), {"run": """echo '::branch:: ["x"]'"""}):
        tasks["t"] = body
        worker.redis.dag(f"b{len(worker.redis.specs)}", tasks)
        attempt_id = worker.redis.queue(f"b{len(worker.redis.specs) - 1}")
        wait_for(lambda a=attempt_id: worker.redis.reported(a))
        assert worker.redis.report(attempt_id).skip == (2,)
    report = worker.run(call("wrong_branch"))
    assert (report.outcome, report.final) == ("failed", True)
    assert "'nowhere'" in report.reason


def test_output_is_the_log(worker: WorkerProcess) -> None:
    """stdout, stderr, logging and raw bytes come in order and unchanged; a vandal changes nothing for the next."""
    for _ in range(2):
        report = worker.run(call("out"))
        log = bytes(worker.redis.logs[report.attempt_id])
        assert log.startswith(b"to stdout\nto stderr\n")
        assert b"INFO mine: logged\n" in log
        assert log.endswith(b"raw\xff\0\n")
        assert worker.run(call("vandal")).outcome == "success"


def test_a_traceback_shows_the_users_frames_only(worker: WorkerProcess) -> None:
    log = worker.redis.log(worker.run(call("boom")).attempt_id)
    assert "jobs.py" in log and "bodies.py" not in log and "python.py" not in log
    assert log.endswith("redsched: ValueError: bad thing\n")


def test_context(worker: WorkerProcess) -> None:
    """A body knows who it is; a step is claimed once over all attempts."""
    worker.redis.params = {"k": 5}
    report = worker.run(call("who"))
    worker.redis.params = {}
    dag = report.attempt_id.split("/")[0]
    assert json.loads(report.result) == [dag, "r1", "t", 1, {"k": 5}, f"{dag}/r1/t", True, True]


def test_environment_of_a_command(worker: WorkerProcess) -> None:
    """What interface.md promises, parameters and inputs as text or JSON; what is too big is only in the file."""
    show = "import json,os; print('::result::', json.dumps([{k: v for k, v in os.environ.items() if k.startswith('REDSCHED')}, len(open(os.environ['REDSCHED_INPUTS']).read())]))"
    worker.redis.params = {"limit": 3, "name": "it's; $(x)"}
    report = worker.run(
        {
            "run": ["python", "-c", show],
            "with": {"rows": [1, {"a": None}], "huge": "x" * 200_000},
            "env": {"A": "b"},
        }
    )
    worker.redis.params = {}
    env, size = json.loads(report.result)
    assert size > 200_000
    assert env["REDSCHED_PARAM_LIMIT"] == "3"
    assert env["REDSCHED_PARAM_NAME"] == "it's; $(x)"
    assert env["REDSCHED_INPUT_ROWS"] == '[1, {"a": null}]'
    assert "REDSCHED_INPUT_HUGE" not in env
    assert (env["REDSCHED_RUN"], env["REDSCHED_TASK"], env["REDSCHED_ATTEMPT"]) == ("r1", "t", "1")


def test_reasons_are_one_calm_line() -> None:
    assert bodies.clean("a\nb\t\x1b[31m \ud800") == "a b [31m \\ud800"
    assert len(bodies.clean("x" * 9999)) == 500


def test_results_keep_their_text() -> None:
    """Non-ASCII text stays; lone surrogates become escapes; the limit counts bytes."""
    assert bodies.value_outcome({"ä": 1}, 100).result == '{"ä":1}'
    assert bodies.value_outcome("\ud800", 100).result == '"\\ud800"'
    assert bodies.value_outcome("ä" * 10, 21).reason == "result too big: 22 > 21 bytes"
