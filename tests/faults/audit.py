"""What became of a load under siege: what bodies left in the file, against what Redis says of every run.

Each task has one accepted attempt, which ran. Each other execution is named, with the record of how its attempt ended and
with the fault that befell its worker; one that has no such excuse is a finding, like a run that is lost or stuck.
"""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from tests.processes import Line, Site, Tasks, until

from .load import TICK_S, Load, shapes
from .siege import Event, Siege

DRAIN_S: Final = 180.0
EMPTY: Final = {
    "s": ("inbox", "outbox", "timers", "stops"),
    "p": ("entries", "held", "stream", "lease", "lost", "groups"),
}


@dataclass(frozen=True)
class Again:
    """An execution whose attempt did not settle its task. `whole`: it had had its effect."""

    run: str
    task: str
    attempt: int
    worker: str
    whole: bool
    outcome: str
    fault: str


@dataclass
class Findings:
    """`wrong`: sentences, each a broken promise; the rest are counts of what was looked at."""

    runs: int = 0
    refused: int = 0
    slots: int = 0
    tasks: int = 0
    executions: int = 0
    asked_for: int = (
        0  # executions again, or in vain, because a person cleared or cancelled, or the body meant to fail
    )
    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    again: list[Again] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    waits_ms: list[int] = field(default_factory=list)

    @property
    def duplicates(self) -> list[Again]:
        return [x for x in self.again if x.whole]


@dataclass
class Execution:
    attempt: int
    seat: str
    begun: int  # bytes of the trail before it
    whole: bool = False


def audit(siege: Siege, load: Load) -> Findings:
    """After the load has ended. Stops all processes."""
    site, found = siege.site, Findings()
    site.client.pause("ticks")
    found.stuck = _drained(site)
    executions = _executions(site)
    existing = {(row["dag"], row["run"]) for dag in [*shapes(), "ticks"] for row in _rows(site, dag)}
    found.lost = [f"{dag}/{run}" for dag, run in load.runs if (dag, run) not in existing]
    found.refused = len(load.refused)
    for dag, run in sorted(existing):
        shown = site.client.run(dag, run)
        check_run(found, shown, executions, siege.events, load.cancelled, load.cleared)
    found.wrong += [f"{run} {task} ran, and there is no such run" for run, task in executions]
    _check_slots(found, site)
    found.wrong += _left_over(site)
    found.wrong += _stop(siege)
    return found


# ---------------------------------------------------------------- runs


def _rows(site: Site, dag: str) -> list[dict[str, Any]]:
    return [row for row in site.client.runs(dag, limit=1_000_000) if row["run"]]


def _drained(site: Site) -> list[str]:
    """Runs that don't end, each with what its tasks wait for."""
    end = time.monotonic() + DRAIN_S
    while any(s["runs_queued"] + s["runs_running"] for s in site.client.shards()):
        if time.monotonic() > end:
            rows = [row for dag in [*shapes(), "ticks"] for row in _rows(site, dag) if not row["ended_at"]]
            return [f"{r['dag']}/{r['run']}: {site.client.explain(r['dag'], r['run'])}" for r in rows]
        time.sleep(0.1)
    return []


def _executions(site: Site) -> dict[tuple[str, str], list[Execution]]:
    """Of each task of each run, in the order in which they began."""
    found: dict[tuple[str, str], list[Execution]] = defaultdict(list)
    open_: dict[tuple[str, str, int, int], Execution] = {}
    place = 0
    for text in site.trail_file.read_text().splitlines():
        line = Line.read(text)
        word, _, seat = line.word.partition("@")
        who = (line.run, line.task, line.attempt, line.pid)
        if word == "begun":
            open_[who] = Execution(line.attempt, seat, place)
            found[line.run, line.task].append(open_[who])
        else:
            open_[who].whole = True
        place += len(text) + 1
    return found


def check_run(
    found: Findings,
    shown: dict[str, Any],
    executions: dict[tuple[str, str], list[Execution]],
    events: list[Event],
    cancelled: set[str],
    cleared: set[str],
) -> None:
    """Takes its executions out."""
    found.runs += 1
    tasks = shown["tasks"]
    if shown["state"] not in ("success", "cancelled" if shown["run"] in cancelled else ""):
        reasons = {name: t["reason"] for name, t in tasks.items() if t["state"] not in ("success", "skipped")}
        found.wrong.append(f"{shown['run']} is {shown['state']}: {reasons}")
    if shown["run"] not in cleared:
        found.waits_ms += [ms for _, ms in waits(shown, shapes().get(shown["dag"], {}))]
    for name, task in tasks.items():
        ran = executions.pop((shown["run"], name), [])
        found.tasks += 1
        found.executions += len(ran)
        accepted = [x for x in ran if x.attempt == task["attempt"] and x.whole]
        if task["state"] == "success" and not accepted:
            found.wrong.append(
                f"{shown['run']} {name} succeeded at attempt {task['attempt']}, which had no effect"
            )
        if task["state"] == "skipped" and ran:
            found.wrong.append(f"{shown['run']} {name} is skipped and ran")
        for one in ran:
            if accepted and one is accepted[-1]:
                continue
            _excuse(found, shown, name, one, events)


