"""How things are shown: tables and colours on a terminal, plain aligned text in a pipe, one JSON document for --json.

What comes from users (names, reasons, descriptions) passes through `safe`, so that no control character reaches a
terminal. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# state -> glyph, colour. One glance down a column should find what failed.
STATES: Final[dict[str, tuple[str, str]]] = {
    "none": ("·", "bright_black"),
    "ready": ("○", "blue"),
    "queued": ("◌", "blue"),
    "running": ("▶", "cyan"),
    "retrying": ("↻", "yellow"),
    "deferred": ("◷", "blue"),
    "success": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("↷", "bright_black"),
    "upstream_failed": ("⊘", "magenta"),
    "cancelled": ("■", "bright_black"),
}
WIDE: Final = 110
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def safe(text: str) -> str:
    """The text with control characters written out."""
    return CONTROL.sub(lambda m: _SHORT.get(m[0]) or f"\\x{ord(m[0]):02x}", text)


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def asks() -> bool:
    """May a question be asked? Only if a person is at both ends."""
    return is_terminal() and sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; never in a pipe. No ends the command without having done anything."""
    if not yes and asks() and not click.confirm(safe(question), err=True):
        message("nothing done")
        raise click.exceptions.Exit(1)


def message(text: str) -> None:
    """A line for the person, on stderr."""
    click.echo(safe(text), err=True)


def warning(text: str) -> None:
    message(f"Warning: {text}")


def say(text: str) -> None:
    """A line of result, on stdout."""
    click.echo(safe(text))


def print_json(value: Any) -> None:
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2)
    click.echo(text)


# ---- time ----


def parse_instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def now() -> datetime:
    return datetime.now(UTC)


def seconds_between(start: str | None, end: str | None) -> float | None:
    """From start to end, or to now; None if it has not started."""
    if not start:
        return None
    return max(0.0, ((parse_instant(end) if end else now()) - parse_instant(start)).total_seconds())


def duration(seconds: float | None) -> str:
    """0.2s, 12s, 3m 05s, 2h 04m, 5d 03h; an empty string for None."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    for limit, big, small, b, s in ((3600, 60, 1, "m", "s"), (86400, 3600, 60, "h", "m")):
        if whole < limit:
            return f"{whole // big}{b} {whole % big // small:02d}{s}"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def ago(text: str | None) -> str:
    """3 m ago, in 2 h."""
    if not text:
        return ""
    seconds = (now() - parse_instant(text)).total_seconds()
    size = abs(seconds)
    if size < 1:
        return "now"
    steps = ((60, 1, "s"), (3600, 60, "m"), (86400, 3600, "h"), (float("inf"), 86400, "d"))
    count, unit = next((int(size // step), unit) for limit, step, unit in steps if size < limit)
    return f"{count} {unit} ago" if seconds > 0 else f"in {count} {unit}"


class Instant(str):
    """A cell with an instant: plain in a pipe, humane on a terminal."""


class State(str):
    """A cell with a state: a word in a pipe, glyph and colour on a terminal."""


class Bar(tuple[int, int]):
    """A cell (used, of): `3/8` in a pipe, a bar on a terminal."""


# ---- tables ----


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """A table; an empty cell is `-`. `right` names the columns of numbers."""
    if is_terminal():
        _rich_table(columns, rows, right)
    else:
        click.echo("\n".join(_aligned(columns, rows, right)))


def _plain(value: Any) -> str:
    if isinstance(value, Bar):
        return f"{value[0]}/{value[1]}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(_plain(v) for v in value) or "-"
    return "-" if value is None or value == "" else safe(str(value))


def _aligned(columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[str]) -> list[str]:
    from rich.cells import cell_len

    lines = [[name.upper() for name in columns], *([_plain(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(columns))]

    def pad(i: int, text: str) -> str:
        space = " " * (widths[i] - cell_len(text))
        return space + text if columns[i] in right else text + space

    return ["  ".join(pad(i, text) for i, text in enumerate(line)).rstrip() for line in lines]


def _rich_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[str]) -> None:
    from rich.table import Table

    screen = console()
    lines = [[rich_cell(cell, screen.width) for cell in row] for row in rows]
    kept = _columns_for(screen.width, columns, lines)
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i in kept:
        shown.add_column(columns[i], justify="right" if columns[i] in right else "left", overflow="fold")
    for line in lines:
        shown.add_row(*(line[i] for i in kept))
    screen.print(shown)


def _columns_for(width: int, columns: Sequence[str], lines: list[list[Text]]) -> list[int]:
    """All columns, or on a narrow screen those with something in them: a folded id is worse than no empty column."""
    everything = list(range(len(columns)))
    needed = [max([len(columns[i]), *(line[i].cell_len for line in lines)]) + 2 for i in everything]
    if sum(needed) <= width:
        return everything
    return [i for i in everything if any(line[i].plain != "-" for line in lines)]


def rich_cell(value: Any, width: int = WIDE) -> Text:
    from rich.text import Text

    if isinstance(value, State):
        return state_text(value)
    if isinstance(value, Bar):
        return bar_text(*value)
    if isinstance(value, Instant):
        whole = re.sub(r"\.\d+", "", _plain(value))
        return Text(f"{whole} ({ago(value)})" if width >= WIDE else ago(value))
    plain = _plain(value)
    return Text(plain, style="bright_black" if plain == "-" else "")


def _draws() -> bool:
    """Can stdout write the glyphs?"""
    try:
        "✓▶█".encode(sys.stdout.encoding or "ascii")
        return True
    except UnicodeEncodeError:
        return False


def state_text(state: str) -> Text:
    from rich.text import Text

    glyph, colour = STATES.get(state, ("", ""))
    return Text(f"{glyph} {state}" if glyph and _draws() else safe(state), style=colour)


def bar_text(used: int, of: int, width: int = 16) -> Text:
    from rich.text import Text

    filled = min(width, -(-used * width // of)) if of else 0
    full, empty = ("█", "░") if _draws() else ("#", ".")
    colour = "yellow" if of and used >= of else "green"
    return Text.assemble((full * filled, colour), (empty * (width - filled), "bright_black"), f" {used}/{of}")


def fields(pairs: Mapping[str, Any]) -> None:
    """`name  value` lines; those without a value are left out."""
    kept = {name: value for name, value in pairs.items() if value not in (None, "", [], {})}
    width = max((len(name) for name in kept), default=0)
    if not is_terminal():
        for name, value in kept.items():
            click.echo(f"{name:<{width}}  {_plain(value)}")
        return
    from rich.text import Text

    screen = console()
    for name, value in kept.items():
        screen.print(Text.assemble((f"{name:<{width}}  ", "bright_black"), rich_cell(value)))


def compact(value: Any) -> str:
    """A small JSON value on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
