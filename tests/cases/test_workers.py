"""RT-101 to RT-108: long, deadly and hanging bodies, and workers that stop or die."""

from __future__ import annotations

import signal
import time
from datetime import datetime
from typing import Any

import pytest

from redsched.retry import CEILING_MS, retry_delay_ms
from tests.processes import (
    FOREVER,
    Site,
    alive,
    attempts,
    first_time,
    gate,
    line,
    needs,
    sh,
    states,
    until,
)

from .conftest import Make

LEASE_S = 1.5
LONG_S = 4 * LEASE_S


@pytest.fixture(scope="module")
def site(make_shared: Make) -> Site:
    made = make_shared(worker_lease_ms=int(LEASE_S * 1000))
    made.start(2, 3, concurrency=3, pools=["default", "one"])
    return made


def seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def test_rt_101_work_that_outlasts_the_lease_is_not_done_again(site: Site) -> None:
    """Four leases of 1.5 s in place of five of 5 s; the three at the same time."""
    site.client.set_pool("one", 1)
    long = f"sleep {LONG_S}"
    tasks = {
        "a": sh(long),
        "b": {"run": f"{line('begun $(date +%s%N)')}; exit $((2 - REDSCHED_ATTEMPT))"}
        | {"retries": 1, "retry_delay": f"{LONG_S}s"},
        "holder": sh(long) | {"pool": "one", "priority": 1},
        "c": sh() | {"pool": "one"},
    }
    shown = site.done("rt101", tasks)
    assert shown["state"] == "success"
    assert attempts(shown) == {"a": 1, "b": 2, "holder": 1, "c": 1}
    lines = site.trail(run=shown["run"])
    assert sorted(x.task for x in lines) == ["a", "b", "b", "c", "holder"]
    first, second = site.trail("b", shown["run"])
    assert second.at - first.at >= LONG_S
    assert lines[-1].task in "bc"


@pytest.mark.parametrize("kind", ["command", "call"])
def test_rt_102_a_body_that_kills_its_process_group(site: Site, kind: str) -> None:
    """A worker of its own, with one child: the 20 short tasks are behind the deadly one."""
    pool, dag = f"rt102{kind}", f"rt102.{kind}"
    site.client.set_pool(pool, 128)
    worker = site.worker(concurrency=1, pools=[pool])
    site.ready([worker])
    deadly = first_time("kill -9 0") if kind == "command" else {"call": "bodies:kill_group"}
    short = {f"s{i}": {"call": "bodies:ok", "pool": pool} for i in range(20)}
    again = {"pool": pool, "priority": 5, "retries": 1, "retry_delay": "1s"}
    shown = site.done(dag, {"deadly": deadly | again} | short)
    run = shown["run"]
    assert shown["state"] == "success"
    assert attempts(shown) == dict.fromkeys(short, 1) | {"deadly": 2}
    assert site.executed(run) == dict.fromkeys(short, 1) | {"deadly": 2}
    assert site.trail(run=run)[0].task == "deadly"
    assert b"killed by signal 9" in site.client.logs(dag, run, "deadly", 1).data
    assert [h["reason"] for h in shown["tasks"]["deadly"]["history"]] == ["killed by signal 9"]
    assert worker.alive
    assert {t["worker"] for t in shown["tasks"].values()} == {shown["tasks"]["s0"]["worker"]}
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0


@pytest.mark.parametrize("how", ["drained", "grace over", "told twice"])
def test_rt_103_a_worker_is_told_to_stop(make: Make, how: str) -> None:
    """The lease is a minute, so that what is handed back was not found by its end. Handing back is no attempt."""
    site = make(worker_lease_ms=60_000)
    site.start(1, 0)
    first = site.worker("--grace", "500ms" if how == "grace over" else "20s", concurrency=1)
    site.dag("d", {"t": sh(gate("go")) if how == "drained" else first_time(FOREVER)})
    site.dag("later", {"t": sh()})
    run = site.run("d")
    body = site.nth(1, "t", run)
    site.becomes("d", run, "t", "running")
    victim = site.client.run("d", run)["tasks"]["t"]["worker"]
    idle = site.worker(concurrency=2)
    site.ready([idle])
    first.signal(signal.SIGTERM)
    first.says("draining")
    later = [site.run("later") for _ in range(4)]
    if how == "told twice":
        first.signal(signal.SIGTERM)
    for shown in site.wait("later", later):
        assert shown["tasks"]["t"]["worker"] not in (None, victim)
    if how == "drained":
        assert alive(body.pid)
        site.open("go")
    assert first.end(10) == 0
    assert not alive(body.pid)
    shown = site.ended("d", run)
    assert (states(shown), attempts(shown)) == ({"t": "success"}, {"t": 1})
    assert site.executed(run) == {"t": 1 if how == "drained" else 2}
    site.slots_free()
    assert [w["pid"] for w in site.client.workers()] == [idle.pid]


