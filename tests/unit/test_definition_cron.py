"""Which cron expressions are taken, and what the refusals say."""

from __future__ import annotations

import pytest
from croniter import croniter  # type: ignore[import-untyped]

from redsched.definition.cron import NICKNAMES, check_schedule, day_fields_are_either
from redsched.errors import DefinitionError


@pytest.mark.parametrize("text", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6 *", "0 0 30 2 */2"])
def test_what_can_never_fire_is_refused(text: str) -> None:
    """CR-112: the message names the expression."""
    with pytest.raises(DefinitionError, match="can never fire") as caught:
        check_schedule(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["0 0 31 2 1", "0 9 29 2 *", "0 0 L * *", "0 0 * * 5#3,L5", "* * * * *"])
def test_what_fires_now_and_then_is_taken(text: str) -> None:
    """CR-112, CR-111, CR-110: with a restricted weekday either day field is enough."""
    assert check_schedule(text) == text
    assert croniter(text).get_next() > 0


@pytest.mark.parametrize("text", ["*/0 * * * *", "5-5/0 * * * *", "59-0/0 * * * *", "0 */0 * * *"])
def test_step_zero_is_refused_by_field(text: str) -> None:
    """CR-113: the field and its step are named."""
    field = "hour" if text.startswith("0 ") else "minute"
    with pytest.raises(DefinitionError, match=rf"the {field} field '.*/0' has the step 0"):
        check_schedule(text)


@pytest.mark.parametrize("text", ["0 */5 * * * *", "*/30 * * * * *", "0 0 1 1 * 0 2030", "* * * *", ""])
def test_other_than_five_fields_are_refused(text: str) -> None:
    """CR-114: nobody agrees where seconds and years stand."""
    with pytest.raises(DefinitionError, match="expected 5 fields"):
        check_schedule(text)


def test_sunday_is_seven_and_zero() -> None:
    """CR-115: also at the end of a range; a range that goes backwards gets a hint."""
    for text in ("0 8 * * 7", "0 8 * * SUN", "0 8 * * 0", "0 8 * * 1-7"):
        assert check_schedule(text) == text
    with pytest.raises(DefinitionError, match="write 1-7"):
        check_schedule("0 8 * * Mon-Sun")
    with pytest.raises(DefinitionError, match="can't be 8; it goes from 0 to 7"):
        check_schedule("0 8 * * 8")


def test_nicknames() -> None:
    """CR-116: seven names are known, in small letters; others are refused by name."""
    assert {name: check_schedule(name) for name in NICKNAMES} == NICKNAMES
    for text in ("@reboot", "@every_5m", "@once"):
        with pytest.raises(DefinitionError, match=f"'{text}' is not known"):
            check_schedule(text)
    with pytest.raises(DefinitionError, match="write @daily"):
        check_schedule("@Daily")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("*/90 * * * *", "step 90, wider than its range 0-59"),
        ("0 22-6 * * *", "write 22-23,0-6"),
        ("H/5 * * * *", "H"),
        ("0 0 ? * *", r"write \*"),
        ("60 * * * *", "from 0 to 59"),
        ("1,,2 * * * *", "minute"),
        ("é * * * *", "minute"),
        ("9999999999999999999999 * * * *", "minute"),
    ],
)
def test_other_refusals_name_the_field_and_what_to_write(text: str, advice: str) -> None:
    """No refusal is a raw error of a library."""
    with pytest.raises(DefinitionError, match=advice):
        check_schedule(text)


def test_two_restricted_day_fields() -> None:
    """CR-109: users expect "the first Friday"; cron means either."""
    assert day_fields_are_either("0 11 1-7 * FRI")
    assert not day_fields_are_either("0 11 * * FRI")
    assert not day_fields_are_either("@weekly")
