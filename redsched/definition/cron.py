"""Is this cron expression one that redsched takes, can it ever fire, and what stands in its fields?

Looks at the text only; the fire times themselves are computed in `redsched.schedule`. A refusal names the
field, what stands in it, and what to write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from redsched.errors import DefinitionError

NICKNAMES: Final[dict[str, str]] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTH_NAMES: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_MONTHS: Final = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_DAYS: Final = {name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}
_LONGEST: Final = (
    0,
    31,
    29,
    31,
    30,
    31,
    30,
    31,
    31,
    30,
    31,
    30,
    31,
)  # days of each month, leap years counted
_ITEM: Final = re.compile(r"(\*|[0-9A-Z]+)(?:-([0-9A-Z]+))?(?:/([0-9]+))?")
_NTH_DAY: Final = re.compile(
    r"L([0-9A-Z]+)|([0-9A-Z]+)#([1-5]|L)"
)  # L5, 5#L: the last Friday; 5#3: the third
LAST: Final = 0  # among the numbers of `5#3`: the last one


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    words: dict[str, int]


@dataclass(frozen=True, slots=True)
class Fields:
    """What the five fields stand for. Sunday is 0; `nth` holds pairs of a weekday and its `#` numbers.

    `either`: a day matches if one day field does, else both must. `wildcard`: the minute or hour begins with `*`.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    last_day: bool
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    nth: tuple[tuple[int, tuple[int, ...]], ...]
    either: bool
    wildcard: bool


_FIELDS: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)


@lru_cache(maxsize=4_096)
def check_schedule(expression: str) -> str:
    """The expression as five fields (`@daily` → `0 0 * * *`), or a DefinitionError with the reason."""
    fields = _five_fields(expression)
    try:
        values = [_values(field, text.upper()) for field, text in zip(_FIELDS, fields, strict=True)]
    except ValueError as error:
        raise DefinitionError(f"{expression!r}: {error}") from None
    days, months = values[2], values[3]
    # Because with a restricted weekday either day field is enough, only `* weekday` needs a real date.
    if fields[4].startswith("*") and not any(day <= _LONGEST[month] for day in days for month in months):
        raise DefinitionError(f"{expression!r} can never fire: no such day in any of its months")
    _check_nth(expression, fields[2], fields[4].upper(), days, months)
    _expanded(expression, fields)
    return " ".join(fields)


@lru_cache(maxsize=4_096)
def read_fields(expression: str) -> Fields:
    """The numbers that the fields stand for, as croniter reads them. Raises DefinitionError."""
    texts = check_schedule(expression).split()
    (minutes, hours, days, months, weekdays), nth = _expanded(expression, texts)
    return Fields(
        minutes=_numbers(minutes, range(60)),
        hours=_numbers(hours, range(24)),
        days=_numbers(days, range(1, 32)),
        last_day="l" in days,
        months=_numbers(months, range(1, 13)),
        weekdays=_numbers(weekdays, range(7)),
        nth=tuple(
            (day, tuple(sorted(LAST if n == "l" else n for n in numbers)))
            for day, numbers in sorted(nth.items())
        ),
        either=day_fields_are_either(" ".join(texts)),
        wildcard=texts[0].startswith("*") or texts[1].startswith("*"),
    )


def _expanded(expression: str, fields: list[str]) -> Any:
    """croniter's reading: a list a field, and the `#` numbers of each weekday."""
    from croniter import CroniterError, croniter  # type: ignore[import-untyped]  # its stubs are apart

    plain = (
        ",".join(_unmistakable(field, item) for item in text.upper().split(","))
        for field, text in zip(_FIELDS, fields, strict=True)
    )
    try:
        return croniter.expand(" ".join(plain))
    except CroniterError:
        raise DefinitionError(f"{expression!r} is no cron expression; write e.g. '0 2 * * *'") from None


def _unmistakable(field: _Field, item: str) -> str:
    """The item in a form that croniter can't misread: it takes `5-5` and `7/1` for every value."""
    if nth := _NTH_DAY.fullmatch(item):
        last, day, number = nth.groups()
        last = day if number == "L" else last
        return f"L{_number(field, last)}" if last else f"{_number(field, day)}#{number}"
    parts = _ITEM.fullmatch(item)
    if item == "L" or not parts or parts[1] == "*":
        return item
    low, high = _range(field, parts[1], parts[2], stepped=parts[3] is not None)
    return str(low) if low == high else f"{low}-{high}/{parts[3] or 1}"