@pytest.mark.parametrize("how", ["killed", "asleep"])
def test_rt_104_a_lost_worker_is_noticed_within_its_lease(make: Make, how: str) -> None:
    """Not after the time-out of an hour. The sleeping one's body goes on, and ends after the new attempt: too late."""
    lease_s = 2.0
    site = make(worker_lease_ms=int(lease_s * 1000))
    _, (first,) = site.start(1, 1, concurrency=1)
    old = first_time(
        f"{gate('old')}; echo late; echo '::result:: \"old\"'; {line('late')}", "echo '::result:: \"new\"'"
    )
    site.dag("d", {"t": old | {"timeout": "1h"}})
    run = site.run("d")
    body = site.nth(1, "t", run)
    second = site.worker(concurrency=1)
    site.ready([second])
    if how == "killed":
        first.kill()
    else:
        first.signal(signal.SIGSTOP)
    lost = time.monotonic()
    site.nth(2, "t", run)
    # The lease, up to half of it until the leader looks, and time for a busy machine.
    assert time.monotonic() - lost < 1.5 * lease_s + 4
    shown = site.ended("d", run)
    site.open("old")
    until(lambda: not alive(body.pid), "the old body is alive")
    if how == "asleep":
        until(lambda: len(site.trail(run=run)) == 3, "the old body did not end")
        first.signal(signal.SIGCONT)
        site.dag("both", {f"t{i}": sh(gate("both")) for i in range(2)})
        both = site.run("both")
        until(lambda: len(site.trail(run=both)) == 2, "the first worker takes no more work")
        site.open("both")
        site.ended("both", both)
    assert site.client.run("d", run) == shown
    assert (shown["state"], attempts(shown)) == ("success", {"t": 2})
    assert site.client.result("d", run, "t") == "new"
    assert b"late" not in site.client.logs("d", run, "t").data
    assert [h["outcome"] for h in shown["tasks"]["t"]["history"]] == ["lost"]
    assert site.executed(run) == {"t": 2}
    site.slots_free()


def test_rt_105_a_busy_body_does_not_silence_its_worker(site: Site) -> None:
    """The interpreter's lock held, and the whole child stopped, for four leases each."""
    tasks = {
        "busy": {"call": "bodies:hold_the_lock", "with": {"seconds": LONG_S}},
        "stopped": sh("kill -STOP $PPID", f"sleep {LONG_S}", "kill -CONT $PPID"),
    }
    shown = site.done("rt105", tasks)
    assert shown["state"] == "success"
    assert attempts(shown) == {"busy": 1, "stopped": 1}
    assert site.executed(shown["run"]) == {"busy": 1, "stopped": 1}
    assert site.client.result("rt105", shown["run"], "busy") <= 1, "another thread got its turns"


def test_rt_106_one_death_is_counted_once(make: Make) -> None:
    """The leader and another scheduler are stopped until the third has found the death, and then go on."""
    site = make(worker_lease_ms=2000)
    schedulers, (first,) = site.start(3, 1)
    site.dag("d", {"t": first_time(FOREVER) | {"retries": 3, "retry_delay": "20s"}})
    run = site.run("d")
    site.nth(1, "t", run)
    second = site.worker()
    site.ready([second])
    leader = next(s["scheduler"] for s in site.client.schedulers() if s["leader"])
    led = next(p for p in schedulers if f":{p.pid}:" in leader)
    other, awake = [p for p in schedulers if p is not led]
    first.kill()
    for one in (led, other):
        one.signal(signal.SIGSTOP)
    awake.says("taken back")
    for one in (led, other):
        one.signal(signal.SIGCONT)
    shown = site.ended("d", run)
    site.ready(schedulers)  # all own shards again, so each has had its say
    again = site.ended("d", run)
    assert again["tasks"] == shown["tasks"]
    assert (shown["state"], attempts(shown)) == ("success", {"t": 2})
    assert [h["outcome"] for h in shown["tasks"]["t"]["history"]] == ["lost"]
    assert site.executed(run) == {"t": 2}
    assert sum(p.count("taken back") for p in schedulers) == 1


