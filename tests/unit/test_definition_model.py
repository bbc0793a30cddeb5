"""The model of a DAG: ids, durations, instants, defaults, references, and the canonical form."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redsched.definition.model import DagSpec, build_dag, parse_duration, parse_instant
from redsched.definition.values import check_id, duration_text, escape, reference, unescape
from redsched.errors import DefinitionError


def made(task: dict[str, Any] | None = None, **more: Any) -> DagSpec:
    return build_dag({"dag": "d", "tasks": {"a": {"run": "true", **(task or {})}}, **more})


def refusal(task: dict[str, Any] | None = None, **more: Any) -> str:
    with pytest.raises(DefinitionError) as caught:
        made(task, **more)
    return str(caught.value)


ODD_IDS = ["prüfung", "日次", "a b", "a/b", "..", "../../etc", "a*b", "a%2Fb", "a\nb", "-rf", "a:b", "{a}:b"]
ODD_IDS += ["é", "e\u0301", "a\u200bb", "a\n", ""]


@pytest.mark.parametrize("name", ["a" * 129, *ODD_IDS])
def test_ids_follow_one_rule(name: str) -> None:
    """DF-105, RD-108: the same refusal for DAGs and tasks, which tells the rule."""
    rule = "letters A-Z a-z, digits"
    assert rule in refusal(dag=name)
    assert rule in refusal(tasks={name: {"run": "x"}})


@pytest.mark.parametrize("name", ["CON", "a", "0", "_", "a.b-c_d", "a" * 128])
def test_good_ids(name: str) -> None:
    """DF-105: names that only some systems mind are fine, since no file is named by them."""
    assert check_id(name, "") == name
    assert list(made(dag=name, tasks={name: {"run": "x"}}).tasks) == [name]


def test_an_id_that_yaml_made_something_else() -> None:
    """DF-106: never a task named False or None."""
    assert "quote it: '123'" in refusal(dag=123)
    for name in (None, False, 1):
        assert "id must be text" in refusal(tasks={name: {"run": "x"}})


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("10m", 600_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        (30, 30_000),
        (0.25, 250),
        ("90", 90_000),
        (0, 0),
        (0.0001, 1),
        (timedelta(minutes=2), 120_000),
    ],
)
def test_durations(written: Any, ms: int) -> None:
    """Units, or a number of seconds; what is not nothing is at least 1 ms."""
    assert parse_duration(written, "") == ms


@pytest.mark.parametrize(
    "written",
    [
        "",
        "10 m",
        "5 weeks",
        "-1s",
        -1,
        True,
        None,
        [],
        "1e3s",
        "s",
        float("nan"),
        float("inf"),
        10**400,
        "9" * 60,
        "٣s",
    ],
)
def test_wrong_durations(written: Any) -> None:
    """The message names the place, the value and what to write."""
    with pytest.raises(DefinitionError, match=r"tasks\.a\.timeout: .*(500ms, 30s|at most 3650d)"):
        parse_duration(written, "tasks.a.timeout")


@settings(deadline=None)
@given(st.integers(0, 3650 * 86_400_000))
def test_durations_written_and_read(ms: int) -> None:
    """The short form means the same."""
    assert parse_duration(duration_text(ms), "") == ms == parse_duration(f"{ms}ms", "")


def test_instants_are_read_in_the_zone_and_kept_in_utc() -> None:
    """A date is its midnight in the zone of the DAG."""
    assert parse_instant("2026-01-01", "Europe/Paris") == datetime(2025, 12, 31, 23, tzinfo=UTC)
    assert parse_instant("2026-07-01T02:00", "Europe/Paris") == datetime(2026, 7, 1, tzinfo=UTC)
    assert parse_instant("2026-07-01T02:00:00Z", "Europe/Paris") == datetime(2026, 7, 1, 2, tzinfo=UTC)
    assert made(start="2026-01-01", timezone="Europe/Paris").start == "2025-12-31T23:00:00Z"
    assert "end: 2025-12-31T00:00:00Z lies before" in refusal(start="2026-01-01", end="2025-12-31")
    assert "start: '2026-13-01' is no instant" in refusal(start="2026-13-01")
    assert "start: '0001-01-01' lies outside" in refusal(start="0001-01-01", timezone="Asia/Tokyo")


@pytest.mark.parametrize("name", ["", "Eastern", "UTC+2", "../etc/passwd", "localtime", "America", 3])
def test_unknown_zones_are_refused_by_name(name: Any) -> None:
    """CR-118: never silently UTC."""
    assert "timezone: " in refusal(timezone=name)


def test_known_zones() -> None:
    """CR-118: EST is a zone of its own."""
    for name in ("EST", "America/New_York", "UTC"):
        assert made(timezone=name).timezone == name


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"retrys": 1}, "tasks.a.retrys: unknown key; did you mean 'retries'?"),
        ({"retries": "3"}, "tasks.a.retries: must be a whole number, not '3'"),
        ({"retries": -1}, "tasks.a.retries: must be at least 0, not -1"),
        ({"retries": True}, "tasks.a.retries: must be a whole number, not True"),
        ({"pool_slots": 0}, "tasks.a.pool_slots: must be at least 1"),
        ({"timeout": "3 weeks"}, "tasks.a.timeout: '3 weeks' is no duration"),
        ({"timeout": 0}, "tasks.a.timeout: must be more than 0"),
        ({"retry_delay": "8d"}, "tasks.a.retry_delay: '8d' is too long; at most 7d"),
        ({"trigger_rule": "all_sucess"}, "did you mean 'all_success'"),
        ({"run": ""}, "tasks.a.run: is empty"),
        ({"run": []}, "tasks.a.run: is empty"),
        ({"run": ["sleep", 1.5]}, "tasks.a.run: must be text, not 1.5; quote it: '1.5'"),
        ({"run": "a\0b"}, "NUL"),
        ({"run": None}, "exactly one of `run:`"),
        ({"call": "m:f"}, "exactly one of `run:`"),
        ({"env": {"A": True}}, "tasks.a.env.A: must be text, not True; quote it: 'true'"),
        ({"env": {"A=B": "x"}}, "can't be the name of a variable"),
        ({"with": {"x": "${params.y}"}}, "tasks.a.with: there is no parameter 'y'"),
        ({"with": {"x": {1, 2}}}, "is not JSON"),
        ({"needs": [1]}, "tasks.a.needs.0: must be text, not 1; quote it: '1'"),
        ({"allow_failure": "maybe"}, "tasks.a.allow_failure: must be true or false"),
        ({"pool": {"name": "db"}}, "tasks.a.pool: write the name of a pool, or {name: db, slots: 4}"),
        ({"pool": {"name": "db", "slots": 0}}, "pools.db: must be at least 1"),
        (
            {"pool": {"name": "db", "slots": 1}, "pool_slots": 2},
            "takes 2 slots of the pool 'db', which has 1",
        ),
    ],
)
def test_refusals_of_a_task_name_place_and_value(task: dict[str, Any], said: str) -> None:
    """The DAG, the field, the value, and what to write."""
    text = refusal(task)
    assert text.startswith("DAG d: ")
    assert said in text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"shedule": "x"}, "shedule: unknown key; did you mean 'schedule'?"),
        ({"on_retry": "x"}, "on_retry: unknown key"),
        ({"tasks": {}}, "tasks: is empty"),
        ({"tasks": [{"id": "a"}]}, "tasks: must be a mapping"),
        ({"tasks": {"a": None}}, "tasks.a: must be a mapping, not None"),
        ({"tasks": {"params.x": {"run": "x"}}}, "can't begin with 'params.'"),
        ({"defaults": {"retries": -1}}, "defaults.retries: must be at least 0"),
        ({"defaults": {"run": "x"}}, "defaults.run: belongs to a single task"),
        ({"schedule": "* * * *"}, "schedule: '* * * *': expected 5 fields"),
        ({"schedule": {"every": "1ms"}}, "the shortest is 1s"),
        ({"schedule": {"every": "x"}}, "schedule.every: 'x' is no duration"),
        ({"schedule": {"evry": "1m"}}, "{every: 15m}"),
        ({"schedule": 5}, "{every: 15m}"),
        ({"overlap": "both"}, "overlap: 'both'"),
        ({"retention": {"runz": 1}}, "retention.runz: unknown key; did you mean 'runs'?"),
        ({"catchup": "perhaps"}, "catchup: must be true or false"),
    ],
)
def test_refusals_of_a_dag(more: dict[str, Any], said: str) -> None:
    """As for tasks; schedules are CR-112 to CR-116."""
    assert said in refusal(**more)


def test_not_a_mapping() -> None:
    """Anything else is told what a DAG looks like."""
    wrong: list[Any] = [None, 3, [], "x"]
    for data in wrong:
        with pytest.raises(DefinitionError, match="must be a mapping"):
            build_dag(data)


def test_defaults_are_merged_into_the_tasks() -> None:
    """The task's own value wins; `env` is merged by name; null takes a default away."""
    spec = build_dag(
        {
            "dag": "d",
            "defaults": {"retries": 2, "timeout": "10m", "env": {"A": "1", "B": "1"}},
            "tasks": {"a": {"run": "x"}, "b": {"run": "x", "retries": 0, "timeout": None, "env": {"B": "2"}}},
        }
    )
    a, b = spec.tasks.values()
    assert (a.retries, a.timeout, a.env) == (2, 600_000, {"A": "1", "B": "1"})
    assert (b.retries, b.timeout, b.env) == (0, None, {"A": "1", "B": "2"})


