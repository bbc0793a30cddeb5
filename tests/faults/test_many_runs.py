"""Many runs at once by several schedulers and workers: each task once and in order, whoever is killed or stopped meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from redis import Redis

from redsched import embedded
from redsched.client import Client
from tests.processes import Process, Site, check_order, dag20, executions, until

NewSite = Callable[..., Site]
DAG20_FILE = """
from redsched import command, dag, task
import bodies

@dag(max_active_runs=200)
def flow():
    at = {{}}
    for name, needs in {needs!r}.items():
        at[name] = task(bodies.slowly).options(id=name)(0.005)
        for up in needs:
            at[up] >> at[name]
"""


def all_settled_once(site: Site, runs: dict[str, list[str]]) -> None:
    """Every run succeeded, at the first attempt at each task."""
    for dag, ids in runs.items():
        for shown in site.wait(dag, ids, 60):
            assert shown["state"] == "success", shown
            assert {(t["state"], t["attempt"]) for t in shown["tasks"].values()} == {("success", 1)}, shown


def nothing_is_held(site: Site) -> None:
    until(lambda: site.client.pool("default")["used"] == 0, lambda: f"slots: {site.client.pool('default')}")


def test_a_hundred_runs_each_task_once_and_after_its_upstreams(site: Site) -> None:
    tasks = dag20()
    site.start(2, 2)
    for dag in "abcd":
        site.dag(dag, tasks, max_active_runs=100)
    runs = {dag: [site.run(dag, run=f"{dag}{i}") for i in range(25)] for dag in "abcd"}
    all_settled_once(site, runs)
    assert executions(site.trail()) == {(r, t): 1 for ids in runs.values() for r in ids for t in tasks}
    check_order(site.trail(), tasks)
    nothing_is_held(site)
    assert sum(s["refused_writes"] + s["stale_reports"] for s in site.client.shards()) == 0


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_protocols_of_redis_give_the_same(new_site: NewSite, protocol: int) -> None:
    """RD-110"""
    site = new_site(query=f"?protocol={protocol}")
    tasks = dag20()
    tasks["t0"] = {"run": 'echo loud; echo \'::result:: {"n": [1, null, "ü"]}\''}
    tasks["t1"] |= {"call": "bodies:take", "with": {"given": "${t0}"}}
    site.start()
    site.dag("d", tasks)
    runs = [site.run("d") for _ in range(5)]
    all_settled_once(site, {"d": runs})
    assert len(site.trail()) == 5 * 19 * 2 and set(executions(site.trail()).values()) == {1}
    assert site.client.result("d", runs[0], "t1") == {"n": [1, None, "ü"]}
    assert site.client.logs("d", runs[0], "t0").data.startswith(b"loud\n")
    assert [w["running"] for w in site.client.workers()] == [0]
    assert site.client.pool("default")["used"] == 0


# ---------------------------------------------------------------- up, killed


def granted(site: Site) -> set[tuple[str, str]]:
    """(run, task) of the attempts that some worker may be running, or has begun and given back, by the pool's own record."""
    path = site.folder / ".redsched" / "redis.sock"
    with Redis(unix_socket_path=str(path), decode_responses=True) as redis:
        entries = redis.hgetall("{f:p:default}:entries")
    names = list(dag20())
    held = {
        s: {(x.split("/")[1], names[int(x.split("/")[2])]) for x, e in entries.items() if e[0] == s}
        for s in "RSQ"
    }
    return held["R"] | held["S"] | (held["Q"] & {(x.run, x.task) for x in site.trail()})


def up(site: Site) -> Process:
    made = site.process("up", "--schedulers", "2", "--workers", "2", "--concurrency", "2", "dags")
    made.says("ready:")
    return made


@pytest.mark.parametrize(("victims", "count"), [("up", 40), ("all", 100)])
def test_up_is_killed_in_the_middle_and_started_again(new_site: NewSite, victims: str, count: int) -> None:
    """At least once: what ran when the power went may run again, nothing else does, and each task settles once."""
    site = new_site(server=False)
    (site.folder / "dags").mkdir()
    needs = {name: list(t.get("needs", ())) for name, t in dag20().items()}
    (site.folder / "dags" / "bodies.py").symlink_to(site.folder / "bodies.py")
    (site.folder / "dags" / "flow.py").write_text(DAG20_FILE.format(needs=needs))
    first = up(site)
    site.keep_writes()
    client = Client(settings=site.embedded_settings())
    runs = [client.trigger("flow", run=f"r{i}")["run"] for i in range(count)]
    until(lambda: len(site.trail()) > 15 * count, "too few have run")
    if victims == "up":
        first.kill()
    else:
        site.kill_everybody()
        first.end()
    assert len(site.trail()) < 39 * count, "all had run before the kill"
    embedded.ensure(site.folder / ".redsched")
    at_the_kill = granted(site)

    second = up(site)
    shown = [client.wait("flow", run, 60) for run in runs]
    client.close()
    assert [s["state"] for s in shown] == ["success"] * count
    tasks = dag20()
    counts = executions(site.trail())
    assert set(counts) == {(r, t) for r in runs for t in tasks}
    twice = {who for who, n in counts.items() if n > 1}
    assert twice <= at_the_kill and max(counts.values()) <= 2, twice - at_the_kill
    attempts = {(s["run"], n): t["attempt"] for s in shown for n, t in s["tasks"].items()}
    assert {who for who, attempt in attempts.items() if attempt > 1} <= at_the_kill
    assert max(attempts.values()) <= 2
    check_order(site.trail(), tasks)
    assert second.stop(40) == 0


# ---------------------------------------------------------------- a scheduler that sleeps


def test_a_scheduler_that_slept_past_its_lease_is_deposed(site: Site) -> None:
    """It wakes up, believes that it owns its shards, and is refused; nothing is lost and nothing runs twice."""
    tasks = dag20()
    (one, other), _ = site.start(2, 1)
    dags = [f"d{i}" for i in range(12)]  # some in each shard
    for dag in dags:
        site.dag(dag, tasks)
    runs = {dag: [site.run(dag, run=f"{dag}.before")] for dag in dags}
    all_settled_once(site, runs)
    awake = site.scheduler_names()[other.pid]
    asleep = site.scheduler_names()[one.pid]
    assert {s["owner"] for s in site.client.shards()} == {awake, asleep}

    one.signal(signal.SIGSTOP)
    for dag in dags:  # while nobody owns half of them
        runs[dag].append(site.run(dag, run=f"{dag}.orphaned"))
    until(lambda: {s["owner"] for s in site.client.shards()} == {awake}, "not taken over")
    all_settled_once(site, runs)
    fences = [s["fence"] for s in site.client.shards()]
    assert sum(s["refused_writes"] for s in site.client.shards()) == 0

    one.signal(signal.SIGCONT)

    def refused() -> int:
        for dag in dags:
            runs[dag].append(site.run(dag))
        return sum(s["refused_writes"] for s in site.client.shards())

    until(refused, "it was never refused")
    one.says(" lost, fence ")
    all_settled_once(site, runs)
    assert executions(site.trail()) == {(r, t): 1 for ids in runs.values() for r in ids for t in tasks}
    check_order(site.trail(), tasks)
    until(
        lambda: {s["owner"] for s in site.client.shards()} == {awake, asleep}, "it does not take part again"
    )
    assert all(s["fence"] >= f for s, f in zip(site.client.shards(), fences, strict=True))
    assert one.alive and other.alive
