"""A worker and what may befall it: kills, stops, lost replies, floods of output. On a fake store, so only the worker is tried."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.worker_harness import WorkerProcess, alive, wait_for

MODULE = """
import os, subprocess, sys, time
def quiet(): pass
def sleep(s): time.sleep(s)
def stamp(path): open(path, "a").write("x\\n")
def hold(n): sum(range(n))
def tree(path):
    inner = subprocess.Popen(["sh", "-c", "sleep 300 & echo $! > %s.2; wait" % path])
    open(path, "w").write(str(inner.pid)); time.sleep(300)
def deaf():
    while True:
        try: time.sleep(300)
        except BaseException: pass
def careful(path):
    try: time.sleep(300)
    finally: open(path, "w").write("tidy")
"""

TREE = (
    "sleep 300 & echo $! > {0}.2; (trap '' TERM; sleep 301; sleep 301) & echo $! > {0}.3; echo $$ > {0}; wait"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(MODULE)
    return tmp_path


def pids(*paths: Path) -> list[int]:
    wait_for(lambda: all(p.exists() and p.read_text().strip() for p in paths))
    return [int(p.read_text()) for p in paths]


# ---------------------------------------------------------------- batches and prefetch


def test_short_bodies_run_in_batches_each_once(folder: Path) -> None:
    """Thousands of no-ops need far fewer calls than bodies, and none is run twice."""
    with WorkerProcess(folder, concurrency=2) as w:
        w.redis.dag("d", {"t": {"call": "jobs:quiet"}})
        ids = [w.redis.queue("d", run=f"r{i}") for i in range(3000)]
        wait_for(lambda: len(w.redis.reports) >= 3000, 30)
        assert Counter(r.attempt_id for r in w.redis.reports) == Counter(ids)
        assert w.redis.calls["shard_report"] < 600
        wait_for(lambda: not w.redis.grants)


def test_nobody_waits_behind_a_long_body(folder: Path) -> None:
    """What a child prefetched and can't begin is given back, what it had finished is reported, while its body goes on."""
    with WorkerProcess(folder, concurrency=2) as w:
        w.redis.dag("d", {"q": {"call": "jobs:quiet"}, "s": {"call": "jobs:sleep", "with": {"s": 6}}})
        warm = [w.redis.queue("d", run=f"w{i}") for i in range(400)]
        wait_for(lambda: w.redis.reported(*warm), 20)
        with w.redis.lock:
            first = [w.redis.queue("d", run=f"a{i}") for i in range(20)]
            slow = w.redis.queue("d", 1, run="slow")
            rest = [w.redis.queue("d", run=f"b{i}") for i in range(40)]
        began = time.monotonic()
        wait_for(lambda: w.redis.reported(*first, *rest), 5)
        assert time.monotonic() - began < 5
        assert not w.redis.reported(slow)
        wait_for(lambda: w.redis.reported(slow), 10)
        assert max(Counter(r.attempt_id for r in w.redis.reports).values()) == 1
        wait_for(lambda: not w.redis.grants and not w.redis.queued)


def test_cancelled_while_prefetched_is_not_begun(folder: Path) -> None:
    with WorkerProcess(folder, worker_lease_ms=1000) as w:
        w.redis.dag("d", {"s": {"run": f"echo x >> {folder}/ran; sleep 0.04"}})
        w.run({"call": "jobs:quiet"})
        ids = [w.redis.queue("d", run=f"r{i}") for i in range(60)]
        w.redis.unwanted.add(ids[-1])
        wait_for(lambda: len(w.redis.reports) >= 60, 20)
        time.sleep(0.2)
        assert not w.redis.reported(ids[-1])


# ---------------------------------------------------------------- leases and stops


def test_a_heartbeat_needs_nothing_from_the_body(folder: Path) -> None:
    """RT-105: the interpreter lock held for four leases, and the child stopped: leases are renewed all the time."""
    with WorkerProcess(folder, concurrency=2, worker_lease_ms=500) as w:
        w.redis.dag(
            "d",
            {
                "h": {"call": "jobs:hold", "with": {"n": 100_000_000}},
                "s": {"run": "kill -STOP $PPID; sleep 1.5; kill -CONT $PPID"},
            },
        )
        busy, stopped = w.redis.queue("d", 0), w.redis.queue("d", 1)
        wait_for(lambda: w.redis.reported(busy, stopped), 20)
        assert w.redis.beats[stopped] >= 10
        assert w.redis.beats[busy] >= 5
        assert {r.outcome for r in w.redis.reports} == {"success"}
        assert {i for i, _ in w.redis.notices} == {busy, stopped}


