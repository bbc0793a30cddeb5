"""DAGs written in Python: `@task`, `@dag`, `command`, and how a body gets its arguments.

A DAG function runs once, at definition: calling a task in it makes a node, passing a node makes an edge.
Outside of it a task is the plain function. Pydantic is imported only when a spec is asked for.
"""

from __future__ import annotations

import contextvars
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypedDict, Unpack, overload

from redsched.definition.values import MAX_DEPTH, escape, reference, suggestion, unescape
from redsched.errors import DefinitionError

if TYPE_CHECKING:
    from redsched.definition.model import DagSpec, TaskSpec
    from redsched.definition.trial import Trial

Duration = str | float | timedelta
Body = Callable[..., Any]
_OWN: Final = str(Path(__file__).parent.parent)


class TaskOptions(TypedDict, total=False):
    """What a task may be given; the same words as in YAML."""

    trigger_rule: str
    pool: str | dict[str, Any]
    pool_slots: int
    priority: int
    retries: int
    retry_delay: Duration
    retry_max_delay: Duration | None
    retry_backoff: float
    retry_jitter: float
    timeout: Duration | None
    kill_grace: Duration
    skip_exit_code: int
    fail_exit_codes: Iterable[int]
    allow_failure: bool
    max_active: int | None
    concurrency_key: str | None
    description: str
    env: Mapping[str, str]
    cwd: str | None


class CommandOptions(TaskOptions, total=False):
    """A command may name its upstream and inputs too; a Python task gets them by being called."""

    needs: Node | Iterable[Node]
    with_: Mapping[str, Any]


class NamedTaskOptions(TaskOptions, total=False):
    """A Python task is named like its function, or by `id`."""

    id: str


class DagOptions(TypedDict, total=False):
    """What a DAG may be given; the same words as in YAML."""

    id: str
    description: str
    schedule: str | timedelta | dict[str, Any] | None
    timezone: str
    start: str | date | datetime | None
    end: str | date | datetime | None
    catchup: bool
    overlap: Literal["queue", "skip", "cancel_running"]
    spread: Duration | None
    team: str | None
    max_active_runs: int
    max_active_tasks: int
    params: Mapping[str, Any]
    defaults: TaskOptions
    run_timeout: Duration | None
    deadline: Duration | None
    on_success: str | Sequence[str] | Mapping[str, str] | None
    on_failure: str | Sequence[str] | Mapping[str, str] | None
    on_deadline: str | Sequence[str] | Mapping[str, str] | None
    retention: Mapping[str, Any] | None
    cwd: str | None
    pools: Mapping[str, int]


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────


class _Later:
    """Something that is known only when a run has got that far."""

    __slots__ = ()
    __hash__ = object.__hash__

    def _what(self) -> str:
        raise NotImplementedError

    def _refuse(self, *_: object) -> NoReturn:
        raise DefinitionError(
            f"{_call_site()}: {self._what()} is known only in a run, not while the DAG is defined; "
            "pass it to a task and look at it there"
        )

    __bool__ = __iter__ = __len__ = __getitem__ = __int__ = __float__ = __index__ = __contains__ = _refuse
    __add__ = __radd__ = __mul__ = __sub__ = __truediv__ = __mod__ = __lt__ = __le__ = __gt__ = __ge__ = (
        _refuse
    )
    __call__ = __format__ = __str__ = _refuse


