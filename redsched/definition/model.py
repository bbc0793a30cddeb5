"""What a DAG is: the pydantic models at the door, and the canonical text that is stored.

Knows nothing of files, decorators or Redis. Invariant: `DagSpec.model_validate_json(spec.canonical())`
gives the same spec, and equal specs have equal digests.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    StrictFloat,
    StrictInt,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from redsched.definition.cron import check_schedule
from redsched.definition.params import check_params, params_from_cli, parse_params, render_params
from redsched.definition.values import (
    check_id,
    check_json,
    instant_text,
    parse_duration,
    parse_instant,
    reference,
    references,
    suggestion,
    unescape,
    zone,
)
from redsched.errors import DefinitionError
from redsched.retry import CEILING_MS
from redsched.states import TRIGGER_RULES

__all__ = [
    "After",
    "DagSpec",
    "Every",
    "Retention",
    "TaskSpec",
    "build_dag",
    "check_id",
    "check_json",
    "check_schedule",
    "params_from_cli",
    "parse_duration",
    "parse_instant",
    "parse_params",
    "problems",
    "reference",
    "references",
    "render_params",
    "report",
    "unescape",
]

T = TypeVar("T")
Problem = tuple[tuple[str | int, ...], str]

MAX_SLOTS: Final = 1_000_000
_CALL: Final = re.compile(r"\w[\w-]*(?:\.\w[\w-]*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_SHOWN_PROBLEMS: Final = 20


# ── the small types ──────────────────────────────────────────────────────────────────────────────


class Wrong(ValueError):
    """A refusal, which may belong to a place below the one where it was noticed."""

    def __init__(self, text: str, *loc: str | int) -> None:
        super().__init__(text)
        self.loc = loc


def _said(reader: Callable[..., T], *args: object) -> T:
    """The reader's answer; its refusal as the error that pydantic collects."""
    try:
        return reader(*args)
    except DefinitionError as error:
        raise Wrong(str(error)) from None


def _duration(value: object) -> int:
    return _said(parse_duration, value)


def _positive(value: object) -> int:
    if (ms := _duration(value)) == 0:
        raise Wrong("must be more than 0; for no limit leave it out")
    return ms


def _retry_duration(value: object) -> int:
    if (ms := _duration(value)) > CEILING_MS:
        raise Wrong(f"{value!r} is too long; at most 7d")
    return ms


def _clean(text: str) -> str:
    if "\0" in text:
        raise Wrong("holds a NUL character, which no command line, variable or path can")
    return str(_said(check_json, text, ""))


