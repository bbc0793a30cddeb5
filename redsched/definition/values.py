"""The small values that people write: ids, durations, instants, zones, JSON, references.

Each reader takes what was written and the place it stands at, and answers with the value or a
DefinitionError that says what to write instead. Knows nothing of DAGs, and imports quickly.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from redsched.errors import DefinitionError

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

ID_RULE: Final = (
    "letters A-Z a-z, digits, '_', '-' and '.', at most 128 of them, the first a letter, a digit or '_'"
)
MAX_DURATION_MS: Final = 3650 * 86_400_000  # ten years: far from the year 9999, whatever it is added to
MAX_DEPTH: Final = 64  # of nested JSON: json and pydantic recurse, and their limits are near 1,000

_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}")
_ESCAPED: Final = re.compile(r"\$\$+\{[^{}]*\}")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_SECONDS: Final = re.compile(r"\d+(?:\.\d+)?")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def at(where: str, message: str) -> str:
    """The message with its place in front, if there is one."""
    return f"{where}: {message}" if where else message


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'retries'?`, or nothing when no known word comes near."""
    close = difflib.get_close_matches(word, list(known), n=3)
    return f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def check_id(value: object, where: str) -> str:
    """An id of a DAG, task, pool or team."""
    if not isinstance(value, str):
        raise DefinitionError(at(where, f"an id must be text, not {value!r}; quote it: '{value}'"))
    if not _ID.fullmatch(value):
        raise DefinitionError(at(where, f"{value[:140]!r} can't be an id; write {ID_RULE}"))
    return value


def parse_duration(value: object, where: str = "") -> int:
    """Milliseconds of `500ms`, `30s`, `10m`, `2h`, `1d`, `1h30m`, a number of seconds or a timedelta."""
    ms = _milliseconds(value)
    if ms is None:
        advice = "write 500ms, 30s, 10m, 2h, 1d or a number of seconds"
        raise DefinitionError(at(where, f"{_short(value)} is no duration; {advice}"))
    if ms > MAX_DURATION_MS:
        raise DefinitionError(at(where, f"{_short(value)} is too long; at most 3650d"))
    return max(1, round(ms)) if ms else 0


def _milliseconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        return _milliseconds(value.total_seconds())
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        # Because 10**400 can't become a float: compare first, multiply after.
        if not 0 <= value < math.inf:
            return None
        return math.inf if value > MAX_DURATION_MS else value * 1_000
    if not isinstance(value, str) or len(value) > 64 or not value.isascii():
        return None
    text = value.strip()
    if _SECONDS.fullmatch(text):
        return float(text) * 1_000
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))


def duration_text(ms: int) -> str:
    """The shortest way to write a duration: 90000 → `90s`, 86400000 → `1d`."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNIT_MS[unit] == 0:
            return f"{ms // _UNIT_MS[unit]}{unit}"
    return f"{ms}ms" if ms else "0s"


@lru_cache(maxsize=1_024)
def zone(name: str) -> tzinfo:
    """The IANA zone of this name; raises DefinitionError, never falls back to UTC."""
    import zoneinfo

    if name == "UTC":
        return UTC  # needs no tz database
    if name != "localtime":  # because every host has its own
        try:
            return zoneinfo.ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass
    near = suggestion(name, zoneinfo.available_timezones())
    raise DefinitionError(f"{name!r} is no known time zone; write one like 'Europe/Paris' or 'UTC'{near}")


def parse_instant(value: object, timezone: str = "UTC", where: str = "") -> datetime:
    """An ISO 8601 instant as UTC; without an offset it is read in the zone, a date as its midnight."""
    moment = value
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment.strip())
        except ValueError:
            moment = None
    elif isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)  # noqa: DTZ001 - its zone comes below
    if not isinstance(moment, datetime):
        advice = "write 2026-01-31, 2026-01-31T02:00 or 2026-01-31T01:00:00Z"
        raise DefinitionError(at(where, f"{_short(value)} is no instant; {advice}"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone(timezone))
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise DefinitionError(at(where, f"{_short(value)} lies outside the years 1 to 9999")) from None


def instant_text(moment: datetime) -> str:
    """`2026-01-02T01:00:00Z`: how redsched writes every instant."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def reference(value: object) -> str | None:
    """`extract` for "${extract}", `params.day` for "${params.day}"; None for everything else."""
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return match[1].strip() if match else None


def unescape(text: str) -> str:
    """A literal that looks like a reference is written with one `$` more."""
    return text[1:] if _ESCAPED.fullmatch(text) else text


def escape(text: str) -> str:
    """The way to write this literal in `with`."""
    return f"${text}" if _REFERENCE.fullmatch(text) or _ESCAPED.fullmatch(text) else text


def references(value: object) -> list[str]:
    """All references in a JSON value, in order."""
    found: list[str] = []
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo.extend(reversed(list(item.values())))
        elif isinstance(item, list | tuple):
            todo.extend(reversed(item))
        elif (name := reference(item)) is not None:
            found.append(name)
    return found


def check_json(value: object, where: str) -> Json:
    """The same value, if JSON can say it; tuples become lists."""
    return _json(value, where, MAX_DEPTH)


def _json(value: object, where: str, depth: int) -> Json:
    if depth == 0:
        raise DefinitionError(at(where, f"nested more than {MAX_DEPTH} levels deep"))
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, list | tuple):
        return [_json(item, f"{where}[{i}]", depth - 1) for i, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise DefinitionError(at(where, f"the key {key!r} must be text; quote it: '{key}'"))
        return {_text(key, where): _json(item, f"{where}.{key}", depth - 1) for key, item in value.items()}
    kind = type(value).__name__
    raise DefinitionError(
        at(
            where,
            f"{_short(value)} ({kind}) is not JSON; use text, numbers, true/false, null, lists, mappings",
        )
    )


def _text(value: str, where: str) -> str:
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise DefinitionError(
            at(where, f"{_short(value)} holds half a character (a surrogate), which is no text")
        )
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}…"
