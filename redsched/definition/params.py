"""Parameters of a run: small JSON schemas, and the values that fit them.

Values are never converted here: "8" is not 8. Only the command line reads text as JSON first, since
there everything is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from redsched.definition.values import check_json, instant_text, suggestion, zone
from redsched.errors import DefinitionError

if TYPE_CHECKING:
    from redsched.definition.model import DagSpec

KEYWORDS: Final = frozenset(
    {"type", "default", "minimum", "maximum", "minLength", "maxLength", "pattern", "enum", "format", "items"}
    | {"title", "description"}
)
TYPES: Final = ("string", "integer", "number", "boolean", "array", "object", "null")
TEMPLATES: Final = ("logical_date", "data_interval_start", "data_interval_end")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_TEMPLATE: Final = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")


def check_params(written: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
    """The schemas of all parameters of a DAG, as written."""
    schemas = {name: check_param_schema(name, schema) for name, schema in written.items()}
    seen: dict[str, str] = {}
    for name in schemas:
        other = seen.setdefault(name.upper(), name)
        if other != name:
            raise DefinitionError(f"{other} and {name} would be one variable REDSCHED_PARAM_{name.upper()}")
    return schemas


def check_param_schema(name: object, written: object) -> dict[str, Any]:
    """The schema of a parameter as written: `100` becomes {type: number, default: 100}."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(f"{name!r} can't be a name; write letters, digits and _, not a digit first")
    where = name
    if not isinstance(written, dict):
        return _inferred(check_json(written, where))
    schema = _checked(written, where)
    if "default" in schema and template_of(schema["default"]) is None:
        complaint = complaint_about(schema["default"], schema)
        if complaint:
            raise DefinitionError(f"{where}.default: {complaint}")
    return schema


def template_of(value: object) -> str | None:
    """`logical_date` for "{{ logical_date }}"; None for everything else."""
    match = _TEMPLATE.fullmatch(value) if isinstance(value, str) else None
    return match[1] if match else None


