"""The words for what a task and a run can be, and the letters that the store keeps for them.

Knows nothing of Redis or of definitions. The letters are the same in `lua/lib/state.lua`.
"""

from __future__ import annotations

from typing import Final, Literal

TaskState = Literal[
    "none",
    "ready",
    "queued",
    "running",
    "retrying",
    "deferred",
    "success",
    "failed",
    "skipped",
    "upstream_failed",
    "cancelled",
]
RunState = Literal["queued", "running", "success", "failed", "cancelled"]
RunKind = Literal["scheduled", "manual", "backfill", "event"]

#   none ──> ready ──> queued ──> running ──> success | failed | skipped
#    │         ^                     │
#    │         └──── retrying <──────┘
#    └──> skipped | upstream_failed          (any unsettled state) ──> cancelled
LETTERS: Final[dict[str, TaskState]] = {
    "r": "ready",
    "q": "queued",
    "x": "running",
    "w": "retrying",
    "d": "deferred",
    "s": "success",
    "f": "failed",
    "k": "skipped",
    "u": "upstream_failed",
    "c": "cancelled",
}
SETTLED: Final[frozenset[str]] = frozenset({"success", "failed", "skipped", "upstream_failed", "cancelled"})
ENDED: Final[frozenset[str]] = frozenset({"success", "failed", "cancelled"})

TRIGGER_RULES: Final[dict[str, str]] = {
    "all_success": "a",
    "all_failed": "b",
    "all_done": "c",
    "all_skipped": "d",
    "one_success": "e",
    "one_failed": "f",
    "one_done": "g",
    "none_failed": "h",
    "none_failed_min_one_success": "i",
    "none_skipped": "j",
    "all_done_min_one_success": "k",
    "always": "l",
}