def test_references_make_edges() -> None:
    """ "${task}" in `with`, at any depth, is an upstream; parameters and escapes are not."""
    spec = build_dag(
        {
            "dag": "d",
            "params": {"p": 1},
            "tasks": {
                "a": {"run": "x"},
                "b": {"run": "x"},
                "c": {
                    "call": "m:f",
                    "needs": ["b", "b"],
                    "with": {"x": ["${a}", {"y": "${b}"}], "p": "${params.p}", "t": "$${a}", "u": "see ${a}"},
                },
            },
        }
    )
    assert spec.tasks["c"].needs == ("b", "a")


@settings(deadline=None)
@given(st.text(st.sampled_from("$}{ab"), max_size=8))
def test_every_text_can_be_escaped(text: str) -> None:
    """An escaped text is no reference and reads as it was."""
    assert reference(escape(text)) is None
    assert unescape(escape(text)) == text


def test_pools_of_tasks_are_collected() -> None:
    """Inline sizes must agree."""
    pool = {"name": "db", "slots": 4}
    spec = made(tasks={"a": {"run": "x", "pool": pool}, "b": {"run": "x", "pool": "db"}})
    assert (spec.pools, spec.tasks["a"].pool) == ({"db": 4}, "db")
    other = {"name": "db", "slots": 5}
    assert "'db' has 4 slots elsewhere" in refusal(
        tasks={"a": {"run": "x", "pool": pool}, "b": {"run": "x", "pool": other}}
    )


