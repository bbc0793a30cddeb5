"""DAG files named on the command line: loaded, checked as far as that goes without Redis, and told apart by fate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redsched.errors import DefinitionError, RedschedError

if TYPE_CHECKING:
    from redsched.definition.model import DagSpec


@dataclass(frozen=True, slots=True)
class Found:
    """A DAG in a file, or what is wrong there."""

    path: str
    dag: DagSpec | None
    error: RedschedError | None
    warnings: tuple[str, ...] = ()


def load(paths: Sequence[Path]) -> list[Found]:
    """All DAGs below the paths. Raises DefinitionError if there is nothing at all."""
    from redsched.definition.config import load_paths

    with redirect_stdout(sys.stderr):  # because a DAG file may print, and stdout is for our answer
        loaded = load_paths(list(paths))
    found = [_checked(Found(x.path, x.dag, x.error, tuple(x.warnings))) for x in loaded]
    if not found:
        shown = ", ".join(str(p) for p in paths)
        raise DefinitionError(
            f"no DAG in {shown}; a DAG file is YAML with `dag:` and `tasks:`, or Python with @dag"
        )
    return _without_twins(found)


def _checked(found: Found) -> Found:
    """The checks of the graph too, so that `validate` says what `register` would."""
    if found.dag is None:
        return found
    from redsched.definition.plan import compile_plan

    try:
        compile_plan(found.dag)
    except RedschedError as error:
        return Found(found.path, None, error, found.warnings)
    return found


def _without_twins(found: list[Found]) -> list[Found]:
    """Two files with one DAG id would overwrite each other for ever, so neither is taken."""
    places: dict[str, list[str]] = {}
    for one in found:
        if one.dag is not None:
            places.setdefault(one.dag.dag, []).append(one.path)
    return [_refused_twin(one, places) for one in found]


def _refused_twin(one: Found, places: dict[str, list[str]]) -> Found:
    if one.dag is None or len(places[one.dag.dag]) == 1:
        return one
    here = " and ".join(dict.fromkeys(places[one.dag.dag]))
    return Found(
        one.path, None, DefinitionError(f"{one.path}: DAG {one.dag.dag} is defined twice: {here}; rename one")
    )
