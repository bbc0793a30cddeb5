"""Tasks that take long, die, hang or lose their worker: as many attempts as promised, and nothing left behind."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .processes import KEPT, SAY, Site, alive, until

NewSite = Callable[..., Site]


def first_time(command: str, otherwise: str = "true") -> str:
    """A line that does one thing in the task's first execution and another in those after it."""
    # It is marked as begun before it says so, because the test may kill it as soon as it has said so.
    mark = 'mkdir "first.$REDSCHED_RUN.$REDSCHED_TASK" 2> /dev/null'
    return f"if {mark}; then {SAY}; {command}; else {SAY}; {otherwise}; fi"


def counts(site: Site) -> Counter[str]:
    return Counter(line.task for line in site.begun())


def test_waiting_and_running_past_the_lease_is_no_loss(new_site: NewSite) -> None:
    """RT-101: one that runs, one that waits for its retry, one behind a full pool: all for two leases, beside idle workers."""
    site = new_site(worker_lease_ms=2000)
    site.start(1, 3)
    narrow = {"pool": {"name": "narrow", "slots": 1}}
    site.process("worker", "--pool", "narrow", "--concurrency", "2")
    stamp = SAY.replace("begun", "$(date +%s.%N)")
    site.dag(
        "d",
        {
            "long": {"run": f"{SAY}; sleep 4.2"},
            "again": {"run": f"{stamp}; exit $((2 - REDSCHED_ATTEMPT))", "retries": 1, "retry_delay": "4s"},
            "holder": {"run": f"{SAY}; sleep 4.2", "priority": 1, **narrow},
            "behind": {"run": SAY, "pool": "narrow"},
        },
    )
    (shown,) = site.wait("d", site.run("d"))
    assert shown["state"] == "success"
    assert counts(site) == {"long": 1, "again": 2, "holder": 1, "behind": 1}
    one, two = (float(line.word) for line in site.begun("again"))
    assert two - one >= 4
    assert {n: t["attempt"] for n, t in shown["tasks"].items()} == {
        "long": 1,
        "again": 2,
        "holder": 1,
        "behind": 1,
    }


@pytest.mark.parametrize("kind", ["command", "call"])
def test_a_body_that_kills_its_process_group(site: Site, kind: str) -> None:
    """RT-102"""
    body = {"run": first_time("kill -9 0")} if kind == "command" else {"call": "bodies:kill_group"}
    _, (worker,) = site.start(concurrency=1)
    short = {f"s{i}": {"call": "bodies:both"} for i in range(20)}
    site.dag("d", {"deadly": {**body, "priority": 5, "retries": 1, "retry_delay": "300ms"}, **short})
    run = site.run("d")
    (shown,) = site.wait("d", run)
    assert shown["state"] == "success"
    assert shown["tasks"]["deadly"]["attempt"] == 2
    assert counts(site) == {"deadly": 2, **dict.fromkeys(short, 1)}
    assert b"killed by signal 9" in site.client.logs("d", run, "deadly", 1).data
    assert b"killed" not in site.client.logs("d", run, "deadly", 2).data
    assert worker.alive


# ---------------------------------------------------------------- workers that end


@pytest.mark.parametrize("how", ["drained", "grace over", "told twice"])
def test_a_worker_is_told_to_stop(new_site: NewSite, how: str) -> None:
    """RT-103: the body ends as it would have; or it is stopped, handed back, and run again by another worker."""
    site = new_site(worker_lease_ms=60_000)  # a hand-over needs no lease to run out
    site.start(1, 0)
    first = site.worker("--concurrency", "1", "--grace", "500ms" if how == "grace over" else "20s")
    wait = "until [ -e go ]; do sleep 0.02; done"
    site.dag("d", {"body": {"run": first_time(wait if how == "drained" else "sleep 300")}})
    site.dag("later", {"t": {"run": SAY}})
    run = site.run("d")
    body = site.nth(1, "body")
    other = site.worker("--concurrency", "1")
    site.ready([other])

    first.signal(signal.SIGTERM)
    first.says("draining")
    if how == "drained":
        later = [site.run("later") for _ in range(3)]
        site.wait("later", later)  # the other one runs them
        assert alive(body.pid) and site.state("d", run, "body") in ("queued", "running")
        (site.folder / "go").touch()
    elif how == "told twice":
        first.signal(signal.SIGTERM)
    assert first.end(10) == 0
    assert not alive(body.pid)
    (shown,) = site.wait("d", run, 10)
    assert (shown["state"], shown["tasks"]["body"]["attempt"]) == ("success", 1)
    assert len(site.begun("body")) == (1 if how == "drained" else 2)
    assert site.client.pool("default")["used"] == 0
    assert [w["pid"] for w in site.client.workers()] == [other.pid]


