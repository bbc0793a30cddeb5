"""What leaves the command line of a process that stays."""

from __future__ import annotations

import pytest

from redsched.cli.argv import without_passwords

URL = "redis://u:p@h:1/2"


@pytest.mark.parametrize(
    ("words", "rest", "moved"),
    [
        (["scheduler", "--redis", URL], ["scheduler"], {"REDSCHED_REDIS_URL": URL}),
        (["--redis=" + URL, "worker", "x"], ["worker", "x"], {"REDSCHED_REDIS_URL": URL}),
        (["--redis", "redis://h", "up"], ["--redis", "redis://h", "up"], {}),
        (["worker", "--password=a=b"], ["worker"], {"REDSCHED_PASSWORD": "a=b"}),
        (["--redis", URL, "up", "--redis", "redis://h"], ["up", "--redis", "redis://h"], {}),
        (["worker", "--redis"], ["worker", "--redis"], {}),
        (["worker", "--password", "", "x"], ["worker", "--password", "", "x"], {}),
    ],
)
def test_passwords_are_moved_into_the_environment(
    words: list[str], rest: list[str], moved: dict[str, str]
) -> None:
    assert without_passwords(words) == (rest, moved)