def waits(shown: dict[str, Any], tasks: Tasks) -> list[tuple[int, int]]:
    """Of the first attempts of a run: when each was due (its last upstream had ended), and ms until its pool had it."""
    found = []
    for name, task in shown["tasks"].items():
        if task["state"] == "success" and task["attempt"] == 1 and task["queued_at"]:
            ended = [shown["tasks"][up]["ended_at"] for up in tasks.get(name, {}).get("needs", ())]
            due = max(map(_ms, filter(None, ended)), default=_ms(shown["created_at"]))
            found.append((due, _ms(task["queued_at"]) - due))
    return found


def _ms(instant: str) -> int:
    return round(datetime.fromisoformat(instant).timestamp() * 1000)


def _excuse(found: Findings, shown: dict[str, Any], task: str, one: Execution, events: list[Event]) -> None:
    """Name an execution that was not the accepted one, or find it wrong."""
    record = shown["tasks"][task]
    ended = next((h for h in record["history"] if h["attempt"] == one.attempt), None)
    if ended is None and one.attempt == record["attempt"] and record["state"] == "cancelled":
        ended = {"outcome": "cancelled", "reason": "cleared"}
    outcome = "no record" if ended is None else ended["reason"] or ended["outcome"]
    if outcome == "cleared" or "as it should be" in outcome:
        found.asked_for += 1
        return
    hits = [e for e in events if e.hit(one.seat, one.begun)]
    fault = next((e for e in hits if e.seats), hits[0] if hits else None)
    where = f"{shown['run']} {task}: attempt {one.attempt} on {one.seat}"
    if ended is None:
        found.wrong.append(
            f"{where} ran, and has no record beside the accepted attempt {shown['tasks'][task]['attempt']}"
        )
    elif fault is None or not (ended["outcome"] == "lost" or "killed by signal" in outcome):
        found.wrong.append(f"{where} ended {outcome!r}, and nothing had happened to its worker")
    found.again.append(
        Again(shown["run"], task, one.attempt, one.seat, one.whole, outcome, str(fault) if fault else "none")
    )


def _check_slots(found: Findings, site: Site) -> None:
    """The schedule caught up: one run for each slot, in spite of all."""
    dates = sorted(_ms(row["logical_date"]) for row in _rows(site, "ticks"))
    found.slots = len(dates)
    for one, two in pairwise(dates):
        if two - one != TICK_S * 1000:
            found.wrong.append(f"slots of the schedule: {two - one} ms after {one} comes {two}")


# ---------------------------------------------------------------- what is left


def _left_over(site: Site) -> list[str]:
    """Pools hold nothing, and no index of a shard or pool has an entry; as soon as the last turn has been taken."""
    try:
        until(lambda: not _entries(site), "", 20)
    except AssertionError:
        return [f"left in Redis: {_entries(site)}"]
    return []


def _entries(site: Site) -> dict[str, int]:
    say, count = site.redis.say, {"zset": "ZCARD", "hash": "HLEN", "set": "SCARD", "stream": "XLEN"}
    found = {}
    for key in say("KEYS", f"{{{site.settings.namespace}:[sp]:*"):
        cell, _, name = key.partition("}:")
        kind = say("TYPE", key) if name in EMPTY[cell.split(":")[1]] else "none"  # it may be gone by now
        if kind != "none" and (size := int(say(count[kind], key))):
            found[key] = size
    found |= {
        f"pool {p['pool']} {what}": p[what]
        for p in site.client.pools()
        for what in ("used", "waiting", "running")
        if p[what]
    }
    return found


def _stop(siege: Siege) -> list[str]:
    """Everybody ends with code 0 when told to, and leaves no process."""
    wrong, site = [], siege.site
    processes = [p for seats in siege.seats.values() for p in seats]
    for process in processes:
        process.signal(signal.SIGTERM)
    for process in [*processes, *siege.leaving]:
        if (code := process.end(60)) != 0:
            wrong.append(f"{process.name} ended with {code}: {process.lines[-5:]}")
    try:
        until(lambda: not site.everybody(), "", 10)
    except AssertionError:
        wrong.append(f"processes left: {site.everybody()}")
    return wrong + [f"{p.name}: {p.lines}" for p in site.processes if p.count("Traceback")]
