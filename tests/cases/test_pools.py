"""PL-101 to PL-105, PL-107: slots are never exceeded, never lost, and never kept from those who can have them."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server
from tests.processes import FOREVER, KEPT, Line, Site, first_time, needs, sh, states, until

from .conftest import Make

POOLS = ["default", "six", "a", "b", "single", "line"]


@pytest.fixture(scope="module")
def site(make_shared: Make) -> Site:
    made = make_shared()
    made.start(3, 2, concurrency=6, pools=POOLS)
    return made


def stamped(seconds: float, **more: Any) -> dict[str, Any]:
    return {"call": "bodies:slowly", "with": {"seconds": seconds}, **more}


def spans(lines: list[Line]) -> dict[str, tuple[float, float]]:
    """When the body of each task began and ended."""
    begun = {x.task: x.at for x in lines if x.word == "begun"}
    return {x.task: (begun[x.task], x.at) for x in lines if x.word == "ended"}


def test_pl_101_slots_are_never_exceeded(site: Site) -> None:
    """0.15 s in place of 1 s. Checked at every begin, by the bodies' own stamps, and in the pool's view all along."""
    site.client.set_pool("six", 6)
    wide = {f"w{i}": stamped(0.15, pool="six", pool_slots=3) for i in range(30)}
    tasks = wide | {f"n{i}": stamped(0.15, pool="six") for i in range(30)}
    site.dag("pl101", tasks, max_active_tasks=100)
    run = site.run("pl101")
    seen = []

    def ended() -> bool:
        pool = site.client.pool("six")
        seen.append(pool["used"])
        return bool(site.client.run("pl101", run)["state"] != "running")

    until(ended, "not ended", 60)
    shown = site.client.run("pl101", run)
    assert set(states(shown).values()) == {"success"}
    assert site.executed(run) == dict.fromkeys(tasks, 1)
    assert 0 <= min(seen) <= max(seen) <= 6
    changes = [
        (at, slots)
        for task, (begin, end) in spans(site.trail(run=run)).items()
        for at, slots in ((begin, 3 if task in wide else 1), (end, -3 if task in wide else -1))
    ]
    used, most = 0, 0
    for _, slots in sorted(changes):
        used += slots
        most = max(most, used)
    assert most == 6
    assert used == 0
    site.slots_free("six")


def test_pl_102_a_full_pool_does_not_hide_another(site: Site) -> None:
    """Half a second in place of one; A's 2000 tasks are then cancelled."""
    for pool in "ab":
        site.client.set_pool(pool, 5)
    tasks = {f"a{i}": stamped(0.5, pool="a", priority=10) for i in range(2000)}
    tasks |= {f"b{i}": stamped(0.5, pool="b", priority=1) for i in range(20)}
    site.dag("pl102", tasks, max_active_tasks=10_000)
    run = site.run("pl102")
    began = time.monotonic()

    def done(pool: str) -> int:
        return sum(x.task[0] == pool and x.word == "ended" for x in site.trail(run=run))

    until(lambda: done("b") == 20, lambda: f"done: {done('a')}, {done('b')}", 10)
    assert min(x.at for x in site.trail(run=run) if x.task[0] == "b") - began < 3
    assert done("a") < 200
    site.client.cancel("pl102", run)
    for pool in "ab":
        site.slots_free(pool)
    assert site.executed(run) == dict.fromkeys(site.executed(run), 1)


def test_pl_103_thousands_of_waiting_runs_do_not_hide_another_dag(site: Site) -> None:
    """In place of a slot each minute, Z is triggered five times."""
    site.dag("pl103.x", {"t": stamped(0.05)}, max_active_runs=1)
    site.dag("pl103.y", {"t": stamped(0)})
    site.dag("pl103.z", {"t": stamped(0)})
    for _ in range(3000):
        site.client.trigger("pl103.x")
    for dag in ("pl103.y", *["pl103.z"] * 5):
        began = time.monotonic()
        run = site.run(dag)
        site.ended(dag, run)
        assert site.trail(run=run)[0].at - began < 5
        assert len(site.client.runs("pl103.x", state="running", limit=3000)) <= 1
    assert len(site.client.runs("pl103.x", state="queued", limit=3000)) > 2000
    ours = {r["run"] for r in site.client.runs("pl103.x", limit=3000)}
    times = sorted((x.at, x.word) for x in site.trail() if x.run in ours)
    assert len(times) > 10
    assert all(one[1] != two[1] for one, two in pairwise(times)), "two runs at once"
    site.client.delete("pl103.x", force=True)


