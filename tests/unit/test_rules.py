"""Trigger rules against an independent reading of the table, for all ends of up to four upstreams in all orders."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from redsched.rules import decide
from redsched.states import TRIGGER_RULES

# What the table says once all upstreams have settled: s success, f failed or upstream_failed, k skipped.
TABLE: dict[str, Callable[[str], str]] = {
    "all_success": lambda o: "run" if set(o) == {"s"} else "upstream_failed" if "f" in o else "skipped",
    "all_failed": lambda o: "run" if set(o) == {"f"} else "skipped",
    "all_done": lambda o: "run",
    "all_skipped": lambda o: "run" if set(o) == {"k"} else "skipped",
    "one_success": lambda o: "run" if "s" in o else "skipped" if set(o) == {"k"} else "upstream_failed",
    "one_failed": lambda o: "run" if "f" in o else "skipped",
    "one_done": lambda o: "run" if {"s", "f"} & set(o) else "skipped",
    "none_failed": lambda o: "upstream_failed" if "f" in o else "run",
    "none_failed_min_one_success": lambda o: (
        "upstream_failed" if "f" in o else "run" if "s" in o else "skipped"
    ),
    "none_skipped": lambda o: "skipped" if "k" in o else "run",
    "all_done_min_one_success": lambda o: (
        "run" if "s" in o else "skipped" if set(o) == {"k"} else "upstream_failed"
    ),
    "always": lambda o: "run",
}
# What lets a rule run before all have settled.
EARLY: dict[str, set[str]] = {"one_success": {"s"}, "one_failed": {"f"}, "one_done": {"s", "f"}}
ORDERS = ["".join(order) for n in range(1, 5) for order in product("sfk", repeat=n)]


def decided(rule: str, n: int, prefix: str) -> str:
    return decide(rule, n, prefix.count("s"), prefix.count("f"), prefix.count("k"))


def test_every_rule_is_in_the_table() -> None:
    """The table of this test knows all rules."""
    assert set(TABLE) == set(TRIGGER_RULES)


@pytest.mark.parametrize("rule", TRIGGER_RULES)
def test_the_end_is_what_the_table_says(rule: str) -> None:
    """With all upstreams settled there is an answer, and it is the table's."""
    for order in ORDERS:
        assert decided(rule, len(order), order) == TABLE[rule](order), order


@pytest.mark.parametrize("rule", TRIGGER_RULES)
def test_an_answer_is_given_as_soon_as_it_cannot_change_and_not_before(rule: str) -> None:
    """After each step: an answer agrees with every way to go on; no answer means that it may still change."""
    for order in ORDERS:
        for settled in range(len(order)):
            prefix = order[:settled]
            rest = product("sfk", repeat=len(order) - settled)
            ends = {TABLE[rule](prefix + "".join(more)) for more in rest}
            answer = decided(rule, len(order), prefix)
            if answer != "wait":
                assert ends == {answer}, (order, prefix)
            if answer == "run":
                assert rule == "always" or EARLY[rule] & set(prefix), (order, prefix)
            if answer == "wait":
                assert ends == {"run"} or len(ends) > 1, (order, prefix)


@pytest.mark.parametrize("rule", TRIGGER_RULES)
def test_without_upstreams_every_rule_runs(rule: str) -> None:
    """A root runs, whatever its rule."""
    assert decide(rule, 0, 0, 0, 0) == "run"
