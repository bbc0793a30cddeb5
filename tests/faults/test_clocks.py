"""Hosts whose clocks are wrong: only Redis' clock decides, so leases hold, slots come once, and times are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from tests.processes import KEPT, Site, dag20, until

from .clocks import WHY, library, wrong_clock

NewSite = Callable[..., Site]
needs_library = pytest.mark.skipif(library() is None, reason=WHY)
SECOND = timedelta(seconds=1)


@needs_library
@pytest.mark.parametrize("off_s", [300, 0.3])
def test_hosts_that_are_early_and_late_change_nothing(new_site: NewSite, off_s: float) -> None:
    """RT-110, and five minutes: each slot one run and one execution, though a body ends within milliseconds."""
    site = new_site(*KEPT, lease_ms=1000, worker_lease_ms=1500)
    hosts = [wrong_clock(off_s), wrong_clock(-off_s), {}]
    schedulers = [site.process("scheduler", env=site.env | host) for host in hosts]
    words = ("--concurrency", "1", str(site.folder))
    workers = [site.process("worker", *words, env=site.env | host) for host in hosts]
    site.ready([*schedulers, *workers])
    fences = [s["fence"] for s in site.client.shards()]
    site.dag("d", dag20())
    again = {"run": "exit $((2 - REDSCHED_ATTEMPT))", "retries": 1, "retry_delay": "1s"}
    site.dag("late", {"t": again})
    site.dag("slots", {"t": {"call": "bodies:ok"}}, schedule={"every": "1s"}, catchup=True)

    until(lambda: len(site.client.runs("slots", "success")) >= 5, "no slots", 20)
    site.client.pause("slots")
    runs = [site.run("d") for _ in range(5)]
    assert {s["state"] for s in site.wait("d", runs)} == {"success"}
    (shown,) = site.wait("late", site.run("late"))
    assert shown["tasks"]["t"]["attempt"] == 2
    first, last = shown["tasks"]["t"]["history"][0], shown["tasks"]["t"]
    assert SECOND <= at(last["ready_at"]) - at(first["ended_at"]) < 2 * SECOND

    rows = [row for row in site.client.runs("slots", limit=100) if row["run"] and row["started_at"]]
    dates = sorted(at(row["logical_date"]) for row in rows)
    assert all(two - one == SECOND for one, two in pairwise(dates))
    assert all(timedelta(0) <= at(r["started_at"]) - at(r["logical_date"]) < 2 * SECOND for r in rows)
    ran = Counter(line.run for line in site.begun("t") if line.run not in runs)
    assert ran == {row["run"]: 1 for row in rows}

    assert [s["fence"] for s in site.client.shards()] == fences, "a shard has changed its owner"
    assert not any(p.count("taken back") or p.count(" lost, fence ") for p in schedulers)
    assert sum(s["refused_writes"] + s["stale_reports"] for s in site.client.shards()) == 0


def at(instant: str) -> datetime:
    return datetime.fromisoformat(instant)


@needs_library
def test_the_clock_of_such_a_host_is_wrong(new_site: NewSite) -> None:
    """What the test above stands on: a worker there really has another time of day."""
    site = new_site()
    site.start(1, 0)
    site.process("worker", str(site.folder), env=site.env | wrong_clock(300))
    site.dag("d", {"t": {"run": "date +%s"}})
    (shown,) = site.wait("d", site.run("d"))
    told = int(site.client.logs("d", shown["run"], "t").data)
    assert 298 < told - at(shown["tasks"]["t"]["queued_at"]).timestamp() < 330