def test_unwanted_is_stopped_and_not_reported(folder: Path) -> None:
    with WorkerProcess(folder, worker_lease_ms=500) as w:
        for task in (
            {"run": f"echo $$ > {folder}/p; sleep 300"},
            {"call": "jobs:careful", "with": {"path": f"{folder}/q"}},
        ):
            attempt = w.queue(task)
            wait_for(lambda a=attempt: w.redis.beats[a] > 0)
            w.redis.unwanted.add(attempt)
            wait_for(lambda a=attempt: a not in w.redis.grants)
            assert not w.redis.reported(attempt)
            assert "not wanted" in w.redis.log(attempt)
        assert not alive(*pids(folder / "p"))
        assert (folder / "q").read_text() == "tidy"
        assert w.run({"run": "true"}).outcome == "success"


@pytest.mark.parametrize("deaf", [False, True])
def test_a_timeout_leaves_no_process(folder: Path, deaf: bool) -> None:
    """RT-108: the whole group is gone, also where it ignores SIGTERM."""
    with WorkerProcess(folder) as w:
        run = ("trap '' TERM; " if deaf else "") + TREE.format(folder / "p")
        began = time.monotonic()
        report = w.run({"run": run, "timeout": "1s", "kill_grace": "500ms"})
        assert report.reason == "timeout after 1s"
        assert time.monotonic() - began < 1 + 0.5 + 4  # for a busy machine; the bodies take 300 s
        group = pids(folder / "p", folder / "p.2", folder / "p.3")
        wait_for(lambda: not any(map(alive, group)))
        assert w.redis.log(report.attempt_id).endswith("redsched: timeout after 1s\n")


@pytest.mark.parametrize("call", ["tree", "deaf"])
def test_a_timeout_of_a_call_leaves_no_process(folder: Path, call: str) -> None:
    arguments = {"with": {"path": f"{folder}/p"}} if call == "tree" else {}
    with WorkerProcess(folder) as w:
        report = w.run({"call": f"jobs:{call}", **arguments, "timeout": "500ms", "kill_grace": "300ms"})
        assert report.reason == "timeout after 500ms"
        if call == "tree":
            group = pids(folder / "p", folder / "p.2")
            wait_for(lambda: not any(map(alive, group)))
        assert w.run({"call": "jobs:quiet"}).outcome == "success"


def test_what_a_command_leaves_behind_is_killed(folder: Path) -> None:
    with WorkerProcess(folder) as w:
        report = w.run({"run": f"sleep 300 & echo $! > {folder}/p"})
        assert report.outcome == "success"
        wait_for(lambda: not alive(*pids(folder / "p")))


# ---------------------------------------------------------------- kills


def test_a_killed_child_is_noticed_at_once(folder: Path) -> None:
    """RT-102: the attempt fails with its signal, in the log too; the rest of the batch is run by somebody."""
    with WorkerProcess(folder) as w:
        w.redis.dag("d", {"q": {"call": "jobs:quiet"}, "k": {"run": "kill -9 $PPID; sleep 300"}})
        warm = [w.redis.queue("d", run=f"w{i}") for i in range(200)]
        wait_for(lambda: w.redis.reported(*warm))
        with w.redis.lock:
            before = [w.redis.queue("d", run=f"a{i}") for i in range(5)]
            poison = w.redis.queue("d", 1)
            after = [w.redis.queue("d", run=f"b{i}") for i in range(20)]
        wait_for(lambda: w.redis.reported(*before, poison, *after), 3)
        assert w.redis.report(poison).reason == "killed by signal 9"
        assert w.redis.log(poison) == "redsched: killed by signal 9\n"
        wait_for(lambda: not w.redis.grants)


def test_a_killed_worker_leaves_no_orphans(folder: Path) -> None:
    """Commands with grandchildren and Python bodies with processes: after kill -9 of the supervisor all are gone."""
    with WorkerProcess(folder, concurrency=2) as w:
        w.queue({"run": TREE.format(folder / "a")})
        w.queue({"call": "jobs:tree", "with": {"path": f"{folder}/b"}})
        everybody = pids(*(folder / n for n in ("a", "a.2", "a.3", "b", "b.2"))) + w.children()
        assert len(everybody) == 7
        w.signal(signal.SIGKILL)
        wait_for(lambda: not any(map(alive, everybody)), 3)
        wait_for(lambda: not list((folder / "tmp").glob("redsched-*/*")), 3)