def test_a_dead_worker_is_noticed_within_its_lease(new_site: NewSite) -> None:
    """RT-104: not after the task's time-out of an hour; its losses use up no retries, its bodies and words end with it."""
    site = new_site(worker_lease_ms=2000)
    _, (first,) = site.start(1, 1)
    forever = f"{first_time('while true; do echo old; sleep 0.1; done', 'echo new')}"
    site.dag("d", {"t": {"run": forever, "timeout": "1h", "retries": 0}})
    run = site.run("d")
    body = site.nth(1, "t")
    until(lambda: b"old" in site.client.logs("d", run, "t").data, "no log")
    second = site.worker()
    site.ready([second])
    first.kill()
    killed = time.monotonic()
    site.nth(2, "t")
    # The lease, half a lease until somebody looks, and some time for a busy machine.
    assert time.monotonic() - killed < 2 + 1 + 1
    (shown,) = site.wait("d", run)
    assert (shown["state"], shown["tasks"]["t"]["attempt"]) == ("success", 2)
    assert not alive(body.pid)
    assert site.client.logs("d", run, "t").data == b"new\n"
    assert set(site.client.logs("d", run, "t", 1).data.split()) == {b"old"}
    assert counts(site) == {"t": 2}


def test_a_busy_or_stopped_body_does_not_silence_its_worker(new_site: NewSite) -> None:
    """RT-105: the interpreter's lock held, and the child stopped, for four leases."""
    site = new_site(worker_lease_ms=1000)
    site.start(1, 2, concurrency=2)
    site.dag(
        "d",
        {
            "busy": {"call": "bodies:hold_the_lock", "with": {"seconds": 4}},
            "stopped": {"run": f"{SAY}; kill -STOP $PPID; sleep 4; kill -CONT $PPID"},
        },
    )
    (shown,) = site.wait("d", site.run("d"))
    assert shown["state"] == "success"
    assert counts(site) == {"busy": 1, "stopped": 1}
    assert {t["attempt"] for t in shown["tasks"].values()} == {1}


def test_one_death_is_counted_once(new_site: NewSite) -> None:
    """RT-106: three schedulers, two of them (the leader too) asleep while the third finds the worker dead."""
    site = new_site(worker_lease_ms=2000)
    schedulers, (first,) = site.start(3, 1)
    site.dag("d", {"t": {"run": first_time("sleep 300"), "retries": 3, "retry_delay": "20s"}})
    run = site.run("d")
    site.nth(1, "t")
    second = site.worker()
    site.ready([second])
    leader = next(s["scheduler"] for s in site.client.schedulers() if s["leader"])
    names = site.scheduler_names()
    led = next(p for p in schedulers if names[p.pid] == leader)
    awake, asleep = (
        [p for p in schedulers if p is not led][0],
        [p for p in schedulers if p is not led][1:] + [led],
    )
    first.kill()
    for one in asleep:
        one.signal(signal.SIGSTOP)
    awake.says("taken back")
    for one in asleep:
        one.signal(signal.SIGCONT)
    (shown,) = site.wait("d", run)
    assert (shown["state"], shown["tasks"]["t"]["attempt"]) == ("success", 2)
    site.ready(schedulers)  # all take part again, so each has had its say
    (again,) = site.wait("d", run)
    assert again["tasks"] == shown["tasks"]
    assert len(site.begun("t")) == 2
    assert sum(p.count("taken back") for p in schedulers) == 1


# ---------------------------------------------------------------- retries, time-outs


def test_hundreds_of_retries_with_the_steepest_backoff(new_site: NewSite) -> None:
    """RT-107: 100 to the power of 299 neither kills a scheduler nor loses the task, with a cap and without."""
    site = new_site(
        "--hz", "500"
    )  # at 10, Redis ends a blocking read up to 100 ms late, and with it the wait for a timer
    site.start()
    steep = {"call": "bodies:fail", "retries": 300, "retry_backoff": 100}
    site.dag(
        "d",
        {
            "capped": {**steep, "retry_delay": "1ms", "retry_max_delay": "2ms", "retry_jitter": 0.5},
            "nothing": {**steep, "retry_delay": "0s"},
            "ceiling": {"call": "bodies:fail", "retries": 8, "retry_delay": "1ms", "retry_backoff": 10},
        },
    )
    run = site.run("d")
    until(
        lambda: len(site.begun("capped")) == len(site.begun("nothing")) == 301, lambda: str(counts(site)), 60
    )
    until(lambda: site.state("d", run, "capped") == site.state("d", run, "nothing") == "failed", "not failed")
    tasks = site.client.run("d", run)["tasks"]
    assert tasks["capped"]["attempt"] == tasks["nothing"]["attempt"] == 301
    assert counts(site)["ceiling"] >= 4
    site.client.cancel("d", run)
    assert all(process.alive for process in site.processes)


