"""What a registration says about time: the schedule as it is stored, its first slot, and how that differs from before.

Pure. A changed schedule begins now, so it never makes runs for the past; one that has not changed goes on where it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redsched.keys import iso
from redsched.schedule import Schedule, change_warning, spread_ms

if TYPE_CHECKING:
    from redsched.definition.model import DagSpec

SHOWN = 5
# What says when a DAG fires; the rest of what is stored says what becomes of its slots.
WHEN = ("cron", "every", "anchor", "timezone", "start", "end", "offset")


@dataclass(frozen=True, slots=True)
class Timing:
    """`stored`: JSON for Redis, '' for none. `slot`: the first slot (ms) or None; `look`: when to deal with it.

    `now`: what the time was; for a new DAG, when it was registered, which is where `every` counts from.
    `change` for a schedule that is new or other than before: the next fire times of both, and a warning about clocks.
    """

    stored: str
    slot: int | None
    look: int
    now: int
    change: dict[str, Any]


def timing_of(spec: DagSpec, known: Mapping[str, str], now: int) -> Timing:
    """`known`: the DAG's record as it is registered, empty for a new one."""
    before = json.loads(known["schedule"]) if known.get("schedule") else None
    schedule = Schedule.of(spec, int(known.get("created", now)))
    if schedule is None:
        return Timing("", None, 0, now, _change(before, None, now) if before else {})
    offset = spread_ms(spec.dag, spec.spread)
    after: dict[str, Any] = {**schedule.to_stored(), "overlap": spec.overlap}
    after |= {"catchup": True} if spec.catchup else {}
    after |= {"offset": offset} if offset else {}
    stored = json.dumps(after, sort_keys=True, separators=(",", ":"))
    same = before is not None and all(before.get(k) == after.get(k) for k in WHEN)
    if same and known.get("slot"):
        slot: int | None = int(known["slot"])
    elif before is None and not known and spec.catchup and schedule.start_ms is not None:
        slot = schedule.next_after(schedule.start_ms - 1)
    else:
        slot = schedule.next_after(now)
    change = {} if same else _change(before, after, now)
    return Timing(stored, slot, 0 if slot is None else slot + offset, now, change)


def _change(before: dict[str, Any] | None, after: dict[str, Any] | None, now: int) -> dict[str, Any]:
    change: dict[str, Any] = {"next": _next(after, now)}
    if before is not None:
        change["was"] = _next(before, now)
    warning = change_warning(Schedule.from_stored(after), now) if after else None
    return {**change, "warning": warning} if warning else change


def _next(stored: dict[str, Any] | None, now: int) -> list[str]:
    if stored is None:
        return []
    schedule, at, found = Schedule.from_stored(stored), now, []
    for _ in range(SHOWN):
        following = schedule.next_after(at)
        if following is None:
            break
        found.append(str(iso(following)))
        at = following
    return found