def test_a_successor_takes_over_what_was_not_begun(folder: Path) -> None:
    """RD-104: the hints that a killed worker had read are found by the next one of that name."""
    with WorkerProcess(folder) as w:
        first = w.queue({"run": "kill -9 $(ps -o ppid= -p $PPID); sleep 300"})
        wait_for(lambda: w.process and w.process.poll() is not None)
        assert not w.redis.reported(first)
        w.redis.dag("d", {"q": {"call": "jobs:quiet"}})
        ids = [w.redis.queue("d", run=f"r{i}") for i in range(5)]
        w.redis.pool_read("w:0.0", ["default"], 5, 0)  # as if they had been delivered to it
        w.start()
        wait_for(lambda: w.redis.reported(*ids))
        assert not w.redis.pending["w:0.0"]


def test_the_guardian_is_replaced(folder: Path) -> None:
    with WorkerProcess(folder) as w:
        w.queue({"run": f"echo $$ > {folder}/p; sleep 300"})
        (body,) = pids(folder / "p")
        assert w.process
        guardians = [
            int(p.parent.name)
            for p in Path("/proc").glob("[0-9]*/cmdline")
            if str(folder).encode() in p.read_bytes() and b"guardian.py" in p.read_bytes()
        ]
        os.kill(guardians[0], signal.SIGKILL)
        wait_for(lambda: any("guardian died" in line for line in w.lines))
        time.sleep(0.3)
        w.signal(signal.SIGKILL)
        wait_for(lambda: not alive(body), 3)


# ---------------------------------------------------------------- shutting down


def test_drain_lets_bodies_end(folder: Path) -> None:
    """RT-103 a: the body ends as it would have, nothing new is begun, exit code 0, no consumer is left."""
    with WorkerProcess(folder, concurrency=2, grace_s=10) as w:
        attempt = w.queue({"run": "sleep 1.5"})
        wait_for(lambda: w.redis.notices)
        w.signal(signal.SIGTERM)
        time.sleep(0.3)
        later = w.queue({"run": "true"})
        assert w.end() == 0
        assert w.redis.report(attempt).outcome == "success"
        assert not w.redis.reported(later)
        assert not w.redis.consumers
        assert "w:0" in w.redis.left
        assert not list((folder / "tmp").glob("redsched-*"))


@pytest.mark.parametrize("how", ["grace", "twice"])
@pytest.mark.parametrize("kind", ["command", "call"])
def test_stop_gives_the_body_back(folder: Path, how: str, kind: str) -> None:
    """RT-103 b, c: the body is stopped and given back, so that it runs again elsewhere; never lost, never running for ever."""
    with WorkerProcess(folder, grace_s=0.5 if how == "grace" else 60) as w:
        attempt = w.queue(
            {"run": "sleep 300"} if kind == "command" else {"call": "jobs:sleep", "with": {"s": 300}}
        )
        wait_for(lambda: w.redis.notices)
        w.signal(signal.SIGTERM)
        if how == "twice":
            time.sleep(0.2)
            w.signal(signal.SIGTERM)
        assert w.end(5) == 0
        assert not w.redis.reports
        assert attempt in w.redis.queued
        assert [h.attempt_id for h in w.redis.stream] == [attempt]
        assert "given back" in w.redis.log(attempt)


def test_drain_gives_back_what_was_not_begun(folder: Path) -> None:
    with WorkerProcess(folder) as w:
        w.redis.dag("d", {"t": {"run": "sleep 0.01"}})
        ids = [w.redis.queue("d", run=f"r{i}") for i in range(200)]
        wait_for(lambda: len(w.redis.reports) > 20)
        w.signal(signal.SIGTERM)
        assert w.end() == 0
        done = {r.attempt_id for r in w.redis.reports}
        assert not w.redis.grants
        assert not any(w.redis.pending.values())
        assert done | {h.attempt_id for h in w.redis.stream} == set(ids)
        assert len(w.redis.reports) == len(done)


def test_hangup_makes_new_children(folder: Path) -> None:
    """SIGHUP: new code is imported, nothing is lost."""
    with WorkerProcess(folder) as w:
        w.module("def version(): return 1", "code")
        assert w.run({"call": "code:version"}).result == "1"
        time.sleep(1.1)  # the file's time must differ
        w.module("def version(): return 22", "code")
        before = w.children()
        w.signal(signal.SIGHUP)
        wait_for(lambda: w.children() and not set(w.children()) & set(before))
        assert w.run({"call": "code:version"}).result == "22"


