"""`.test()`: a run in this process with the real rules."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from redsched import Branch, Fail, NotFound, RedschedError, Retry, Skip, command, context, dag, task
from redsched.definition.model import build_dag
from redsched.definition.trial import Trial, try_dag

ENDS = {"ok": "true", "fail": "false", "skip": "exit 99"}


def run(**tasks: dict[str, Any]) -> dict[str, str]:
    """States of a DAG of commands; `end` is one of ENDS, else the task runs `true`."""
    written = {name: {"run": ENDS[t.pop("end", "ok")], **t} for name, t in tasks.items()}
    trial = try_dag(build_dag({"dag": "d", "tasks": written}))
    return {"run": trial.state, **{name: t.state for name, t in trial.tasks.items()}}


def with_bodies(tasks: dict[str, dict[str, Any]], **bodies: Callable[[], Any]) -> Trial:
    written = {name: {"call": "m:f", **t} for name, t in tasks.items()}
    return try_dag(
        build_dag({"dag": "d", "tasks": written}), bodies={n: bodies.get(n, lambda: None) for n in tasks}
    )


def test_all_done_runs_after_a_failure() -> None:
    """TR-102: the run is failed all the same, because a task is."""
    assert run(
        s={}, f={"end": "fail"}, j={"needs": ["s", "f"], "trigger_rule": "all_done"}, k={"needs": ["j"]}
    ) == {
        "run": "failed",
        "s": "success",
        "f": "failed",
        "j": "success",
        "k": "success",
    }


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        (("fail", "fail"), "upstream_failed"),
        (("fail", "skip"), "upstream_failed"),
        (("skip", "skip"), "skipped"),
        (("fail", "ok"), "success"),
    ],
)
def test_one_success(ends: tuple[str, str], state: str) -> None:
    """TR-103: and its downstream follows."""
    found = run(
        p1={"end": ends[0]},
        p2={"end": ends[1]},
        j={"needs": ["p1", "p2"], "trigger_rule": "one_success"},
        k={"needs": ["j"]},
    )
    assert (found["j"], found["k"]) == (state, state)


def test_none_failed_and_its_kin() -> None:
    """TR-104: all skipped runs `none_failed`, and skips the other."""
    for end, states in (("skip", ("success", "skipped")), ("fail", ("upstream_failed", "upstream_failed"))):
        found = run(
            p1={"end": "skip"},
            p2={"end": end},
            a={"needs": ["p1", "p2"], "trigger_rule": "none_failed"},
            b={"needs": ["p1", "p2"], "trigger_rule": "none_failed_min_one_success"},
        )
        assert (found["a"], found["b"]) == states


def test_a_failure_that_is_allowed() -> None:
    """The run succeeds; the downstream still sees a failure."""
    found = run(a={"end": "fail", "allow_failure": True}, b={"needs": ["a"]})
    assert found == {"run": "success", "a": "failed", "b": "upstream_failed"}


def test_two_branches_and_a_join() -> None:
    """TR-101: t5 is skipped, t6 waits for t4."""
    tasks: dict[str, dict[str, Any]] = {
        "t1": {},
        "b2": {"needs": ["t1"]},
        "b3": {"needs": ["t1"]},
        "t4": {"needs": ["b2"]},
        "t5": {"needs": ["b3"]},
        "t7": {"needs": ["b3"]},
        "t6": {"needs": ["t4", "t5"], "trigger_rule": "none_failed_min_one_success"},
    }
    trial = with_bodies(tasks, b2=lambda: Branch("t4"), b3=lambda: Branch("t7"))
    assert trial.state == "success"
    assert {name: t.state for name, t in trial.tasks.items()} == dict.fromkeys(tasks, "success") | {
        "t5": "skipped"
    }


def test_skips_go_all_the_way_down() -> None:
    """TR-105: none of fifty is run."""
    tasks: dict[str, dict[str, Any]] = {"br": {}, "x": {"needs": ["br"]}, "y0": {"needs": ["br"]}}
    tasks |= {f"y{i}": {"needs": [f"y{i - 1}"]} for i in range(1, 50)}
    trial = with_bodies(tasks, br=lambda: Branch("x"))
    assert {t.state for name, t in trial.tasks.items() if name[0] == "y"} == {"skipped"}
    assert sum(t.attempts for t in trial.tasks.values()) == 2


@pytest.mark.parametrize(("choice", "a"), [("a", "success"), ("join", "skipped")])
def test_a_join_reached_directly_and_by_a_side_path(choice: str, a: str) -> None:
    """TR-107: the join runs either way."""
    tasks: dict[str, dict[str, Any]] = {
        "br": {},
        "a": {"needs": ["br"]},
        "join": {"needs": ["br", "a"], "trigger_rule": "none_failed_min_one_success"},
    }
    trial = with_bodies(tasks, br=lambda: Branch(choice))
    assert (trial.tasks["a"].state, trial.tasks["join"].state) == (a, "success")


def test_a_choice_that_is_none() -> None:
    """Choosing what isn't directly downstream fails for good; choosing nothing skips all."""
    tasks: dict[str, dict[str, Any]] = {"br": {"retries": 3}, "x": {"needs": ["br"]}}
    trial = with_bodies(tasks, br=lambda: Branch("y"))
    assert (trial.tasks["br"].state, trial.tasks["br"].attempts) == ("failed", 1)
    assert "not directly downstream" in trial.tasks["br"].error
    assert with_bodies(tasks, br=lambda: Branch()).tasks["x"].state == "skipped"