def test_a_timeout_takes_the_whole_process_group(site: Site) -> None:
    """RT-108: also where it ignores SIGTERM; the retry has its turn, and so has who waits for the slot."""
    site.start()
    hangs = f"{SAY}; sleep 300 & sleep 300; sleep 300; wait"
    rest = {"timeout": "1s", "kill_grace": "500ms", "retries": 1}
    site.client.set_pool("default", 2)
    site.dag(
        "d",
        {
            "hears": {"run": hangs, **rest},
            "deaf": {"run": f"trap '' TERM; {hangs}", **rest},
            "after": {"call": "bodies:both", "needs": ["hears", "deaf"], "trigger_rule": "all_failed"},
        },
    )
    began = time.monotonic()
    run = site.run("d")
    for task in ("hears", "deaf"):
        site.nth(1, task)
        assert len(site.of_task(task)) >= 2
    (shown,) = site.wait("d", run)
    assert time.monotonic() - began < 2 * (1 + 0.5) + 2
    for task in ("hears", "deaf"):
        assert (shown["tasks"][task]["state"], shown["tasks"][task]["attempt"]) == ("failed", 2)
        assert "timeout" in shown["tasks"][task]["reason"]
    until(lambda: not {**site.of_task("hears"), **site.of_task("deaf")}, lambda: str(site.everybody()), 5)
    assert counts(site) == {"hears": 2, "deaf": 2, "after": 1}
    assert site.client.pool("default")["used"] == 0


# ---------------------------------------------------------------- slots


def worker_of(pid: int) -> int:
    """The supervisor above a command: its child forked it."""
    for _ in range(2):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def test_a_slot_comes_back_whatever_became_of_its_holder(new_site: NewSite) -> None:
    """PL-104: cancelled, worker killed, DAG deleted, everything killed: who waits gets the only slot."""
    site = new_site(*KEPT, worker_lease_ms=2000)
    _, workers = site.start(1, 2)
    site.client.set_pool("default", 1)
    hold: dict[str, Any] = {"holder": {"run": first_time("sleep 300")}}
    site.dag("waits", {"waiter": {"run": SAY}})

    def held_and_waited_for(dag: str) -> tuple[str, str, int]:
        site.dag(dag, hold)
        run = site.run(dag)
        pid = site.nth(1, "holder", run).pid
        waiter = site.run("waits")
        until(lambda: site.client.pool("default")["waiting"] == 1, "nobody waits")
        assert site.client.pool("default")["used"] == 1
        return run, waiter, pid

    def waiter_ran(waiter: str, since: float, within: float) -> None:
        site.wait("waits", waiter)
        assert time.monotonic() - since < within

    run, waiter, _ = held_and_waited_for("cancelled")
    now = time.monotonic()
    site.client.cancel("cancelled", run)
    waiter_ran(waiter, now, 2)

    run, waiter, pid = held_and_waited_for("killed")
    victim = next(w for w in workers if w.pid == worker_of(pid))
    victim.kill()
    waiter_ran(waiter, time.monotonic(), 2 + 1 + 1)
    assert site.wait("killed", run)[0]["state"] == "success"

    _, waiter, _ = held_and_waited_for("deleted")
    now = time.monotonic()
    site.client.delete("deleted", force=True)
    waiter_ran(waiter, now, 2)

    run, waiter, _ = held_and_waited_for("dark")
    for process in site.processes:
        process.kill()
    site.redis.restart()
    site.start(1, 1)
    waiter_ran(waiter, time.monotonic(), 2 + 2 + 1 + 1)  # Redis was away: one more lease of time
    assert site.wait("dark", run)[0]["state"] == "success"

    pool = site.client.pool("default")
    assert (pool["used"], pool["waiting"], pool["running"]) == (0, 0, 0)
    assert counts(site) == {"holder": 6, "waiter": 4}
    assert not site.of_task("holder")