def parse_params(dag: DagSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a run: what was given, checked, and the defaults (templates unrendered)."""
    values = _check_given(dag, given)
    for name in dag.required_params:
        if name not in values:
            raise DefinitionError(f"DAG {dag.dag} needs the parameter {name!r}; give it with -p {name}=…")
    return {
        name: values[name] if name in values else schema["default"] for name, schema in dag.params.items()
    }


def _check_given(dag: DagSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in dag.params:
            known = f"; it has: {', '.join(dag.params)}" if dag.params else "; it has none"
            near = suggestion(str(name), dag.params) or known
            raise DefinitionError(f"DAG {dag.dag} has no parameter {name!r}{near}")
        values[name] = check_json(value, f"parameter {name}")
        if complaint := complaint_about(values[name], dag.params[name]):
            raise DefinitionError(f"parameter {name} of DAG {dag.dag}: {complaint}")
    return values


def render_params(
    dag: DagSpec,
    params: Mapping[str, Any],
    *,
    logical_date: datetime,
    data_interval_start: datetime | None = None,
    data_interval_end: datetime | None = None,
) -> dict[str, Any]:
    """The parameters with the templates among their defaults filled in: once the moment is known.

    Format `date` is the day in the DAG's zone, everything else the instant in UTC.
    """
    moments = {
        "logical_date": logical_date,
        "data_interval_start": data_interval_start or logical_date,
        "data_interval_end": data_interval_end or logical_date,
    }
    values = dict(params)
    for name, schema in dag.params.items():
        template = template_of(schema.get("default"))
        if template and values.get(name) == schema["default"]:
            moment = moments[template]
            local = moment.astimezone(zone(dag.timezone))
            values[name] = (
                local.date().isoformat() if schema.get("format") == "date" else instant_text(moment)
            )
    return values


def params_from_cli(dag: DagSpec, pairs: Iterable[str]) -> dict[str, Any]:
    """`["x=8", "day=2026-01-01"]` as values: text where the schema says string, else read as JSON."""
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise DefinitionError(f"-p {pair!r}: write -p name=value")
        if name in given:
            raise DefinitionError(f"-p {name}: given twice")
        given[name] = _from_text(text, dag.params.get(name, {}))
    return _check_given(dag, given)


def _from_text(text: str, schema: Mapping[str, Any]) -> Any:
    types = _types(schema)
    if types == ["string"]:
        return text
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text  # `parse_params` says what was expected
    if types and not any(_is(value, kind) for kind in types) and "string" in types:
        return text
    return value


def _no_constant(word: str) -> Any:
    raise ValueError(word)  # NaN and Infinity are not JSON


def complaint_about(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Why the value doesn't fit its schema, in a sentence; None if it does."""
    types = _types(schema)
    if types and not any(_is(value, kind) for kind in types):
        return (
            f"expected {' or '.join(types)}, got {_kind(value)}{'' if value is None else ' ' + _shown(value)}"
        )
    if value is None and not types and "enum" not in schema and schema.get("default", 0) is not None:
        return "null is not allowed; say so with type: [string, 'null']"
    if "enum" in schema and not any(_same(value, item) for item in schema["enum"]):
        return f"{_shown(value)} is none of {_shown(schema['enum'])}"
    if isinstance(value, str):
        return _about_text(value, schema)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _about_number(value, schema)
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            if complaint := complaint_about(item, schema["items"]):
                return f"item {i}: {complaint}"
    return None


def _about_number(value: float, schema: Mapping[str, Any]) -> str | None:
    if "minimum" in schema and value < schema["minimum"]:
        return f"{value} is less than the minimum {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        return f"{value} is more than the maximum {schema['maximum']}"
    return None


def _about_text(value: str, schema: Mapping[str, Any]) -> str | None:
    if len(value) < schema.get("minLength", 0):
        return f"{_shown(value)} is shorter than {schema['minLength']} characters"
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        return f"{_shown(value)} is longer than {schema['maxLength']} characters"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{_shown(value)} does not match the pattern {schema['pattern']!r}"
    if schema.get("format") == "date" and not _is_date(value):
        return f"{_shown(value)} is no date; write 2026-01-31"
    if schema.get("format") == "date-time" and not _is_instant(value):
        return f"{_shown(value)} is no instant; write 2026-01-31T02:00:00Z"
    return None


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False


def _is_instant(text: str) -> bool:
    try:
        return "T" in text.upper() and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def _inferred(default: Any) -> dict[str, Any]:
    """A bare default: its kind is kept, and nothing else is asked of a value."""
    kind = _kind(default)
    if kind == "null":
        return {"default": None}
    return {"type": "number" if kind == "integer" else kind, "default": default}


def _checked(written: dict[Any, Any], where: str) -> dict[str, Any]:
    schema = check_json(written, where)
    assert isinstance(schema, dict)
    for key in schema:
        if key not in KEYWORDS:
            near = suggestion(key, KEYWORDS) or f"; known are {', '.join(sorted(KEYWORDS))}"
            raise DefinitionError(
                f"{where}: unknown key {key!r}{near} (a mapping as default is written {{type: object, default: …}})"
            )
    _check_keywords(schema, where)
    return schema


def _check_keywords(schema: dict[str, Any], where: str) -> None:
    for kind in _types(schema):
        if kind not in TYPES:
            raise DefinitionError(f"{where}.type: {kind!r} is not known; known are {', '.join(TYPES)}")
    for key in ("minimum", "maximum"):
        if key in schema and not _is(schema[key], "number"):
            raise DefinitionError(f"{where}.{key}: {schema[key]!r} must be a number")
    for key in ("minLength", "maxLength"):
        if key in schema and not (_is(schema[key], "integer") and schema[key] >= 0):
            raise DefinitionError(f"{where}.{key}: {schema[key]!r} must be a whole number from 0")
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        raise DefinitionError(f"{where}.enum: must be a list of the allowed values")
    if "format" in schema and schema["format"] not in ("date", "date-time"):
        raise DefinitionError(f"{where}.format: {schema['format']!r} is not known; known are date, date-time")
    if "pattern" in schema:
        _check_pattern(schema["pattern"], where)
    if "items" in schema:
        if not isinstance(schema["items"], dict):
            raise DefinitionError(f"{where}.items: must be a schema, like {{type: integer}}")
        _checked(schema["items"], f"{where}.items")
    template = template_of(schema.get("default"))
    if template is not None and template not in TEMPLATES:
        known = ", ".join(f"{{{{ {name} }}}}" for name in TEMPLATES)
        raise DefinitionError(f"{where}.default: {schema['default']!r} is not known; known are {known}")


def _check_pattern(pattern: object, where: str) -> None:
    try:
        re.compile(pattern)  # type: ignore[call-overload]
    except (re.error, TypeError) as error:
        raise DefinitionError(f"{where}.pattern: {pattern!r} is no regular expression: {error}") from None


def _types(schema: Mapping[str, Any]) -> list[Any]:
    kind = schema.get("type")
    if kind is None:
        return []
    return list(kind) if isinstance(kind, list) else [kind]


def _kind(value: object) -> str:
    for kind in ("null", "boolean", "integer", "number", "string", "array"):
        if _is(value, kind):
            return kind
    return "object"


def _is(value: object, kind: object) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "string":
        return isinstance(value, str)
    if kind == "array":
        return isinstance(value, list)
    if kind == "object":
        return isinstance(value, dict)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return kind == "number" or (kind == "integer" and value == int(value))


def _same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:60]}…"