class ParamRef(_Later):
    """A parameter inside a DAG function: pass it on to tasks."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def _what(self) -> str:
        return f"the parameter {self.name!r}"

    def __repr__(self) -> str:
        return f"<parameter {self.name}>"


class Node(_Later):
    """A task inside a DAG function: pass it on to make an edge with data, or use `>>` for one without."""

    __slots__ = ("_draft", "id")

    def __init__(self, draft: _Draft, id: str) -> None:
        self._draft = draft
        self.id = id

    def _what(self) -> str:
        return f"the result of task {self.id!r}"

    def __repr__(self) -> str:
        return f"<task {self.id}>"

    def needs(self, *others: Node | Iterable[Node]) -> Node:
        """Run after these."""
        for node in _nodes(others):
            self._draft.add_edge(node, self)
        return self

    def __rshift__(self, after: Any) -> Any:
        for node in _nodes((after,)):
            node.needs(self)
        return after

    def __rrshift__(self, before: Any) -> Node:
        return self.needs(before)

    def __lshift__(self, before: Any) -> Any:
        self.needs(before)
        return before

    def __rlshift__(self, after: Any) -> Node:
        for node in _nodes((after,)):
            node.needs(self)
        return self


def _nodes(values: Iterable[Any]) -> Iterable[Node]:
    for value in values:
        if isinstance(value, Node):
            yield value
        elif isinstance(value, list | tuple | set | frozenset):
            yield from _nodes(value)
        else:
            raise DefinitionError(f"{_call_site()}: {value!r} is no task of this DAG; call the task first")


@dataclass(slots=True)
class _Draft:
    """A DAG while its function runs."""

    name: str
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    bodies: dict[str, Body] = field(default_factory=dict)
    edges: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, id: str, written: dict[str, Any], body: Body | None = None) -> Node:
        place = _call_site()
        if id in self.tasks:
            advice = f'{body.__name__}.options(id="{id}_2")(…)' if body else "another id"
            raise DefinitionError(
                f"DAG {self.name}: two tasks with the id {id!r}, at {self.places[id]} and at {place}; "
                f"give the second {advice if not body else 'its own: ' + advice}"
            )
        self.tasks[id] = written
        self.places[id] = place
        if body is not None:
            self.bodies[id] = body
        return Node(self, id)

    def add_edge(self, before: Node, after: Node) -> None:
        for node in (before, after):
            self.check(node)
        self.edges.setdefault(after.id, {})[before.id] = None

    def check(self, node: Node) -> None:
        if node._draft is not self:
            raise DefinitionError(
                f"{_call_site()}: {node!r} belongs to DAG {node._draft.name}, not to {self.name}"
            )

    def encode(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        """A value as it stands in `with`: nodes and parameters become references."""
        if isinstance(value, Node):
            self.check(value)
            return f"${{{value.id}}}"
        if isinstance(value, ParamRef):
            return f"${{params.{value.name}}}"
        if isinstance(value, str):
            return escape(value)
        if depth and isinstance(value, list | tuple):
            return [self.encode(item, depth - 1) for item in value]
        if depth and isinstance(value, dict):
            return {key: self.encode(item, depth - 1) for key, item in value.items()}
        return value  # JSON or refused: the model looks at it

    def written_tasks(self) -> dict[str, Any]:
        """The tasks in the words of YAML."""
        return {
            id: {**task, "needs": [*task.get("needs", ()), *self.edges.get(id, ())]}
            for id, task in self.tasks.items()
        }


_draft: ContextVar[_Draft | None] = ContextVar("redsched_draft", default=None)


def _call_site() -> str:
    """`file:line` of the first frame that is not ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────


class Task:
    """A function that can be a node. Outside a DAG definition calling it is calling the function."""

    def __init__(self, fn: Body, options: Mapping[str, Any]) -> None:
        self.fn = fn
        self._options = dict(options)
        update_wrapper(self, fn)

    def options(self, **options: Unpack[NamedTaskOptions]) -> Task:
        """The same function with other options: `extract.options(id="extract_2", retries=1)(…)`."""
        return Task(self.fn, {**self._options, **_known(options, NamedTaskOptions, "options")})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        draft = _draft.get()
        if draft is None:
            return self.fn(*args, **kwargs)
        options = dict(self._options)
        id = options.pop("id", self.fn.__name__)
        inputs = _named(self.fn, args, kwargs)
        written = {**options, "call": call_of(self.fn)}
        if inputs:
            written["with"] = {key: draft.encode(value) for key, value in inputs.items()}
        return draft.add(id, written, self.fn)

    def __repr__(self) -> str:
        return f"<task {self._options.get('id', self.fn.__name__)}>"