def same(value: Any) -> Any:
    return value


def raising(error: BaseException) -> Callable[[], Any]:
    def body() -> Any:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "state", "attempts", "said"),
    [
        (ValueError("boom"), "failed", 3, "ValueError: boom"),
        (Fail("never"), "failed", 1, "never"),
        (Skip("not today"), "skipped", 1, "not today"),
        (Retry(delay="1h", reason="later"), "failed", 3, "later"),
        (SystemExit(99), "skipped", 1, "exit code 99"),
        (SystemExit(3), "failed", 1, "exit code 3"),
    ],
)
def test_how_bodies_end(error: BaseException, state: str, attempts: int, said: str) -> None:
    """Skip, Fail and Retry; every other exception is a failure that is tried again, at once."""
    trial = with_bodies({"a": {"retries": 2, "fail_exit_codes": [3]}}, a=raising(error))
    a = trial.tasks["a"]
    assert (a.state, a.attempts, a.error) == (state, attempts, said)


def test_retry_delays_are_checked_where_they_are_written() -> None:
    """A wrong delay is an error of the body, not of the scheduler."""
    assert Retry(delay="30s").delay_ms == 30_000
    assert Retry(delay=1.5).delay_ms == 1_500
    assert Retry().delay_ms is None
    with pytest.raises(RedschedError, match=r"Retry\(delay=…\): 'soon' is no duration"):
        Retry(delay="soon")


def test_results_pass_through_json() -> None:
    """The downstream sees what it will see in a real run; what isn't JSON fails for good."""
    tasks: dict[str, dict[str, Any]] = {"a": {"retries": 1}, "b": {"with": {"x": "${a}"}}}
    seen: list[Any] = []
    bodies: dict[str, Any] = {"a": lambda: (1, {2: None}), "b": lambda x: seen.append(x)}
    trial = with_bodies(tasks, **bodies)
    assert seen == [trial.result("a")] == [[1, {"2": None}]]
    for value in (object(), float("nan"), {1, 2}):
        a = with_bodies({"a": {"retries": 1}}, a=partial(same, value)).tasks["a"]
        assert (a.state, a.attempts) == ("failed", 1)
        assert "not JSON" in a.error
    with pytest.raises(NotFound, match="no task 'zz'"):
        trial.result("zz")


