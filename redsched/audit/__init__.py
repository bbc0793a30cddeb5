"""What an audit finds: pure decisions from looks at the records, without Redis. `redsched/auditing.py` looks, and repairs.

A difference is what is kept beside a run (a counter, a set, a slot, a lease, a timer, a list) and is not what the run
itself says. Each look is atomic in its cell, so a difference in one is an error already, unless the inbox explains it.
"""

from __future__ import annotations

from redsched.audit.difference import Difference
from redsched.audit.pools import EntryLook, ListsLook, audit_entry, audit_lists, audit_shadow
from redsched.audit.runs import (
    DagLook,
    LimitLook,
    RunLook,
    Shape,
    TaskLook,
    audit_dag,
    audit_run,
    forgotten,
    lost_attempt,
    stray,
)

__all__ = [
    "DagLook",
    "Difference",
    "EntryLook",
    "LimitLook",
    "ListsLook",
    "RunLook",
    "Shape",
    "TaskLook",
    "audit_dag",
    "audit_entry",
    "audit_lists",
    "audit_run",
    "audit_shadow",
    "forgotten",
    "lost_attempt",
    "stray",
]