def _text(value: object) -> str:
    """Whole numbers are the same as text; 1.10 and `true` are not, so they must be quoted."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise Wrong(f"must be text, not {_shown(value)}{_quoted(value)}")
    return _clean(value)


def _quoted(value: object) -> str:
    return (
        f"; quote it: '{json.dumps(value)}'" if value is None or isinstance(value, bool | int | float) else ""
    )


def _run(value: object) -> object:
    """A shell line, or a list of arguments."""
    if isinstance(value, str):
        words = [_clean(value)]
    elif isinstance(value, list | tuple):
        words = [_text(word) for word in value]
    else:
        raise Wrong(f"must be a shell line or a list of arguments, not {_shown(value)}")
    if not words or not words[0].strip():
        raise Wrong("is empty; write a shell line or a list of arguments")
    return words[0] if isinstance(value, str) else tuple(words)


def _call(value: object) -> object:
    if not isinstance(value, str) or not _CALL.fullmatch(value):
        raise Wrong(f"{_shown(value)} must name an importable function; write 'module:function'")
    return value


def _rule(value: object) -> object:
    if not isinstance(value, str) or value not in TRIGGER_RULES:
        near = suggestion(str(value), TRIGGER_RULES)
        raise Wrong(f"{_shown(value)} is not known{near}; known are {', '.join(TRIGGER_RULES)}")
    return value


def _variable(value: object) -> str:
    name = _text(value)
    if not name or "=" in name:
        raise Wrong(f"{name!r} can't be the name of a variable")
    return name


def _folder(value: object) -> str:
    if not (folder := _text(value)):
        raise Wrong("is empty; write a folder, or leave it out")
    return folder


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


def _written_ms(ms: int) -> str:
    return f"{ms}ms"


_Written = PlainSerializer(_written_ms, return_type=str)
Milliseconds = Annotated[int, BeforeValidator(_duration), _Written]
PositiveMs = Annotated[int, BeforeValidator(_positive), _Written]
RetryMs = Annotated[int, BeforeValidator(_retry_duration), _Written]
Id = Annotated[str, BeforeValidator(lambda value: _said(check_id, value, ""))]
JsonValue = Annotated[Any, BeforeValidator(lambda value: _said(check_json, value, ""))]
Text = Annotated[str, BeforeValidator(_text)]
Folder = Annotated[str, BeforeValidator(_folder)]
Variable = Annotated[str, BeforeValidator(_variable)]
ExitCode = Annotated[StrictInt, Field(ge=1, le=255)]
Slots = Annotated[StrictInt, Field(ge=1, le=MAX_SLOTS)]
Cap = Annotated[StrictInt, Field(ge=1, le=1_000_000)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


# ── a task ───────────────────────────────────────────────────────────────────────────────────────


class TaskSpec(_Model):
    """One node of a DAG, with the DAG's defaults merged in. `needs` holds the edges of `with` too."""

    run: Annotated[str | tuple[str, ...], BeforeValidator(_run)] | None = None
    call: Annotated[str, BeforeValidator(_call)] | None = None
    needs: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ()
    with_: dict[str, JsonValue] = Field(default={}, alias="with")
    env: dict[Variable, Text] = {}
    cwd: Folder | None = None
    trigger_rule: Annotated[str, BeforeValidator(_rule)] = "all_success"
    pool: Id = "default"
    pool_slots: Annotated[StrictInt, Field(ge=1, le=1000)] = 1
    priority: Annotated[StrictInt, Field(ge=-1000, le=1000)] = 0
    retries: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 0
    retry_delay: RetryMs = 0
    retry_max_delay: RetryMs | None = None
    retry_backoff: Annotated[StrictFloat, Field(ge=1, le=100)] = 1.0
    retry_jitter: Annotated[StrictFloat, Field(ge=0, le=1)] = 0.0
    timeout: PositiveMs | None = None
    kill_grace: Milliseconds = 10_000
    skip_exit_code: ExitCode = 99
    fail_exit_codes: Annotated[tuple[ExitCode, ...], BeforeValidator(_as_list)] = ()
    allow_failure: bool = False
    max_active: Cap | None = None
    concurrency_key: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    description: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.run is None) == (self.call is None):
            raise Wrong("a task has exactly one of `run:` (a command) and `call:` (module:function)")
        implied = (
            [name for name in references(self.with_) if not name.startswith("params.")] if self.with_ else []
        )
        object.__setattr__(self, "needs", tuple(dict.fromkeys((*self.needs, *implied))))
        return self


# ── a DAG ────────────────────────────────────────────────────────────────────────────────────────


class Every(_Model):
    """`{every: 15m}`: a fixed distance."""

    every: PositiveMs

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if self.every < 1_000:
            raise Wrong("every: the shortest is 1s")
        return self


class After(_Model):
    """`{after: other_dag}`: when a run of that DAG has succeeded."""

    after: Id


class Retention(_Model):
    """How much of the past is kept; what is left out comes from the settings."""

    runs: Cap | None = None
    age: PositiveMs | None = None


def _schedule(value: object) -> object:
    if isinstance(value, str):
        _said(check_schedule, value)
        return " ".join(value.split())
    if isinstance(value, timedelta):
        return Every.model_validate({"every": value})
    if isinstance(value, Every | After) or (isinstance(value, dict) and set(value) in ({"every"}, {"after"})):
        return value
    raise Wrong(
        f"{_shown(value)} is not known; write '0 2 * * *', '@daily', {{every: 15m}} or {{after: dag_id}}"
    )


def _kind_of_schedule(value: object) -> str:
    if isinstance(value, str):
        return "cron"
    return "every" if isinstance(value, Every) or (isinstance(value, dict) and "every" in value) else "after"


Schedule = Annotated[
    Annotated[str, Tag("cron")] | Annotated[Every, Tag("every")] | Annotated[After, Tag("after")],
    Discriminator(_kind_of_schedule),
    BeforeValidator(_schedule),
]


def _http(value: object) -> str:
    text = _text(value)
    if not text.startswith(("http://", "https://")):
        raise Wrong(f"{_shown(value)} is no address; write http://… or https://…")
    return text


def _zone(value: object) -> str:
    name = _text(value)
    _said(zone, name)
    return name


class Url(_Model):
    """`{url: https://…}`: a JSON document is sent there by POST."""

    url: Annotated[str, BeforeValidator(_http)]


# A shell line, an argument list, or a URL.
Hook = Annotated[str | tuple[str, ...], BeforeValidator(_run)] | Url


