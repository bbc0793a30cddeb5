"""Shards and real processes: who comes, goes, dies and sleeps; a sleeper on purpose; another number of shards."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from tests.processes import Process, Site, executions, line, until

from .conftest import NewSite

BOUND_S = 5.0
FULL_LEASE_MS = 3000


def sizes(site: Site) -> list[int]:
    """How many shards each living scheduler owns, if every shard has one that lives."""
    alive = {s["scheduler"] for s in site.client.schedulers()}
    owned = Counter(s["owner"] for s in site.client.shards())
    return sorted(owned[name] for name in alive) if owned.keys() <= alive else []


def balanced_in(site: Site, wanted: list[int], event: Callable[[], object]) -> float:
    """Seconds from the event to these sizes, which must be few."""
    event()
    begun = time.monotonic()
    until(lambda: sizes(site) == wanted, lambda: f"{sizes(site)} is not {wanted}")
    took = time.monotonic() - begun
    assert took < BOUND_S, f"{took:.1f} s to {wanted}"
    return took


def test_join_pause_wake_leave_and_death_end_in_balance_within_five_seconds(new_site: NewSite) -> None:
    """At the default lease. Five seconds is what is promised for each."""
    site = new_site(lease_ms=FULL_LEASE_MS, shards=16)
    (one, two), _ = site.start(2, 0)
    until(lambda: sizes(site) == [8, 8], lambda: str(sizes(site)))
    third: list[Process] = []

    def join() -> None:
        third.append(site.scheduler())
        until(lambda: third[0].pid in site.scheduler_names(), "it does not come")

    balanced_in(site, [5, 5, 6], join)
    before = owners(site)
    balanced_in(site, [8, 8], lambda: one.signal(signal.SIGSTOP))
    stayed = {site.scheduler_names()[p.pid] for p in (two, third[0])}
    assert all(owner == owners(site)[s] for s, owner in before.items() if owner in stayed)
    balanced_in(site, [5, 5, 6], lambda: one.signal(signal.SIGCONT))
    balanced_in(site, [8, 8], lambda: two.stop())
    balanced_in(site, [16], lambda: one.kill())
    assert third[0].alive


def owners(site: Site) -> dict[int, str]:
    return {s["shard"]: s["owner"] for s in site.client.shards()}


def test_the_log_tells_who_took_what_after_whom(new_site: NewSite) -> None:
    site = new_site(shards=2)
    (one, two), _ = site.start(2, 0)
    name = site.scheduler_names()[one.pid]
    (shard,) = [s for s, owner in owners(site).items() if owner == name]
    one.signal(signal.SIGSTOP)
    two.says(f"shard {shard} acquired, fence ")
    two.says(f" after {name}, which is gone")
    one.signal(signal.SIGCONT)
    one.says(f"shard {shard} lost, fence ")


# ---------------------------------------------------------------- fence-test


def left_over(site: Site) -> list[str]:
    with Redis.from_url(site.settings.redis or "", decode_responses=True) as redis:
        keys = [k for k in redis.scan_iter(count=1000) if "fence-test" in k]
        members = redis.smembers("{f:c}:pools") | redis.hgetall("{f:c}:after").keys()
        generations = [g for s in range(12) for g in redis.hgetall(f"{{f:s:{s}}}:generations")]
    return keys + [x for x in [*members, *generations] if "fence-test" in x]


def test_fence_test_on_a_live_installation(site: Site) -> None:
    """What runs there is not touched, and nothing stays but the count of what was refused."""
    site.start(2, 1)
    site.dag("d", {f"t{i}": {"run": f"{line()}; sleep 0.3"} for i in range(30)})
    run = site.run("d")
    found = site.json("fence-test")
    assert found["ok"] and found["run_state"] == "success" and found["started"] == ["a worker"]
    assert found["attempts"] == found["executions"] == {"one": 1, "two": 1}
    tried = {t["write"]: t for t in found["tried"]}
    assert set(tried) == {"offer", "advance", "ready", "due", "fire", "backfill_due", "pack"}
    assert all(t["refused"] for t in tried.values())
    assert found["successor_fence"] > found["fence"]
    assert f"{found['successor']}:{found['successor_fence']} is" in tried["advance"]["answer"]
    assert f"shows fence {found['fence']}, this pool has seen" in tried["offer"]["answer"]
    assert found["refused_writes"] == len(tried) - 1  # the pool does not count them
    assert site.ended("d", run)["state"] == "success"
    assert set(executions(site.trail()).values()) == {1}
    assert left_over(site) == []
    until(lambda: len(sizes(site)) == 2 and 0 not in sizes(site), lambda: str(sizes(site)))


def test_fence_test_where_nothing_runs(site: Site) -> None:
    done = site.cli("fence-test")
    assert "starting one for the length of the test" in done.stderr
    assert done.stdout.splitlines()[0].startswith("7 of 7 writes with fence ")
    assert done.stdout.splitlines()[-1].startswith("ok, in ")
    assert left_over(site) == [] and site.client.schedulers() == [] and site.client.workers() == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_fence_test_interrupted_leaves_nothing(site: Site, how: signal.Signals) -> None:
    """In the worst moment: while its scheduler is stopped."""
    test = site.process("fence-test")
    test.says("SIGSTOP")
    test.signal(how)
    assert test.end() == 130
    until(lambda: not site.everybody(), lambda: f"left: {site.everybody()}", 10)
    assert left_over(site) == []


def test_fence_test_whose_scheduler_is_killed_says_so(site: Site) -> None:
    test = site.process("fence-test")
    test.says("SIGSTOP")
    (sleeper,) = [pid for pid, words in site.everybody().items() if "redsched.fence_test" in words]
    subprocess.run(["kill", "-9", str(sleeper)], check=True)
    assert test.end() == 1
    test.says("Error: the scheduler of the test has ended")
    until(lambda: not site.everybody(), lambda: f"left: {site.everybody()}", 10)
    assert left_over(site) == []


# ---------------------------------------------------------------- another number of shards


def settings_of(site: Site) -> dict[str, Any]:
    with Redis.from_url(site.settings.redis or "", decode_responses=True) as redis:
        return dict(redis.hgetall("{f:c}:settings"))


def closed(site: Site) -> set[str]:
    with Redis.from_url(site.settings.redis or "", decode_responses=True) as redis:
        return set(redis.scan_iter(match="{f:s:*}:closed", count=1000))


def test_a_resize_is_killed_and_said_again_in_the_middle_of_runs(site: Site) -> None:
    """Their first task has ended before it, the second one ends after it; each runs once."""
    (scheduler,), (worker,) = site.start(1, 1)
    tasks = {"a": {"run": line()}, "b": {"run": line(), "needs": ["a"], "pool": "later"}}
    site.client.set_pool("later", 100)
    dags = [f"d{i}" for i in range(30)]
    for dag in dags:
        site.dag(dag, tasks)
    runs = {dag: site.run(dag) for dag in dags}
    until(lambda: all(site.state(d, r, "b") == "queued" for d, r in runs.items()), "not all in the middle")
    refused = site.cli("shards", "resize", "5", "--yes", code=4)
    assert "is alive" in refused.stderr or "are alive" in refused.stderr
    assert scheduler.stop() == worker.stop() == 0
    assert "DAGs would move, from 12 to 5 shards" in site.cli("shards", "resize", "5", "--dry-run").stdout

    for moment in (lambda: settings_of(site).get("resizing"), lambda: len(closed(site)) > 3):
        resize = site.process("shards", "resize", "5", "--yes")
        until(moment, "it does not come so far")
        resize.kill()
        stopped = site.cli("run", "start", "d0", code=5)
        assert "being changed to 5" in stopped.stderr and "redsched shards resize 5" in stopped.stderr
    assert "finish that first" in site.cli("shards", "resize", "7", "--yes", code=4).stderr
    found = site.json("shards", "resize", "5", "--yes")
    assert (found["from"], found["to"], found["dags"]) == (12, 5, 30)
    assert len(site.json("shards")) == 5

    site.client.store.forget_shards()
    late = site.run("d0")
    site.start(2, 1, pools=["default", "later"])
    for dag, run in [*runs.items(), ("d0", late)]:
        shown = site.ended(dag, run)
        assert shown["state"] == "success" and {t["attempt"] for t in shown["tasks"].values()} == {1}
    assert len(site.begun()) == 62 and set(executions(site.trail()).values()) == {1}