def _numbers(found: list[int | str], every: range) -> tuple[int, ...]:
    return tuple(every if "*" in found else sorted(n for n in found if isinstance(n, int)))


def _check_nth(expression: str, days: str, weekdays: str, numbers: set[int], months: set[int]) -> None:
    """`5#3` stands alone or among its kind; and `*/30` with it must have a day in common."""
    items = weekdays.split(",")
    found = [nth for item in items if (nth := _NTH_DAY.fullmatch(item))]
    if not found:
        return
    if len(found) < len(items):
        raise DefinitionError(
            f"{expression!r}: the day of week field mixes plain days with # or L; write all five, e.g. 1#1,1#2,…"
        )
    if not days.startswith("*"):
        return  # because either day field is enough
    lengths = [_LONGEST[month] for month in months]
    for nth in found:
        last = nth[1] or nth[3] == "L"
        spans = [(n - 6, n) if last else (7 * int(nth[3]) - 6, min(n, 7 * int(nth[3]))) for n in lengths]
        if any(low <= day <= high for low, high in spans for day in numbers):
            return
    raise DefinitionError(f"{expression!r} can never fire: its day fields have no day in common")


def day_fields_are_either(expression: str) -> bool:
    """Are both day fields restricted, so that a day matches if *either* does?"""
    fields = NICKNAMES.get(expression, expression).split()
    return len(fields) == 5 and not fields[2].startswith("*") and not fields[4].startswith("*")


def _five_fields(expression: str) -> list[str]:
    text = expression.strip()
    if text.startswith("@"):
        if text in NICKNAMES:
            return NICKNAMES[text].split()
        known = " ".join(NICKNAMES)
        lower = f"; write {text.lower()}" if text.lower() in NICKNAMES else ""
        raise DefinitionError(f"{expression!r} is not known{lower}; known are {known}")
    fields = text.split()
    if len(fields) != 5:
        raise DefinitionError(
            f"{expression!r}: expected 5 fields (minute hour day-of-month month day-of-week), "
            f"got {len(fields)}; seconds and years are not supported, for short intervals write {{every: 30s}}"
        )
    return fields


def _values(field: _Field, text: str) -> set[int]:
    found: set[int] = set()
    for item in text.split(","):
        found |= _item(field, item)
    return found


def _item(field: _Field, item: str) -> set[int]:
    """The numbers that one item of a comma list stands for. Raises ValueError with the reason."""
    if field.name == "day of month" and item == "L":
        return {28}  # the last day: every month has one, and 28 fits them all
    if field.name == "day of week" and (nth := _NTH_DAY.fullmatch(item)):
        return {_number(field, nth[1] or nth[2])}
    parts = _ITEM.fullmatch(item)
    if not parts or (parts[1] == "*" and parts[2]):
        raise ValueError(f"the {field.name} field can't be {item!r}{_hint(item)}")
    low, high = _range(field, parts[1], parts[2], stepped=parts[3] is not None)
    step = int(parts[3] or 1)
    if step == 0:
        raise ValueError(f"the {field.name} field {item!r} has the step 0; the smallest is 1")
    if low > high:
        raise ValueError(f"the {field.name} field {item!r} goes backwards; {_split(field, item, low, high)}")
    if step > max(1, high - low):
        raise ValueError(
            f"the {field.name} field {item!r} has the step {step}, wider than its range {low}-{high}"
        )
    return set(range(low, high + 1, step))


def _range(field: _Field, first: str, last: str | None, *, stepped: bool) -> tuple[int, int]:
    if first == "*":
        return field.low, min(field.high, 6) if field.name == "day of week" else field.high
    low = _number(field, first)
    if last is not None:
        return low, _number(field, last)
    return low, field.high if stepped else low


def _number(field: _Field, word: str) -> int:
    number = field.words.get(word)
    if number is None and word.isdigit():
        number = int(word[:4])
    if number is None:
        raise ValueError(f"the {field.name} field can't be {word!r}{_hint(word)}")
    if not field.low <= number <= field.high:
        raise ValueError(f"the {field.name} field can't be {word}; it goes from {field.low} to {field.high}")
    return number


def _split(field: _Field, item: str, low: int, high: int) -> str:
    if field.name == "day of week" and high == 0:
        return f"write {low}-7"
    return f"write {low}-{min(field.high, 6) if field.words is _DAYS else field.high},{field.low}-{high}"


def _hint(item: str) -> str:
    if item == "?":
        return "; write *"
    if item.startswith("H"):
        return "; hashed values (H) are not supported, for a spread use `spread:`"
    return ""