# ---------------------------------------------------------------- Redis


def test_redis_away_while_bodies_run(folder: Path) -> None:
    """Bodies go on, their ends are reported once Redis is back; one line for the loss and one for the return."""
    with WorkerProcess(folder, concurrency=2) as w:
        ids = [w.queue({"run": "sleep 1; echo done"}) for _ in range(2)]
        wait_for(lambda: len(w.redis.grants) == 2)
        time.sleep(0.2)
        w.redis.down = True
        time.sleep(2.5)
        w.redis.down = False
        wait_for(lambda: w.redis.reported(*ids), 5)
        assert w.run({"run": "true"}).outcome == "success"
        assert [w.redis.log(i) for i in ids] == ["done\n"] * 2
        assert sum("Redis does not answer" in line for line in w.lines) == 1
        wait_for(lambda: sum("Redis is back" in line for line in w.lines) == 1)
        assert len(w.lines) < 6


@pytest.mark.parametrize("call", ["pool_read", "pool_start", "shard_report", "pool_release", "shard_spec"])
def test_lost_replies(folder: Path, call: str) -> None:
    """The call happened, its reply was lost: nothing is lost or left held, and nothing runs twice."""
    with WorkerProcess(folder) as w:
        w.redis.dag("d", {"t": {"call": "jobs:stamp", "with": {"path": f"{folder}/ran"}}})
        time.sleep(0.5)
        w.redis.lose_next[call] = 3
        ids = [w.redis.queue("d", run=f"r{i}") for i in range(30)]
        wait_for(lambda: w.redis.reported(*ids))
        wait_for(lambda: not w.redis.grants and not any(w.redis.pending.values()))
        assert len((folder / "ran").read_text().splitlines()) == 30


# ---------------------------------------------------------------- output


def test_output_can_be_read_while_it_grows(folder: Path) -> None:
    with WorkerProcess(folder) as w:
        attempt = w.queue({"run": "echo first; sleep 5; printf last"})
        wait_for(lambda: w.redis.log(attempt) == "first\n", 4.5)
        wait_for(lambda: w.redis.reported(attempt))
        assert w.redis.log(attempt) == "first\nlast"


@pytest.mark.parametrize("kind", ["command", "call"])
def test_a_flood_keeps_head_tail_and_result_and_spares_the_disk(folder: Path, kind: str) -> None:
    """300 MB of output: the right bytes at the right offsets, a result at the end, and never more than a little disk."""
    flood = "import sys,time\nfor i in range(300): sys.stdout.write(('%07d\\n' % i) * 131072); sys.stdout.flush(); time.sleep(0.005)\n"
    (folder / "flood.py").write_text(f"def f():\n exec({flood!r})\n return 'end'\n")
    run = {"run": f"python {folder}/f.py"} if kind == "command" else {"call": "flood:f"}
    (folder / "f.py").write_text(flood + "print('::result:: \"end\"')\n")
    with WorkerProcess(folder) as w:
        attempt = w.queue(run)
        most = 0
        while not w.redis.reported(attempt):
            logs = list((folder / "tmp").glob("redsched-*/log-*"))
            most = max([most, *(p.stat().st_blocks * 512 for p in logs if p.exists())])
            time.sleep(0.02)
        log = w.redis.logs[attempt]
        assert w.redis.report(attempt).result == '"end"'
        assert most < 120_000_000
        assert log[: 512 * 1024] == b"0000000\n" * 65536
        size = 300 * 131072 * 8
        assert log[size - 500_000 : size] == b"0000299\n" * 62500


def test_a_grandchild_that_prints_on_writes_into_nobody_elses_log(folder: Path) -> None:
    with WorkerProcess(folder) as w:
        w.run(
            {
                "run": f"setsid sh -c 'echo $$ > {folder}/p; while true; do echo noise; sleep 0.01; done' & sleep 0.2"
            }
        )
        (noisy,) = pids(folder / "p")
        log = w.redis.log(w.run({"run": "sleep 0.5; echo mine"}).attempt_id)
        os.kill(noisy, signal.SIGKILL)
        assert log == "mine\n"


@pytest.mark.parametrize("text", [b"\xff\xfe\0\x01", b"x" * 3_000_000, b"no newline"])
def test_bytes_stay_bytes(folder: Path, text: bytes) -> None:
    (folder / "text").write_bytes(text)
    with WorkerProcess(folder, log_limit=8_000_000) as w:
        report = w.run({"run": f"cat {folder}/text"})
        assert w.redis.logs[report.attempt_id] == text