def test_the_context_of_a_body() -> None:
    """What a body may know; the key is the same for each attempt."""
    seen: list[Any] = []

    def body() -> None:
        here = context()
        seen.append((here.dag, here.run, here.task, here.attempt, here.params, here.idempotency_key))
        here.log.info("hello")
        assert here.logical_date == here.data_interval_start is not None
        raise ValueError

    spec = build_dag({"dag": "d", "params": {"x": 1}, "tasks": {"a": {"call": "m:f", "retries": 1}}})
    assert try_dag(spec, {"x": 2}, bodies={"a": body}).state == "failed"
    assert seen == [("d", "test", "a", n, {"x": 2}, "d/test/a") for n in (1, 2)]
    with pytest.raises(RedschedError, match="only while a task's body runs"):
        context()
    assert isinstance(logging.getLogger("redsched.task"), logging.Logger)


def test_once_over_all_attempts() -> None:
    """The step runs once; an exception inside gives the claim back."""
    done: list[str] = []

    def body() -> None:
        here = context()
        if here.once("plain"):
            done.append("plain")
        with here.once("charge") as first:
            if first:
                if here.attempt == 1:
                    raise ValueError("before the charge")
                done.append(f"charge {here.attempt}")
        raise ValueError("after")

    with_bodies({"a": {"retries": 3}}, a=body)
    assert done == ["plain", "charge 2"]


def test_commands_get_their_environment_and_give_results(tmp_path: Path) -> None:
    """Parameters, inputs, the last result line, the result file, the working folder."""

    @dag(cwd=str(tmp_path))
    def commands(limit: int = 3, name: str = "a b") -> None:
        a = command("a", 'echo "::result:: 1"; echo "::result:: {\\"n\\": $REDSCHED_PARAM_LIMIT}"')
        b = command("b-1", 'printf %s "$REDSCHED_INPUT_A" > "$REDSCHED_RESULT"', with_={"rows": a})
        command(
            "c",
            'echo "::result:: [\\"$REDSCHED_PARAM_NAME\\", \\"$PWD\\", \\"$X\\", $REDSCHED_ATTEMPT]"',
            env={"X": "y"},
        )
        b >> command(
            "d", ["sh", "-c", "echo $REDSCHED_IDEMPOTENCY_KEY; exit 3"], retries=2, fail_exit_codes=[3]
        )

    trial = commands.test(limit=5)
    assert trial.result("a") == {"n": 5}
    assert trial.result("b-1") == {"n": 5}
    assert trial.result("c") == ["a b", str(tmp_path), "y", 1]
    assert (trial.tasks["d"].state, trial.tasks["d"].error, trial.tasks["d"].attempts) == (
        "failed",
        "exit code 3",
        1,
    )
    assert trial.tasks["d"].output == "commands/test/d\n"
    assert trial.state == "failed"


def test_a_command_that_takes_too_long_is_stopped_with_its_children() -> None:
    """RT-108: at its time-out, and for good after the grace."""
    written = {"run": "trap '' TERM; sleep 60 & sleep 60; wait", "timeout": "300ms", "kill_grace": "300ms"}
    began = time.monotonic()
    trial = try_dag(build_dag({"dag": "d", "tasks": {"a": written}}))
    assert trial.tasks["a"].error == "timeout"
    assert time.monotonic() - began < 10


def test_a_command_that_can_not_start() -> None:
    """A failure with the reason, not a traceback."""
    trial = try_dag(build_dag({"dag": "d", "tasks": {"a": {"run": ["/no/such/program"]}}}))
    assert trial.tasks["a"].error.startswith("can't start '/no/such/program'")


def test_a_chain_of_5000_whose_first_fails() -> None:
    """DF-103: no recursion in what follows."""
    tasks: dict[str, dict[str, Any]] = {f"t{i}": {"needs": [f"t{i - 1}"] if i else []} for i in range(5_000)}
    trial = with_bodies(tasks, t0=raising(ValueError()))
    assert sum(t.state == "upstream_failed" for t in trial.tasks.values()) == 4_999


@task
def fine() -> int:
    return 1


def test_always_runs_first() -> None:
    """`always` waits for nobody."""

    @dag
    def always() -> None:
        command("a", "false") >> fine.options(id="b", trigger_rule="always")()

    trial = always.test()
    assert trial.tasks["b"].state == "success"
