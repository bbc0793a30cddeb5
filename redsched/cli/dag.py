"""`redsched dag`: register definitions, look at them, pause and delete them, try them without Redis."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redsched.cli.base import Group, state
from redsched.cli.names import DAG
from redsched.cli.output import (
    Instant,
    State,
    compact,
    confirm,
    fields,
    message,
    print_json,
    say,
    table,
    warning,
)
from redsched.errors import NotFound, RedschedError, Unavailable

if TYPE_CHECKING:
    from redsched.client import Client
    from redsched.definition.config import Loaded
    from redsched.definition.model import DagSpec
    from redsched.definition.trial import Trial

dag = Group(
    "dag",
    help="DAGs: register, validate, list, show, graph, next, versions, pause, resume, delete, test.",
    short_help="Register, look at, pause, test and delete DAGs.",
    lazy={"next": "redsched.cli.next:next_"},
)

_paths = click.argument(
    "paths", metavar="PATH…", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
Row = dict[str, Any]


# ---- from files


@dag.command(json=True, short_help="Register the DAGs of files and folders.")
@_paths
@click.option("--dry-run", is_flag=True, help="Say what would change, change nothing.")
@click.option("--paused", is_flag=True, help="Register paused: nothing starts until `dag resume`.")
def register(paths: tuple[Path, ...], dry_run: bool, paused: bool) -> None:
    """Register the DAGs of each PATH: a YAML, JSON or Python file, or a folder of them.

    A changed definition becomes a new version; an unchanged one changes nothing. What is wrong is shown,
    the rest is registered all the same, and the exit code is 2.
    """
    from redsched.cli.files import load

    found = load(paths)
    client = state().client()
    rows = []
    for one in found:
        row = _register(client, one, dry_run, paused)
        rows.append(row)
        if not state().json:
            _say_registered(row, dry_run)
    _finish(rows)


def _register(client: Client, one: Loaded, dry_run: bool, paused: bool) -> Row:
    for text in one.warnings:
        warning(text)
    if one.dag is None:
        return _error_row(one.path, one.error)
    try:
        changes = _changes(client, one.dag) if dry_run else None
        row: Row = client.register(one.dag, paused=paused or None, path=one.path, dry_run=dry_run)
    except Unavailable:
        raise
    except RedschedError as error:
        return _error_row(one.path, error)
    more = {"warnings": list(one.warnings)} if one.warnings else {}
    return {**row, **more, **({} if changes is None else {"changes": changes})}


def _error_row(path: str, error: RedschedError | None) -> Row:
    text = str(error)
    for line in text.splitlines():
        message(line if path in line else f"{path}: {line}")
    return {"path": path, "error": text}


def _say_registered(row: Row, dry_run: bool) -> None:
    if "error" in row:
        return
    word = "would be registered as" if dry_run else "registered"
    what = f"{word} v{row['version']}" if row["changed"] else f"unchanged v{row['version']}"
    say(f"{row['dag']}  {what}  ({row['path']})")
    for change in row.get("changes", ()):
        say(f"  {change}")
    _say_schedule(row.get("schedule", {}))


def _say_schedule(change: Row) -> None:
    """A schedule that is new or other than before: when it fires next, and what clock changes do to it."""
    for name, word in (("was", "fired next"), ("next", "fires next")):
        if change.get(name):
            say(f"  {word}: {', '.join(change[name])}")
    if change.get("warning"):
        warning(change["warning"])


def _finish(rows: list[Row]) -> None:
    if state().json:
        print_json(rows)
    if any("error" in row for row in rows):
        raise click.exceptions.Exit(2)


def _changes(client: Client, new: DagSpec) -> list[str]:
    """What a dry run has to tell: which tasks and settings differ from the registered version."""
    try:
        old = client.dag(new.dag)["spec"]
    except NotFound:
        return [f"new DAG with {len(new.tasks)} tasks"]
    spec = new.written()
    lines = _compared("task ", old.get("tasks", {}), spec.get("tasks", {}))
    settings = ({k: v for k, v in s.items() if k != "tasks"} for s in (old, spec))
    return lines + _compared("", *settings)


def _compared(kind: str, old: Row, new: Row) -> list[str]:
    lines = [f"{kind}{name} added" for name in new if name not in old]
    lines += [f"{kind}{name} removed" for name in old if name not in new]
    changed = [name for name in new if name in old and old[name] != new[name]]
    for name in changed:
        if kind and isinstance(old[name], dict) and isinstance(new[name], dict):
            keys = sorted(k for k in {*old[name], *new[name]} if old[name].get(k) != new[name].get(k))
            lines.append(f"{kind}{name} changed: {', '.join(keys)}")
        else:
            lines.append(f"{kind}{name} changed: {compact(old[name])} -> {compact(new[name])}")
    return lines


@dag.command(json=True, redis=False, short_help="Check DAG files; needs no Redis.")
@_paths
def validate(paths: tuple[Path, ...]) -> None:
    """Check the DAGs of each PATH and register nothing. Needs no Redis. Exit 2 if something is wrong."""
    from redsched.cli.files import load

    rows = []
    for one in load(paths):
        for text in one.warnings:
            warning(text)
        if one.dag is None:
            rows.append(_error_row(one.path, one.error))
            continue
        row = {
            "dag": one.dag.dag,
            "path": one.path,
            "tasks": len(one.dag.tasks),
            "warnings": list(one.warnings),
        }
        rows.append(row)
        if not state().json:
            say(f"{one.dag.dag}  ok, {len(one.dag.tasks)} tasks  ({one.path})")
    _finish(rows)


# ---- looking


@dag.command("list", json=True)
def list_() -> None:
    """All registered DAGs."""
    dags = state().client().dags()
    if state().json:
        print_json(dags)
        return
    if not dags:
        message("no DAGs yet; register some with `redsched dag register PATH`")
        return
    columns = ("dag", "version", "state", "schedule", "team", "tasks", "active runs", "description")
    rows = [
        (
            d["dag"],
            f"v{d['version']}",
            "paused" if d["paused"] else "active",
            schedule_text(d["schedule"]),
            d["team"],
            d["tasks"],
            d["active_runs"],
            d["description"],
        )
        for d in dags
    ]
    table(columns, rows, right=("tasks", "active runs"))


def schedule_text(schedule: Any) -> str:
    """`every 15m` and `after orders` instead of JSON."""
    import json

    if isinstance(schedule, str) and schedule.startswith("{"):
        schedule = json.loads(schedule)
    if isinstance(schedule, dict):
        return " ".join(
            f"{key} {_span(value) if key == 'every' else value}" for key, value in schedule.items()
        )
    return schedule or ""


def _span(value: Any) -> str:
    from redsched.definition.values import duration_text, parse_duration

    return duration_text(parse_duration(value))


@dag.command(json=True)
@click.argument("dag", type=DAG)
def show(dag: str) -> None:
    """One DAG: its settings, parameters and tasks."""
    found = state().client().dag(dag)
    if state().json:
        print_json(found)
        return
    spec = found["spec"]
    plain = (
        "timezone",
        "start",
        "end",
        "catchup",
        "overlap",
        "spread",
        "max_active_runs",
        "max_active_tasks",
    )
    more = ("run_timeout", "deadline", "retention", "cwd", "pools")
    fields(
        {
            "dag": f"{found['dag']} v{found['version']}" + (" (paused)" if found["paused"] else ""),
            "description": found["description"],
            "schedule": schedule_text(found["schedule"]) or "on demand",
            "team": found["team"],
            **{key.replace("_", " "): _setting(spec[key]) for key in (*plain, *more) if key in spec},
            "path": found["path"],
            "registered": Instant(found["registered_at"]) if found["registered_at"] else "",
            "active runs": str(found["active_runs"]),
        }
    )
    if spec.get("params"):
        say("")
        table(("param", "type", "default", "rules"), [_param_row(n, s) for n, s in spec["params"].items()])
    say("")
    table(("task", "does", "needs", "pool", "options"), [_task_row(n, t) for n, t in spec["tasks"].items()])


def _setting(value: Any) -> str:
    if isinstance(value, str):
        return _span(value) if re.fullmatch(r"\d+ms", value) else value
    return compact(value)


def _param_row(name: str, schema: Row) -> tuple[Any, ...]:
    rules = [f"{k} {_setting(v)}" for k, v in schema.items() if k not in ("type", "default", "description")]
    kind = schema.get("type", "any")
    default = _setting(schema["default"]) if "default" in schema else "(required)"
    return name, " or ".join(kind) if isinstance(kind, list) else kind, default, ", ".join(rules)


def _task_row(name: str, task: Row) -> tuple[Any, ...]:
    run = task.get("run")
    does = f"call {task['call']}" if "call" in task else run if isinstance(run, str) else " ".join(run or ())
    shown = ("run", "call", "needs", "pool", "with", "env", "description")
    options = [f"{key} {_setting(value)}" for key, value in task.items() if key not in shown]
    return name, does, task.get("needs", []), task.get("pool", "default"), ", ".join(options)


@dag.command(json=True, short_help="The tasks in layers, with their arrows.")
@click.argument("target", metavar="DAG", type=DAG)
def graph(target: str) -> None:
    """The tasks in layers, from the first to run to the last, with an arrow from each to its downstream.

    DAG is the id of a registered DAG, a path, or path:name. Only a registered one needs Redis.
    """
    from redsched.graph import downstream_of, draw, layers

    spec = _spec_of(target)
    if state().json:
        edges = [[name, below] for name, found in downstream_of(spec).items() for below in found]
        print_json({"dag": spec.dag, "layers": layers(spec), "edges": edges})
    else:
        click.echo(draw(spec))


@dag.command(json=True)
@click.argument("dag", type=DAG)
def versions(dag: str) -> None:
    """The versions of a DAG, the newest first."""
    found = state().client().versions(dag)
    if state().json:
        print_json(found)
        return
    rows = [
        (
            f"v{v['version']}",
            "current" if v["current"] else "",
            v["digest"],
            Instant(v["registered_at"]),
            v["path"],
        )
        for v in found
    ]
    table(("version", "", "digest", "registered", "path"), rows)


# ---- trying


@dag.command(json=True, short_help="Run a DAG here and now, without Redis.")
@click.argument("target", metavar="DAG", type=DAG)
@click.option("-p", "--param", "params", metavar="NAME=VALUE", multiple=True, help="A parameter; repeat it.")
@click.option("--date", metavar="INSTANT", help="Logical date, ISO 8601 [now].")
def test(target: str, params: tuple[str, ...], date: str | None) -> None:
    """Run a DAG in this process, one task after the other, and print how each ended. Exit 1 if it failed.

    DAG is a path, path:name, or the id of a registered DAG. Only a registered one needs Redis.
    """
    import sys
    from contextlib import redirect_stdout

    from redsched.cli.run import read_date
    from redsched.definition.model import params_from_cli
    from redsched.definition.trial import try_dag

    spec = _spec_of(target)
    values = params_from_cli(spec, list(params))
    when = read_date(date, spec.timezone) if date else None
    with redirect_stdout(sys.stderr):  # because bodies may print, and stdout is for the result
        trial = try_dag(spec, values, logical_date=when)
    _show_trial(trial)
    if trial.state != "success":
        raise click.exceptions.Exit(1)


def _spec_of(target: str) -> DagSpec:
    """The definition, with its folder on the import path."""
    import sys

    from redsched.cli.files import one_dag, split_target
    from redsched.definition.config import import_roots
    from redsched.definition.model import DagSpec

    place = split_target(target)
    if place is None:
        return DagSpec.model_validate(state().client().dag(target)["spec"])
    sys.path[:0] = import_roots([place[0]])
    return one_dag(*place)


def _show_trial(trial: Trial) -> None:
    if state().json:
        tasks = {
            name: {"state": t.state, "attempts": t.attempts, "result": t.result, "error": t.error or None}
            for name, t in trial.tasks.items()
        }
        print_json({"dag": trial.dag, "state": trial.state, "params": trial.params, "tasks": tasks})
        return
    for name, t in trial.tasks.items():
        if t.output.strip():
            message(f"--- {name}")
            click.echo(t.output, err=True, nl=not t.output.endswith("\n"))
    rows = [
        (
            name,
            State(t.state),
            t.attempts or None,
            _short(compact(t.result)) if t.result is not None else None,
            t.error,
        )
        for name, t in trial.tasks.items()
    ]
    table(("task", "state", "attempts", "result", "error"), rows, right=("attempts",))
    fields({"dag": trial.dag, "state": State(trial.state)})


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[: limit - 20]}… ({len(text)} characters)"


# ---- pause, resume, delete


@dag.command(json=True)
@click.argument("dag", type=DAG)
def pause(dag: str) -> None:
    """Start nothing new of a DAG until `resume`; what runs goes on."""
    _answer(state().client().pause(dag), f"{dag} paused")


@dag.command(json=True)
@click.argument("dag", type=DAG)
def resume(dag: str) -> None:
    """Take a DAG up again."""
    _answer(state().client().resume(dag), f"{dag} resumed")


@dag.command(json=True)
@click.argument("dag", type=DAG)
@click.option("--force", is_flag=True, help="Also when runs are active: they are stopped.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def delete(dag: str, force: bool, yes: bool) -> None:
    """Delete a DAG with all its versions, runs and logs."""
    client = state().client()
    found = client.dag(dag)
    confirm(f"Delete {dag} with all its runs and logs ({found['active_runs']} runs are active)?", yes)
    answer = client.delete(dag, force=force)
    _answer(
        answer, f"{dag} deleted, with {answer['runs_deleted']} runs; {answer['stopped']} tasks were stopped"
    )


def _answer(answer: Row, text: str) -> None:
    if state().json:
        print_json(answer)
    else:
        say(text)