def test_rt_107_backoff_never_overflows(site: Site) -> None:
    """Bodies that ask for a retry at once get to attempt N and then fail: the delay that follows is read from `explain`.

    Up to attempt 400 in the engine, where 100^399 is far beyond a double; up to 2000 by asking the same rule in Python.
    """
    cap, ceiling = {"retry_max_delay": "3600s"}, CEILING_MS / 1000
    doubling = {"retries": 3000, "retry_delay": "300s", "retry_backoff": 2}
    steep = {"retries": 3000, "retry_delay": "300s", "retry_backoff": 100}
    expected = {1: 300, 2: 600, 3: 1200, 4: 2400, 5: 3600, 6: 3600}

    def failing(at: int) -> dict[str, Any]:
        return {"call": "bodies:fail_slowly_at", "with": {"attempt": at}}

    tasks = {f"n{n}": failing(n) | doubling | cap for n in [*expected, 400]}
    tasks |= {
        "uncapped": failing(400) | steep,
        "jitter": failing(400) | doubling | cap | {"retry_jitter": 0.1},
    }
    site.dag("rt107", tasks)
    run = site.run("rt107")

    def waits() -> dict[str, float]:
        rows = site.client.explain("rt107", run)
        due = {r["task"]: w["until"] for r in rows for w in r["waits_for"] if w.get("seconds", 0) > 200}
        shown = site.client.run("rt107", run)["tasks"]
        return {task: seconds(shown[task]["ended_at"], at) for task, at in due.items()}

    until(lambda: set(waits()) == set(tasks), lambda: f"wait: {waits()}", 60)
    delays = waits()
    for n, delay in {**expected, 400: 3600}.items():
        assert delay <= delays[f"n{n}"] < delay + 5
    assert ceiling <= delays["uncapped"] < ceiling + 5
    assert 3600 * 0.9 <= delays["jitter"] < 3600 * 1.1 + 5
    assert attempts(site.client.run("rt107", run))["uncapped"] == 400
    assert site.executed(run)["uncapped"] == 400
    site.client.cancel("rt107", run)
    assert site.done("rt107.after", {"t": sh()})["state"] == "success"

    asked = [retry_delay_ms(300_000, 2, 3_600_000, 0, n, "x") for n in range(1, 2001)]
    assert asked == [300_000, 600_000, 1_200_000, 2_400_000, *[3_600_000] * 1996]
    assert {retry_delay_ms(300_000, 2, 0, 0, n, "x") for n in range(20, 2001)} == {CEILING_MS}


@pytest.mark.parametrize("deaf", [False, True], ids=["children", "deaf"])
def test_rt_108_a_timeout_takes_the_whole_process_group(site: Site, deaf: bool) -> None:
    """One second in place of three; in a pool of one slot, so that what comes after needs it back."""
    dag = f"rt108.{'deaf' if deaf else 'children'}"
    site.client.set_pool("one", 1)
    hang = (
        ("trap '' TERM", "sleep 300 & sleep 300", "sleep 300")
        if deaf
        else ("sh -c 'sleep 300 & sleep 300; wait'",)
    )
    tasks = {
        "hangs": sh(*hang) | {"timeout": "1s", "kill_grace": "500ms", "retries": 1, "pool": "one"},
        "after": sh() | needs("hangs", rule="all_failed") | {"pool": "one"},
    }
    site.dag(dag, tasks)
    run = site.run(dag)
    site.nth(1, "hangs", run)
    until(lambda: len(site.of_task("hangs", run)) >= 2, "its children don't run")
    shown = site.ended(dag, run)
    hangs = shown["tasks"]["hangs"]
    assert (hangs["state"], hangs["attempt"]) == ("failed", 2)
    assert "timeout" in hangs["reason"]
    for one in [*hangs["history"], hangs]:
        assert 1 <= seconds(one["started_at"], one["ended_at"]) < 1 + 0.5 + 4
    assert site.executed(run) == {"hangs": 2, "after": 1}
    until(lambda: not site.of_task("hangs", run), lambda: f"left: {site.of_task('hangs', run)}", 5)
    site.slots_free("one")


def test_what_a_body_does_to_its_workers_folder_is_its_own_loss(site: Site) -> None:
    """A folder in the place of its result had made every later command of that child fail."""
    site.client.set_pool("vandals", 1)
    site.ready([site.worker(concurrency=1, pools=["vandals"])])
    deeds = [
        'rm -f "$REDSCHED_RESULT"; mkdir "$REDSCHED_RESULT"; touch "$REDSCHED_RESULT/x"',
        'rm -rf "$(dirname "$REDSCHED_RESULT")"',
        'chmod 000 "$(dirname "$REDSCHED_RESULT")"/*',
        'ln -sf /dev/zero "$REDSCHED_RESULT"',
    ]
    for number, deed in enumerate(deeds):
        tasks = {
            "vandal": sh(deed) | {"pool": "vandals"},
            "command": {"run": "echo '::result:: 5'; echo said", "pool": "vandals"} | needs("vandal"),
            "call": {"call": "bodies:take", "with": {"given": 7}, "pool": "vandals"} | needs("command"),
        }
        dag = f"vandals.{number}"
        shown = site.done(dag, tasks)
        assert (shown["state"], attempts(shown)) == ("success", dict.fromkeys(tasks, 1))
        assert site.client.result(dag, shown["run"], "command") == 5
        assert site.client.result(dag, shown["run"], "call") == 7
        assert site.client.logs(dag, shown["run"], "command").data.endswith(b"said\n")
