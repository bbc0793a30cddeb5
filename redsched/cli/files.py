"""DAG files named on the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from redsched.errors import DefinitionError

if TYPE_CHECKING:
    from redsched.definition.config import Loaded
    from redsched.definition.model import DagSpec

SUFFIXES = (".yaml", ".yml", ".json", ".py")


def load(paths: Sequence[Path]) -> list[Loaded]:
    """All DAGs below the paths, good and bad. Raises DefinitionError if there is nothing at all."""
    from redsched.definition.config import load_paths

    with redirect_stdout(sys.stderr):  # because a DAG file may print, and stdout is for our answer
        found = load_paths(list(paths))
    if not found:
        shown = ", ".join(str(p) for p in paths)
        raise DefinitionError(
            f"no DAG in {shown}; a DAG file is YAML with `dag:` and `tasks:`, or Python with @dag"
        )
    return found


def split_target(target: str) -> tuple[Path, str | None] | None:
    """`path` or `path:name`; None if it is rather the id of a registered DAG."""
    if Path(target).exists():
        return Path(target), None
    path, colon, name = target.rpartition(":")
    if colon and Path(path).exists():
        return Path(path), name
    looks_like_path = "/" in target or Path(path if colon else target).suffix in SUFFIXES
    if looks_like_path:
        raise DefinitionError(
            f"{path if colon else target}: no such file; write path, path:name or a registered DAG"
        )
    return None


def one_dag(path: Path, name: str | None) -> DagSpec:
    """The DAG of this name, or the only one there. Raises DefinitionError."""
    found = load([path])
    good = {one.dag.dag: one.dag for one in found if one.dag is not None}
    if name is not None and name in good:
        return good[name]
    for one in found:
        if one.error is not None and (name is None or not good):
            raise one.error
    known = ", ".join(good)
    if name is not None:
        raise DefinitionError(f"{path}: has no DAG {name!r}; it has: {known}")
    if len(good) != 1:
        raise DefinitionError(
            f"{path}: holds several DAGs; say which: {path}:{next(iter(good))} (it has: {known})"
        )
    return next(iter(good.values()))