def _named(fn: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; by number ("0", "1") only where the function takes them by position alone."""
    try:
        signature = inspect.signature(fn)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"{_call_site()}: {fn.__name__}(): {error}") from None
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    if any(kind in positional for kind in kinds):
        return {**{str(i): value for i, value in enumerate(args)}, **kwargs}
    names = [name for name in bound.arguments if name not in kwargs]
    return {**dict(zip(names, args, strict=False)), **kwargs}


@overload
def task(fn: Body, /) -> Task: ...
@overload
def task(fn: None = None, /, **options: Unpack[NamedTaskOptions]) -> Callable[[Body], Task]: ...
def task(fn: Body | None = None, /, **options: Unpack[NamedTaskOptions]) -> Task | Callable[[Body], Task]:
    """Make a function a task: `@task` or `@task(retries=3, pool="db")`."""
    known = _known(options, NamedTaskOptions, "@task")
    if fn is not None:
        return Task(_function(fn, "@task"), known)
    return lambda fn: Task(_function(fn, "@task(…)"), known)


def command(id: str, run: str | list[str], **options: Unpack[CommandOptions]) -> Node:
    """A command as a node of the DAG that is being defined: `command("clean", ["python", "clean.py"])`."""
    draft = _draft.get()
    if draft is None:
        raise DefinitionError(f"{_call_site()}: command({id!r}, …) works only inside a @dag function")
    written = dict(_known(options, CommandOptions, "command"))
    needs = written.pop("needs", ())
    if inputs := written.pop("with_", None):
        written["with"] = {key: draft.encode(value) for key, value in inputs.items()}
    node = draft.add(id, {**written, "run": run})
    return node.needs(needs)


def _known(options: Mapping[str, Any], kind: Any, what: str) -> dict[str, Any]:
    names = set(kind.__annotations__)
    for name in options:
        if name not in names:
            near = suggestion(name, names) or f"; known are {', '.join(sorted(names))}"
            raise DefinitionError(f"{_call_site()}: {what}: unknown option {name!r}{near}")
    return dict(options)


def _function(fn: object, what: str) -> Body:
    if isinstance(fn, Task):
        return fn.fn
    if not callable(fn) or not hasattr(fn, "__name__"):
        raise DefinitionError(f"{_call_site()}: {what} stands over a function, not over {fn!r}")
    return fn


# ── DAGs ─────────────────────────────────────────────────────────────────────────────────────────


class Dag:
    """A DAG in Python. Its function runs when `.spec` is first asked for, so one bad DAG stops no other."""

    def __init__(self, fn: Body, options: Mapping[str, Any]) -> None:
        self.fn = fn
        self._options = dict(options)
        self._made: tuple[DagSpec, dict[str, Body]] | None = None
        self.place = _place_of(fn)
        self.module = fn.__module__
        update_wrapper(self, fn)
        created.append(self)

    @property
    def id(self) -> str:
        """The DAG's id: the function's name, or what `id=` says."""
        return str(self._options.get("id", self.fn.__name__))

    @property
    def spec(self) -> DagSpec:
        """The checked definition. Raises DefinitionError."""
        spec, bodies = self._make()
        for name, body in bodies.items():
            _check_importable(f"{self.place}: DAG {self.id}: task {name!r}", body)
        return spec

    def test(self, /, **params: Any) -> Trial:
        """Run it here and now, without Redis: in order, retries at once, with the real trigger rules."""
        from redsched.definition.trial import try_dag

        spec, bodies = self._make()
        return try_dag(spec, params, bodies=bodies)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self.fn.__name__
        raise DefinitionError(
            f"{_call_site()}: {name}() is not needed: the DAG is defined as it stands; to run it here write {name}.test(…)"
        )

    def __repr__(self) -> str:
        return f"<DAG {self.id}>"

    def _make(self) -> tuple[DagSpec, dict[str, Body]]:
        if self._made is None:
            from redsched.definition.model import build_dag
            from redsched.definition.plan import check_graph

            draft = _Draft(self.id)
            written = {"description": _first_line(self.fn), **self._options}
            written.pop("id", None)
            written["params"] = _params(self.fn, written.get("params") or {})
            self._define(draft, written["params"])
            spec = build_dag({**written, "dag": self.id, "tasks": draft.written_tasks()}, self.place)
            check_graph(spec)
            self._made = spec, draft.bodies
        return self._made

    def _define(self, draft: _Draft, params: Mapping[str, Any]) -> None:
        names = inspect.signature(self.fn).parameters
        token = _draft.set(draft)
        try:
            self.fn(**{name: ParamRef(name) for name in names if name in params})
        finally:
            _draft.reset(token)


created: list[Dag] = []  # all DAGs of this process, for the loader: a factory may keep them nowhere else


@overload
def dag(fn: Body, /) -> Dag: ...
@overload
def dag(fn: None = None, /, **options: Unpack[DagOptions]) -> Callable[[Body], Dag]: ...
def dag(fn: Body | None = None, /, **options: Unpack[DagOptions]) -> Dag | Callable[[Body], Dag]:
    """Make a function the definition of a DAG: `@dag` or `@dag(schedule="0 2 * * *", params={…})`.

    Its arguments are the DAG's parameters; those without a default are required.
    """
    known = _known(options, DagOptions, "@dag")
    if fn is not None:
        return Dag(_function(fn, "@dag"), known)
    return lambda fn: Dag(_function(fn, "@dag(…)"), known)


_SCHEMA_TYPES: Final = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}


def _params(fn: Body, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a DAG function: what `params=` says, else the argument's default and annotation."""
    params = dict(given)
    for name, argument in inspect.signature(fn).parameters.items():
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD, argument.POSITIONAL_ONLY):
            raise DefinitionError(f"{_place_of(fn)}: {fn.__name__}({argument}): name each parameter of a DAG")
        if name in params:
            continue
        kind = _schema_type(argument.annotation)
        schema = {"type": kind} if kind else {}
        if argument.default is not argument.empty:
            schema["default"] = argument.default
            params[name] = schema if kind and argument.default is not None else argument.default
        else:
            params[name] = schema
    return params


