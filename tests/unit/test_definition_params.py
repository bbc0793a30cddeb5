"""Parameters: defaults, schemas, refusals, and the command line's way to write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redsched.definition.model import DagSpec, build_dag, params_from_cli, parse_params, render_params
from redsched.errors import DefinitionError


def made(params: dict[str, Any], **more: Any) -> DagSpec:
    return build_dag({"dag": "d", "params": params, "tasks": {"a": {"run": "true"}}, **more})


X = {"x": {"type": "integer", "minimum": 5, "maximum": 10, "default": 7}}


def test_defaults_are_filled() -> None:
    """DF-112: nothing given means the default; a value that fits replaces it."""
    assert parse_params(made(X), {}) == {"x": 7}
    assert parse_params(made(X), {"x": 8}) == {"x": 8}


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"x": 11}, "x of DAG d: 11 is more than the maximum 10"),
        ({"x": None}, "x of DAG d: expected integer, got null"),
        ({"x": "8"}, 'x of DAG d: expected integer, got string "8"'),
        ({"x": True}, "x of DAG d: expected integer, got boolean"),
        ({"x": 8.5}, "x of DAG d: expected integer, got number"),
        ({"y": 1}, "no parameter 'y'"),
        ({"x": float("nan")}, "is not JSON"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given_: dict[str, Any], said: str) -> None:
    """DF-112: nothing is converted; "8" is not 8."""
    with pytest.raises(DefinitionError, match=said):
        parse_params(made(X), given_)


def test_a_required_parameter() -> None:
    """DF-112: asked for at the trigger; refused at once where a schedule would have to know it."""
    spec = made({"x": {"type": "integer"}})
    with pytest.raises(DefinitionError, match="needs the parameter 'x'"):
        parse_params(spec, {})
    with pytest.raises(DefinitionError, match=r"DAG d: params\.x: needs a default"):
        made({"x": {"type": "integer"}}, schedule="@daily")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
        ({"type": "string", "pattern": "^[a-z]+$"}, ["ab"], ["a1", ""]),
        ({"type": "string", "format": "date"}, ["2026-02-28"], ["2026-02-30", "20260228", "x"]),
        ({"type": "string", "format": "date-time"}, ["2026-02-28T01:00:00Z"], ["2026-02-28", "x"]),
        ({"enum": ["a", 1, None]}, ["a", 1, None], ["b", True]),
        ({"type": ["string", "null"]}, ["x", None], [1]),
        ({"type": "array", "items": {"type": "integer"}}, [[], [1, 2]], [["a"], {}]),
        ({"type": "number", "minimum": 0.5}, [0.5, 1], [0.4, "1"]),
        ({"type": "object"}, [{}, {"a": [1]}], [[]]),
        ({"type": "integer"}, [8, 8.0], [8.5]),
        ({}, ["x", 1, []], [None]),
    ],
)
def test_schemas(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    """A small JSON schema, and null only where the type says so."""
    spec = made({"x": schema})
    for value in good:
        assert parse_params(spec, {"x": value}) == {"x": value}
    for value in bad:
        with pytest.raises(DefinitionError, match="parameter x"):
            parse_params(spec, {"x": value})


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"x": {"type": "int"}}, r"x\.type: 'int' is not known"),
        ({"x": {"tpye": "integer"}}, "unknown key 'tpye'; did you mean 'type'"),
        ({"x": {"type": "integer", "default": "a"}}, r"x\.default: expected integer"),
        ({"x": {"pattern": "("}}, "is no regular expression"),
        ({"x": {"default": "{{ ds }}"}}, r"known are \{\{ logical_date \}\}"),
        ({"a-b": 1}, "can't be a name"),
        ({"x": 1, "X": 2}, "would be one variable REDSCHED_PARAM_X"),
    ],
)
def test_schemas_are_checked_at_the_door(params: dict[str, Any], said: str) -> None:
    """A wrong schema is refused with the definition."""
    with pytest.raises(DefinitionError, match=said):
        made(params)


def test_a_bare_default_keeps_its_kind() -> None:
    """`limit: 100` takes numbers, `name: x` text."""
    assert made({"limit": 100, "name": "x", "any": None}).params == {
        "limit": {"type": "number", "default": 100},
        "name": {"type": "string", "default": "x"},
        "any": {"default": None},
    }


def test_templates_are_rendered_when_the_moment_is_known() -> None:
    """A date is the day in the DAG's zone; what was given is not touched."""
    spec = made(
        {
            "day": {"type": "string", "format": "date", "default": "{{ logical_date }}"},
            "at": {"default": "{{ data_interval_end }}"},
        },
        timezone="Europe/Paris",
    )
    moment = datetime(2026, 1, 1, 23, 30, tzinfo=UTC)
    assert render_params(spec, parse_params(spec, {}), logical_date=moment) == {
        "day": "2026-01-02",
        "at": "2026-01-01T23:30:00Z",
    }
    assert (
        render_params(spec, parse_params(spec, {"day": "2000-01-01"}), logical_date=moment)["day"]
        == "2000-01-01"
    )


def test_the_command_line_reads_json_unless_a_string_is_wanted() -> None:
    """`-p x=8` is 8 for an integer and "8" for a string."""
    spec = made({"x": 1, "s": "a", "o": {"type": ["string", "null"], "default": None}, "l": [1]})
    assert params_from_cli(spec, ["x=8", "s=8", "o=null", "l=[2]"]) == {"x": 8, "s": "8", "o": None, "l": [2]}
    assert params_from_cli(spec, ["o=8", "s=a=b"]) == {"o": "8", "s": "a=b"}
    for wrong in (["x"], ["y=1"], ["x=1", "x=2"], ["x=abc"], ["x=NaN"], ["x=" + "[" * 100_000]):
        with pytest.raises(DefinitionError):
            params_from_cli(spec, wrong)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(JSON)
def test_every_bare_default_survives_the_canonical_form(value: Any) -> None:
    """What is JSON may be a default and comes back unchanged."""
    params = {"x": {"default": value}}
    spec = made(params)
    assert DagSpec.model_validate_json(spec.canonical()) == spec
    assert parse_params(spec, {}) == {"x": value} or isinstance(value, str)