def test_pl_104_a_slot_comes_back_whatever_became_of_its_holder(
    make: Make, new_server: Callable[..., Server]
) -> None:
    """Cancelled, its worker killed, its DAG deleted with all its runs, everything killed with the server as well."""
    lease_s = 2.0
    server = new_server(*KEPT)
    site = make(server, worker_lease_ms=int(lease_s * 1000))
    _, workers = site.start(1, 2, concurrency=1)
    site.client.set_pool("default", 1)
    site.dag("waits", {"t": sh()})

    def held(dag: str) -> tuple[str, Line, str]:
        site.dag(dag, {"t": first_time(FOREVER) | {"kill_grace": "500ms"}})
        run = site.run(dag)
        holder = site.nth(1, "t", run)
        waiter = site.run("waits")
        until(lambda: site.client.pool("default")["waiting"] == 1, "nobody waits")
        assert site.client.pool("default")["used"] == 1
        return run, holder, waiter

    def goes_on(waiter: str, within: float) -> None:
        began = time.monotonic()
        assert site.ended("waits", waiter)["state"] == "success"
        assert time.monotonic() - began < within

    run, _, waiter = held("cancelled")
    site.client.cancel("cancelled", run)
    goes_on(waiter, lease_s + 3)

    run, holder, waiter = held("killed")
    parent = _parent(_parent(holder.pid))  # a command's parent is a child of its worker
    next(w for w in workers if w.pid == parent).kill()
    goes_on(waiter, 1.5 * lease_s + 4)
    assert site.ended("killed", run)["state"] == "success"

    _, _, waiter = held("deleted")
    site.client.delete("deleted", force=True)
    goes_on(waiter, lease_s + 3)

    run, _, waiter = held("dark")
    for process in site.processes:
        process.kill()
    server.restart()
    site.start(1, 2, concurrency=1)
    goes_on(
        waiter, 3 * lease_s + 3
    )  # no lease runs out while Redis was away: everybody has one more to come back
    assert site.ended("dark", run)["state"] == "success"
    site.slots_free()
    assert site.json("pool", "list") == [site.client.pool("default")]
    assert [(p["used"], p["waiting"]) for p in site.json("pool", "list")] == [(0, 0)]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_pl_105_an_unknown_pool_is_refused(site: Site) -> None:
    """At registration, with the place, the name and what to do; then it works."""
    place = site.folder / "pl105.yaml"
    place.write_text("dag: pl105\ntasks:\n  t: {run: 'true', pool: typo}\n")
    refused = site.cli("dag", "register", place.name, code=2).stderr
    for word in ("pl105", "'t'", "typo", "does not exist", "redsched pool set typo"):
        assert word in refused
    assert "pl105" not in [d["dag"] for d in site.json("dag", "list")]
    site.cli("run", "start", "pl105", code=3)
    site.cli("pool", "set", "typo", "--slots", "1")
    site.cli("dag", "register", place.name)
    site.ready([site.worker(concurrency=1, pools=["typo"])])
    assert site.ended("pl105", site.run("pl105"))["state"] == "success"


def test_pl_107_at_most_one_task_of_low_priority_slips_in(site: Site) -> None:
    """10 repetitions in place of 50, 0.1 s in place of 0.5 s; in one shard, so that both wait for the same scheduler.

    The documented bound: a slot goes at once to who waits, so one task may run while the end of D1's task makes the next
    one ready; never two, and never one before a task of D1 that is ready already.
    """
    site.client.set_pool("single", 1)
    chain = {"t1": {}, "t2": needs("t1"), "t3": needs("t2")}

    def tasks(priority: int) -> dict[str, dict[str, Any]]:
        return {t: stamped(0.1, pool="single", priority=priority) | more for t, more in chain.items()}

    of, high = site.client.store.shard.of, "pl107.high"
    low = next(name for i in range(1000) if of(name := f"pl107.low{i}") == of(high))
    site.dag(high, tasks(10), team="pl107")
    site.dag(low, tasks(1), team="pl107")
    for _ in range(10):
        one = site.run(high)
        until(lambda run=one: site.trail(run=run), "t1 does not run")  # type: ignore[misc]
        two = site.run(low)
        assert site.ended(high, one)["state"] == site.ended(low, two)["state"] == "success"
        order = [
            "high" if x.run == one else "low"
            for x in site.trail()
            if x.run in (one, two) and x.word == "begun"
        ]
        assert order[0] == "high"
        assert order.count("high") == order.count("low") == 3
        last = len(order) - order[::-1].index("high")
        assert "low low" not in " ".join(order[:last])
    site.slots_free("single")


def test_pl_107_what_is_ready_goes_by_priority(site: Site) -> None:
    """The part of the case without a chain: all of D1 waits, then D2 comes, or the other way round."""
    site.client.set_pool("line", 1)

    def tasks(priority: int) -> dict[str, dict[str, Any]]:
        return {f"t{i}": stamped(0.02, pool="line", priority=priority) for i in range(5)}

    site.dag(
        "pl107.hold", {"t": sh("until [ -e pl107 ]; do sleep 0.02; done") | {"pool": "line"}}, team="pl107"
    )
    hold = site.run("pl107.hold")
    site.nth(1, "t", hold)
    site.dag("pl107.low", tasks(1), team="pl107")
    site.dag("pl107.high", tasks(10), team="pl107")
    low, high = site.run("pl107.low"), site.run("pl107.high")
    until(lambda: site.client.pool("line")["waiting"] == 10, "not all wait")
    site.open("pl107")
    site.ended("pl107.low", low)
    site.ended("pl107.high", high)
    begun = [(x.run, x.task) for x in site.trail() if x.run in (low, high) and x.word == "begun"]
    assert begun == [(run, f"t{i}") for run in (high, low) for i in range(5)]
    site.slots_free("line")
