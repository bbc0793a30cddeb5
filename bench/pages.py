"""Numbers in pages: what stands between `<!-- name -->` and `<!-- /name -->` is written by the measurement itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def fill(path: Path, name: str, text: str) -> None:
    """Put the text in its place. Raises ValueError if the page has no such place."""
    page = path.read_text(encoding="utf-8")
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    if page.count(first) != 1 or page.count(last) != 1:
        raise ValueError(f"{path.name} has no place {first} … {last}")
    before, rest = page.split(first)
    path.write_text(f"{before}{first}\n{text}\n{last}{rest.split(last)[1]}", encoding="utf-8")


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of Markdown; all columns but the first are numbers."""
    lines = [columns, ["---", *("--:" for _ in columns[1:])], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


QUIET = 1.5  # processes that want to run


def kept(keep: bool | None, whole: bool, busy: float) -> bool:
    """Whether results go into the pages: as told, else if nothing was left out and the machine was quiet before."""
    return keep if keep is not None else whole and busy <= QUIET


def number(value: float | None) -> str:
    """Three digits at least: `12,346`, `45.1`, `0.61`; a dash for what could not be measured."""
    if value is None or value != value:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def place(document: dict[str, Any]) -> str:
    """Where and when, in a line."""
    made = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    when = f"{document['at'][:10]}, load before {document['load']}"
    return f"{document['machine']}; {document['server']}; {made}; {when}; `{document['command']}`"