def _schema_type(annotation: object) -> str | None:
    by_name = {kind.__name__: word for kind, word in _SCHEMA_TYPES.items()}
    if isinstance(annotation, str):  # from __future__ import annotations
        return by_name.get(annotation.partition("[")[0])
    origin = getattr(annotation, "__origin__", annotation)
    return _SCHEMA_TYPES.get(origin) if isinstance(origin, type) else None


def _place_of(fn: Body) -> str:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)


def _first_line(fn: Body) -> str:
    text = (fn.__doc__ or "").strip()
    return text.splitlines()[0] if text else ""


# ── functions by name ────────────────────────────────────────────────────────────────────────────


def call_of(fn: Body) -> str:
    """`module:qualname`, as a worker will import it."""
    module = fn.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        module = spec.name if spec else Path(file).stem if file else "__main__"
    return f"{module}:{fn.__qualname__.replace('<', '').replace('>', '')}"


def _check_importable(where: str, fn: Body) -> None:
    found: Any = sys.modules.get(fn.__module__)
    for name in fn.__qualname__.split("."):
        found = getattr(found, name, None)
    if _plain(found) is not fn:
        raise DefinitionError(
            f"{where}: a worker can't import {fn.__qualname__!r} from {fn.__module__!r}; "
            f"define it with `def` at the top level of the file, under that name"
        )


def resolve_call(call: str) -> Body:
    """The plain function that `module:qualname` names. Errors inside the module come out as they are."""
    module_name, _, qualname = call.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise DefinitionError(
                f"call {call!r}: there is no module {module_name!r}; give its folder to `worker PATH…` or install it"
            ) from None
        raise
    for name in qualname.split("."):
        if not hasattr(found, name):
            raise DefinitionError(
                f"call {call!r}: module {module_name!r} has no {qualname!r}{suggestion(name, dir(found))}"
            )
        found = getattr(found, name)
    body = _plain(found)
    if not callable(body):
        raise DefinitionError(f"call {call!r}: {qualname!r} is no function but {type(body).__name__}")
    return body  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    return value.fn if isinstance(value, Task) else value


# ── arguments ────────────────────────────────────────────────────────────────────────────────────


def bind_inputs(task: TaskSpec, results: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `with`: "${task}" is its result (None without one), "${params.x}" the parameter."""
    return {key: fill(value, results, params) for key, value in task.with_.items()}


def fill(value: Any, results: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
    """One value of `with`, at any depth (JSON: at most 64)."""
    if isinstance(value, dict):
        return {key: fill(item, results, params) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fill(item, results, params) for item in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    name = reference(value)
    if name is None:
        return unescape(value)
    return params.get(name[7:]) if name.startswith("params.") else results.get(name)


def split_inputs(inputs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments: the keys "0", "1", … are positions."""
    if not inputs:
        return [], {}
    positions = sorted((key for key in inputs if key.isdecimal()), key=int)
    return [inputs[key] for key in positions], {key: inputs[key] for key in inputs if not key.isdecimal()}


def call_body(fn: Body, inputs: Mapping[str, Any]) -> Any:
    """Call a body with the values of its `with`; an async body is run to its end."""
    args, kwargs = split_inputs(inputs)
    value = fn(*args, **kwargs)
    return _finished(value) if inspect.isawaitable(value) else value


def _finished(waiting: Any) -> Any:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awaited(waiting))
    # In a notebook or an async test a loop runs in this thread already: take another thread.
    answer: list[Any] = []
    here = contextvars.copy_context()
    thread = threading.Thread(target=lambda: answer.append(here.run(_caught, waiting)))
    thread.start()
    thread.join()
    value, error = answer[0]
    if error is not None:
        raise error
    return value


def _caught(waiting: Any) -> tuple[Any, BaseException | None]:
    import asyncio

    try:
        return asyncio.run(_awaited(waiting)), None
    except BaseException as error:  # noqa: BLE001 - because it is raised again in the caller's thread
        return None, error


async def _awaited(waiting: Any) -> Any:
    return await waiting