FULL: dict[str, Any] = {
    "dag": "orders",
    "description": "Yesterday's “orders” 日次",
    "schedule": {"every": "15m"},
    "timezone": "Europe/Paris",
    "start": "2026-01-01",
    "catchup": True,
    "team": "sales",
    "spread": "10m",
    "params": {"z": 1, "a": {"type": "string", "default": "x"}},
    "retention": {"runs": 10, "age": "7d"},
    "tasks": {
        "z": {
            "run": ["python", "x.py", 5],
            "retry_delay": "30s",
            "retry_backoff": 2,
            "fail_exit_codes": [3, 4],
        },
        "a": {"call": "m:f", "with": {"x": "${z}"}, "env": {"B": "1", "A": "2"}, "kill_grace": "3s"},
    },
}


def test_the_canonical_form_parses_back() -> None:
    """Equal specs, equal digests; the order of tasks and parameters is kept."""
    spec = build_dag(FULL)
    again = DagSpec.model_validate(json.loads(spec.canonical()))
    assert again == spec
    assert again.digest() == spec.digest()
    assert list(again.tasks) == ["z", "a"]
    assert list(again.params) == ["z", "a"]


def test_the_canonical_form_leaves_defaults_out() -> None:
    """Saying a default changes nothing; saying a thing in other words changes nothing."""
    assert made().canonical() == '{"dag":"d","tasks":{"a":{"run":"true"}}}'
    assert made({"retries": 0, "pool": "default", "timeout": None}, catchup=False).digest() == made().digest()
    assert (
        made({"timeout": "90s"}).digest()
        == made({"timeout": "1m30s"}).digest()
        == made({"timeout": 90}).digest()
    )
    assert made({"env": {"A": "1", "B": "2"}}).digest() == made({"env": {"B": "2", "A": "1"}}).digest()
    assert made({"retries": 1}).digest() != made().digest()


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "retries": st.integers(0, 10**6),
            "retry_backoff": st.floats(1, 100),
            "retry_jitter": st.floats(0, 1),
            "retry_delay": st.integers(0, 600_000),
            "timeout": st.integers(1, 10**6),
            "priority": st.integers(-1000, 1000),
            "allow_failure": st.booleans(),
            "description": st.text(st.characters(exclude_categories=["Cs"])),
            "env": st.dictionaries(
                st.from_regex(r"[A-Z]{1,3}", fullmatch=True), st.from_regex(r"\w*", fullmatch=True)
            ),
        },
    )
)
def test_every_task_survives_the_canonical_form(task: dict[str, Any]) -> None:
    """Written and read again it is the same, to the last digit."""
    spec = made(task)
    assert DagSpec.model_validate_json(spec.canonical()) == spec