class DagSpec(_Model):
    """A named workflow. The order of `tasks` is kept: it gives them their index in the plan.

    `start` and `end` are held as UTC; `params` as schemas, where one without "default" is required.
    """

    dag: Id
    description: str = ""
    schedule: Schedule | None = None
    timezone: Annotated[str, BeforeValidator(_zone)] = "UTC"
    start: str | None = None
    end: str | None = None
    catchup: bool = False
    overlap: Literal["queue", "skip", "cancel_running"] = "queue"
    spread: PositiveMs | None = None
    team: Id | None = None
    max_active_runs: Cap = 16
    max_active_tasks: Cap = 64
    params: dict[str, Any] = {}
    tasks: dict[Id, TaskSpec]
    run_timeout: PositiveMs | None = None
    deadline: PositiveMs | None = None
    on_success: Hook | None = None
    on_failure: Hook | None = None
    on_deadline: Hook | None = None
    retention: Retention | None = None
    cwd: Folder | None = None
    pools: dict[Id, Slots] = {}

    @property
    def group(self) -> str:
        """The fair-share group: the team, or the DAG alone."""
        return self.team or self.dag

    @property
    def required_params(self) -> list[str]:
        """The parameters without a default."""
        return [name for name, schema in self.params.items() if "default" not in schema]

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise Wrong("must be a mapping: `dag: id` and `tasks: {id: {run: …}}`")
        data = dict(data)
        defaults = data.pop("defaults", None)
        tasks = data.get("tasks")
        if isinstance(tasks, dict):
            if defaults is not None:
                tasks = _merged(defaults, tasks)
            data["tasks"], data["pools"] = _collected_pools(tasks, data.get("pools"))
        return data

    @field_validator("start", "end", mode="before")
    @classmethod
    def _instant(cls, value: object, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        return instant_text(_said(parse_instant, value, info.data.get("timezone", "UTC")))

    @field_validator("params", mode="before")
    @classmethod
    def _schemas(cls, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Wrong("must be a mapping of name: default, or name: {type: …}")
        return _said(check_params, value)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.tasks:
            raise Wrong("is empty; a DAG needs at least one task", "tasks")
        if self.start and self.end and self.start > self.end:
            raise Wrong(f"{self.end} lies before start: {self.start}", "end")
        if self.schedule is not None and (required := self.required_params):
            raise Wrong("needs a default, because a schedule can't ask for a value", "params", required[0])
        for name, task in self.tasks.items():
            _check_in_dag(self, name, task)
        return self

    def canonical(self) -> str:
        """The spec as JSON: compact, sorted, without defaults; `tasks` and `params` in their order."""
        return json.dumps(self.written(), separators=(",", ":"), ensure_ascii=False)

    def digest(self) -> str:
        """Sixteen hex digits that change when the definition does."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]

    def written(self) -> dict[str, Any]:
        """The spec as JSON-ready data, the way it could have been written."""
        data = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        kept = {key: data.pop(key) for key in ("tasks", "params") if key in data}
        data = _sorted(data)
        data.update({key: {name: _sorted(item) for name, item in kept[key].items()} for key in sorted(kept)})
        return {key: data[key] for key in sorted(data)}


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def _merged(defaults: object, tasks: dict[str, Any]) -> dict[str, Any]:
    """The tasks with the DAG's defaults; `env` is merged by name, everything else replaced."""
    if not isinstance(defaults, dict):
        raise Wrong("must be a mapping, like {retries: 2, timeout: 10m}", "defaults")
    for key in ("run", "call", "needs", "with", "description"):
        if key in defaults:
            raise Wrong("belongs to a single task", "defaults", key)
    trial = {**defaults, "run": "true"}
    if isinstance(trial.get("pool"), dict):
        del trial["pool"]  # {name, slots} is looked at with the pools
    try:
        TaskSpec.model_validate(trial)
    except ValidationError as error:
        loc, text = problems(error)[0]
        raise Wrong(text, "defaults", *loc) from None
    return {name: _with_defaults(defaults, task) for name, task in tasks.items()}


def _with_defaults(defaults: dict[str, Any], task: object) -> object:
    if not isinstance(task, dict):
        return task
    merged = {**defaults, **task}
    if isinstance(defaults.get("env"), dict) and isinstance(task.get("env"), dict):
        merged["env"] = {**defaults["env"], **task["env"]}
    return merged


def _collected_pools(tasks: dict[str, Any], pools: Any) -> tuple[dict[str, Any], Any]:
    """Inline `pool: {name, slots}` becomes the name, and the sizes are collected."""
    sizes = {} if pools is None else pools
    inline = [
        name for name, task in tasks.items() if isinstance(task, dict) and isinstance(task.get("pool"), dict)
    ]
    if not inline or not isinstance(sizes, dict):
        return tasks, sizes
    tasks, sizes = dict(tasks), dict(sizes)
    for task_id in inline:
        pool = tasks[task_id]["pool"]
        loc = ("tasks", task_id, "pool")
        if set(pool) != {"name", "slots"} or not isinstance(pool["name"], str):
            raise Wrong("write the name of a pool, or {name: db, slots: 4}", *loc)
        name, slots = pool["name"], pool["slots"]
        if sizes.setdefault(name, slots) != slots:
            raise Wrong(f"{name!r} has {sizes[name]} slots elsewhere in this DAG, here {slots}", *loc)
        tasks[task_id] = {**tasks[task_id], "pool": name}
    return tasks, sizes


def _check_in_dag(dag: DagSpec, name: str, task: TaskSpec) -> None:
    """What only the DAG around a task can tell, but for its edges."""
    loc = ("tasks", name)
    if name.startswith("params."):
        raise Wrong("an id can't begin with 'params.', which names parameters in `with:`", *loc)
    slots = dag.pools.get(task.pool)
    if slots is not None and task.pool_slots > slots:
        raise Wrong(f"takes {task.pool_slots} slots of the pool {task.pool!r}, which has {slots}", *loc)
    for wanted in references(task.with_) if task.with_ else ():
        if wanted.startswith("params.") and wanted[7:] not in dag.params:
            near = suggestion(wanted[7:], dag.params)
            raise Wrong(f"there is no parameter {wanted[7:]!r}{near}", *loc, "with")


# ── refusals, in words ───────────────────────────────────────────────────────────────────────────


def build_dag(data: object, where: str = "") -> DagSpec:
    """The spec of what was written, or one DefinitionError that lists what is wrong with it."""
    try:
        return DagSpec.model_validate(data)
    except ValidationError as error:
        name = data.get("dag") if isinstance(data, dict) else None
        raise DefinitionError(report(name, problems(error), where)) from None


def report(dag: object, found: Sequence[Problem], where: str = "") -> str:
    """The text of a refusal: one line a problem."""
    lead = f"{where}: " if where else ""
    lead += f"DAG {dag}: " if isinstance(dag, str) else ""
    lines = [
        f"{lead}{'.'.join(map(str, loc))}{': ' if loc else ''}{text}" for loc, text in found[:_SHOWN_PROBLEMS]
    ]
    if len(found) > _SHOWN_PROBLEMS:
        lines.append(f"{lead}… and {len(found) - _SHOWN_PROBLEMS:,} more")
    return "\n".join(lines)


def problems(error: ValidationError) -> list[Problem]:
    """What pydantic found, as (path, sentence): unknown keys with near ones, values as written."""
    found: dict[tuple[str | int, ...], str] = {}
    for item in error.errors(include_url=False):
        cause = item.get("ctx", {}).get("error")
        inner = cause.loc if isinstance(cause, Wrong) else ()
        loc = (*(part for part in item["loc"] if part != "[key]"), *inner)
        if loc[:1] == ("schedule",):
            loc = loc[:1] + loc[2:]  # because pydantic adds the kind of schedule
        found.setdefault(loc, _explain(item, _keys_at(error.title, loc)))
    return list(found.items())


def _explain(item: Any, known: list[str]) -> str:
    kind, value, limits = item["type"], item["input"], item.get("ctx", {})
    if kind == "value_error":
        return str(limits["error"])
    if kind == "extra_forbidden":
        near = suggestion(str(item["loc"][-1]), known)
        return f"unknown key{near or '; known are ' + ', '.join(sorted(known))}"
    if kind in _PLAIN:
        return f"{_PLAIN[kind]}{'' if kind == 'missing' else f', not {_shown(value)}'}"
    if kind in ("greater_than_equal", "less_than_equal"):
        side = "least" if kind == "greater_than_equal" else "most"
        return f"must be at {side} {limits.get('ge', limits.get('le')):,}, not {_shown(value)}"
    if kind == "string_type":
        return f"must be text, not {_shown(value)}{_quoted(value)}"
    return f"{_shown(value)}: {item['msg'][0].lower()}{item['msg'][1:]}"


_PLAIN: Final = {
    "missing": "is missing",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
}


def _keys_at(title: str, loc: tuple[str | int, ...]) -> list[str]:
    model: type[BaseModel] = TaskSpec if title == "TaskSpec" or loc[:1] == ("tasks",) else DagSpec
    model = Retention if loc[:1] == ("retention",) else model
    names = [field.alias or name for name, field in model.model_fields.items()]
    return [*names, "defaults"] if model is DagSpec else names


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}…"
