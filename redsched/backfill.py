"""Backfills as people and programs see them: the plan, the progress, pause and resume. The owner of the shard makes the runs.

The plan is cheap for any range: dates are counted, not made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from redsched.errors import Conflict, DefinitionError, NotFound
from redsched.keys import iso
from redsched.schedule import Schedule

if TYPE_CHECKING:
    from redsched.client import Client
    from redsched.definition.model import DagSpec

ORDERS: Final = ("oldest", "newest")
ON_EXISTING: Final = ("skip", "failed", "all")
OUTCOMES: Final = ("success", "failed", "cancelled")
MOST_DATES: Final = 1_000_000
SHOWN_DATES: Final = 1000
KEPT: Final = 200  # of each installation; older ones that are over are forgotten when a new one starts


def start(
    client: Client,
    dag: str,
    first: datetime,
    last: datetime,
    *,
    max_active: int,
    order: str,
    on_existing: str,
    every_ms: int | None,
    params: dict[str, Any],
    dry_run: bool,
) -> dict[str, Any]:
    """See Client.backfill."""
    from redsched.client import aware
    from redsched.definition.model import DagSpec, parse_params
    from redsched.definition.plan import concurrency_keys

    _check(max_active, order, on_existing)
    spec = DagSpec.model_validate(client.dag(dag)["spec"])
    values = parse_params(spec, params)
    low, high = (int(aware(x, spec.timezone).timestamp() * 1000) for x in (first, last))
    schedule = _schedule(client, spec, every_ms, low)
    dates = list(islice(_dates(schedule, low, high, order), MOST_DATES + 1))
    _check_range(dag, dates, low, high)
    plan = _plan(client, dag, spec, dates, max_active, on_existing)
    if dry_run:
        return plan
    ident = client._say(client.store.control.new_backfill, dag)
    keys = concurrency_keys(spec, values)
    fields = {
        "cursor": str(dates[0]),
        "planned": str(len(dates)),
        "max_active": str(max_active),
        "order": order,
        "on_existing": on_existing,
        "schedule": json.dumps(schedule.to_stored(), sort_keys=True),
        "params": json.dumps(values) if values else "",
        "keys": json.dumps(keys) if keys else "",
    }
    low, high = min(dates), max(dates)
    made, found = client._say(client.store.shard.backfill_start, dag, ident, low, high, fields)
    if not made:
        client._say(client.store.control.forget_backfills, [ident])
        raise Conflict(
            f"backfill {found} of DAG {dag!r} is active and overlaps this range; see: redsched backfill show {found}"
        )
    _forget_old(client)
    return {**show(client, ident), **plan}  # the plan last: what exists is counted there before it is come to


def _check(max_active: int, order: str, on_existing: str) -> None:
    if max_active < 1:
        raise DefinitionError(f"max_active {max_active}: write a whole number from 1 up")
    for name, value, known in (("order", order, ORDERS), ("on_existing", on_existing, ON_EXISTING)):
        if value not in known:
            raise DefinitionError(f"{name} {value!r}: write one of {', '.join(known)}")


def _check_range(dag: str, dates: list[int], low: int, high: int) -> None:
    span = f"from {iso(low)} to {iso(high)}"
    if low > high:
        raise DefinitionError(f"backfill of {dag!r}: {span}: the end is before the start")
    if not dates:
        raise DefinitionError(
            f"backfill of {dag!r}: no date of its schedule lies {span}; see: redsched dag next {dag}"
        )
    if len(dates) > MOST_DATES:
        raise DefinitionError(
            f"backfill of {dag!r}: more than {MOST_DATES:,} dates {span}; take a shorter range"
        )


def _schedule(client: Client, spec: DagSpec, every_ms: int | None, first: int) -> Schedule:
    """Of the DAG, without its start and end: a backfill is there for what lies before."""
    if every_ms is not None:
        return Schedule(every_ms=every_ms, anchor_ms=first, timezone=spec.timezone)
    created = int(client._dag_hash(spec.dag)["created"])
    found = Schedule.of(spec, created)
    if found is None:
        raise DefinitionError(
            f"DAG {spec.dag!r} has no schedule: say the distance of the dates with --every 1d"
        )
    return Schedule(
        cron=found.cron, every_ms=found.every_ms, anchor_ms=found.anchor_ms, timezone=found.timezone
    )


def _dates(schedule: Schedule, low: int, high: int, order: str) -> Iterator[int]:
    if order == "oldest":
        yield from schedule.between(low, high)
        return
    at = schedule.at_or_before(high)
    while at is not None and at >= low:
        yield at
        at = schedule.last_before(at)


def _plan(
    client: Client, dag: str, spec: DagSpec, dates: list[int], max_active: int, on_existing: str
) -> dict[str, Any]:
    """What will be made, and how long that takes by the medians of the last runs."""
    wanted = set(dates)
    known = client._say(client.store.shard.dated_runs, dag, min(dates), max(dates))
    existing = sum(ms in wanted for ms, _ in known)
    fresh = len(dates) - (existing if on_existing == "skip" else 0)
    seconds = _run_seconds(client, dag)
    pools = sorted({t.pool for t in spec.tasks.values()})
    return {
        "dag": dag,
        "from": iso(min(dates)),
        "to": iso(max(dates)),
        "dates": [iso(ms) for ms in dates[:SHOWN_DATES]],
        "count": len(dates),
        "existing": existing,
        "on_existing": on_existing,
        "runs": fresh,
        "tasks": fresh * len(spec.tasks),
        "max_active": max_active,
        "estimated_s": None if seconds is None else round(seconds * -(-fresh // max_active), 1),
        "pools": [
            {
                **{k: p[k] for k in ("pool", "slots", "used", "waiting")},
                "share": "a fifth of an equal one, while others wait",
            }
            for p in client.pools()
            if p["pool"] in pools
        ],
    }


def _run_seconds(client: Client, dag: str) -> float | None:
    """The median time of the last successful runs."""
    rows = client.runs(dag, "success", 20)
    spans = [
        (datetime.fromisoformat(r["ended_at"]) - datetime.fromisoformat(r["started_at"])).total_seconds()
        for r in rows
        if r["started_at"] and r["ended_at"]
    ]
    return median(spans) if spans else None


def show(client: Client, ident: str) -> dict[str, Any]:
    """One backfill: what it is, and how far. Raises NotFound."""
    dag = client._say(client.store.control.backfills).get(ident)
    if dag is None:
        raise NotFound(f"backfill {ident!r} does not exist; see: redsched backfill list")
    fields, active = client._say(client.store.shard.backfill, dag, ident)
    done = {name: int(fields.get(name, 0)) for name in OUTCOMES}
    existing, planned = int(fields.get("existing", 0)), int(fields["planned"])
    over = sum(done.values()) + (existing if fields["on_existing"] == "skip" else 0)
    return {
        "backfill": ident,
        "dag": dag,
        "state": fields["state"],
        "from": iso(int(fields["first"])),
        "to": iso(int(fields["last"])),
        "order": fields["order"],
        "on_existing": fields["on_existing"],
        "max_active": int(fields["max_active"]),
        "count": planned,
        "made": int(fields.get("made", 0)),
        "existing": existing,
        **done,
        "active": active,
        "progress": round(min(1.0, over / planned), 4) if fields["state"] != "done" else 1.0,
        "next": iso(int(fields["cursor"])) if fields.get("cursor") else None,
        "created_at": iso(int(fields["created"])),
        "ended_at": iso(int(fields["ended"])) if fields.get("ended") else None,
    }


def listed(client: Client, dag: str | None) -> list[dict[str, Any]]:
    rows = []
    for ident, owner in client._say(client.store.control.backfills).items():
        if dag is None or owner == dag:
            try:
                rows.append(show(client, ident))
            except NotFound:
                continue  # its DAG was deleted
    return sorted(rows, key=lambda r: int(r["backfill"][2:]), reverse=True)


def set_state(client: Client, ident: str, state: str) -> dict[str, Any]:
    found = show(client, ident)
    changed, now = client._say(client.store.shard.backfill_state, found["dag"], ident, state)
    if not changed:
        raise Conflict(f"backfill {ident} is over: {now}")
    if state == "cancelled":
        for run in show(client, ident)[
            "active"
        ]:  # looked at again, because one more may have been made meanwhile
            try:
                client.cancel(found["dag"], run)
            except Conflict:
                continue  # it has ended meanwhile
    return show(client, ident)


def _forget_old(client: Client) -> None:
    """Ids of backfills that are long over, or whose DAG is gone."""
    known = client._say(client.store.control.backfills)
    if len(known) <= KEPT:
        return
    old = sorted(known, key=lambda x: int(x[2:]))[:-KEPT]
    rows = {r["backfill"]: r["state"] for r in listed(client, None)}
    gone = [i for i in old if rows.get(i) not in ("running", "paused")]
    if gone:
        client._say(client.store.control.forget_backfills, gone)
