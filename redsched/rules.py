"""When does a task run? The table of trigger rules, as one pure function of four numbers.

A rule decides only when its outcome can no longer change, so that the answer never depends on which
upstream was faster. `lua/lib/rules.lua` is the same table; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

Decision = Literal["wait", "run", "skipped", "upstream_failed"]


def decide(rule: str, n: int, success: int, failed: int, skipped: int) -> Decision:
    """What becomes of a task with `n` upstreams, of which so many have settled.

    `failed` counts failed and upstream_failed. A task without upstreams runs, whatever its rule.
    """
    return "run" if n == 0 else _RULES[rule](n, success, failed, skipped)


def _all_success(n: int, s: int, f: int, k: int) -> Decision:
    if f:
        return "upstream_failed"
    if s + k < n:
        return "wait"
    return "skipped" if k else "run"


def _all_failed(n: int, s: int, f: int, k: int) -> Decision:
    if s + k:
        return "skipped"
    return "run" if f == n else "wait"


def _all_done(n: int, s: int, f: int, k: int) -> Decision:
    return "run" if s + f + k == n else "wait"


def _all_skipped(n: int, s: int, f: int, k: int) -> Decision:
    if s + f:
        return "skipped"
    return "run" if k == n else "wait"


def _one_success(n: int, s: int, f: int, k: int) -> Decision:
    if s:
        return "run"
    if f + k < n:
        return "wait"
    return "upstream_failed" if f else "skipped"


def _one_failed(n: int, s: int, f: int, k: int) -> Decision:
    if f:
        return "run"
    return "skipped" if s + k == n else "wait"


def _one_done(n: int, s: int, f: int, k: int) -> Decision:
    if s + f:
        return "run"
    return "skipped" if k == n else "wait"


def _none_failed(n: int, s: int, f: int, k: int) -> Decision:
    if f:
        return "upstream_failed"
    return "run" if s + k == n else "wait"


def _none_failed_min_one_success(n: int, s: int, f: int, k: int) -> Decision:
    if f:
        return "upstream_failed"
    if s + k < n:
        return "wait"
    return "run" if s else "skipped"


def _none_skipped(n: int, s: int, f: int, k: int) -> Decision:
    if k:
        return "skipped"
    return "run" if s + f == n else "wait"


def _all_done_min_one_success(n: int, s: int, f: int, k: int) -> Decision:
    if s + f + k < n:
        return "wait"
    if s:
        return "run"
    return "upstream_failed" if f else "skipped"


def _always(n: int, s: int, f: int, k: int) -> Decision:
    return "run"


_RULES: Final[dict[str, Callable[[int, int, int, int], Decision]]] = {
    "all_success": _all_success,
    "all_failed": _all_failed,
    "all_done": _all_done,
    "all_skipped": _all_skipped,
    "one_success": _one_success,
    "one_failed": _one_failed,
    "one_done": _one_done,
    "none_failed": _none_failed,
    "none_failed_min_one_success": _none_failed_min_one_success,
    "none_skipped": _none_skipped,
    "all_done_min_one_success": _all_done_min_one_success,
    "always": _always,
}
