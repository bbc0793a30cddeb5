"""The workloads: each measures one thing and returns its numbers by name (`numbers.py` says what each name means)."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from redsched.bench import load, shapes
from redsched.bench.load import Numbers
from redsched.bench.site import Site
from redsched.bench.stats import quantile, rate_of_rest
from redsched.bench.trace import gaps_ms

QUIET_S: Final = 6.0  # past everybody's first beats
CHAIN: Final = 50
CALM_S: Final = 600.0


@dataclass(frozen=True)
class Size:
    """How much is measured; each workload reads what it names in `takes`."""

    runs: int = 0
    dags: int = 16
    tasks: int = 0
    seconds: float = 0.0
    waiting: int = 0


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    run: Callable[[Site, Size], Numbers]
    size: Size
    takes: tuple[str, ...]
    setup: dict[str, int] = field(default_factory=dict)  # other defaults of `Setup`


def dag20(site: Site, size: Size) -> Numbers:
    """All runs at once; then the same again, made while their DAGs are paused, so that creation and drain stand apart."""
    shape = shapes.dag20()
    dags = load.register(site, "dag20_", shape, min(size.dags, size.runs))
    load.warm(site, dags, len(shape))
    together = load.burst(site, dags, shape, size.runs)
    return {**together, **_apart(site, dags, size.runs, together["tasks"])}


def _apart(site: Site, dags: list[str], runs: int, tasks: int) -> Numbers:
    """Creation alone, then drain alone; what a run takes in memory while it lives and when it is packed."""
    load.settled(site)
    before = _shard_bytes(site)
    site.trace.clear()
    with load.paused(site, dags):
        begun = time.monotonic()
        load.submit(site, dags, runs)
        created_s = time.monotonic() - begun
        live = _shard_bytes(site)
        begun = time.monotonic()
    site.trace.wait(tasks)
    load.ended(site)
    drained_s = time.monotonic() - begun
    load.settled(site)
    return {
        "created_per_s": runs / created_s,
        "drain_tasks_per_s": tasks / drained_s,
        "bytes_per_new_run": (live - before) / runs,
        "bytes_per_run": (_shard_bytes(site) - before) / runs,
    }


def _shard_bytes(site: Site) -> int:
    return sum(size for name, size in site.bytes_by_key().items() if name.startswith("s:"))


def hop(site: Site, size: Size) -> Numbers:
    """Chains of 50, one run at a time on an idle system."""
    shape = shapes.chain(CHAIN)
    (dag,) = load.register(site, "hop", shape)
    load.warm(site, [dag], CHAIN)
    runs, starts = [], []
    for i in range(1, size.runs + 1):
        asked = time.monotonic_ns()
        row = site.client.trigger(dag)
        runs.append(f"{dag}/{row['run']}")
        site.trace.wait(i * CHAIN)
        starts.append((load.first_lines(site.trace.lines)[runs[-1]] - asked) / 1e6)
    load.ended(site)
    hops = gaps_ms(site.trace.lines, list(shape))
    return {
        "runs": size.runs,
        "hops": len(hops),
        "hop_ms_p50": quantile(hops, 0.5),
        "hop_ms_p90": quantile(hops, 0.9),
        "hop_ms_p99": quantile(hops, 0.99),
        "trigger_ms_p50": quantile(starts, 0.5),
        **load.verdict(site, runs, shape),
    }


def flat(site: Site, size: Size) -> Numbers:
    """Independent tasks, each a run of its own: made while their DAGs are paused, then drained."""
    shape = shapes.chain(1)
    dags = load.register(site, "flat", shape, min(size.dags, size.runs))
    load.warm(site, dags, 1)
    with load.paused(site, dags):
        begun = time.monotonic()
        runs = load.submit(site, dags, size.runs)
        created_s = time.monotonic() - begun
        clock = load.Clock(site)
    site.trace.wait(size.runs)
    load.ended(site)
    took = clock.seconds
    return {
        "runs": size.runs,
        "tasks": size.runs,
        "tasks_per_s": size.runs / took,
        "drain_per_s": rate_of_rest(load.seconds_of(site.trace.lines)),
        "created_per_s": size.runs / created_s,
        **clock.costs(size.runs),
        **load.verdict(site, runs, shape),
    }


def idle(site: Site, size: Size) -> Numbers:
    """Nothing to do: what is sent all the same, and what it costs."""
    time.sleep(QUIET_S)
    before = site.counters()
    cpu = {role: site.cpu_s(role) for role in ("scheduler", "worker")}
    sent = _overheard(site, size.seconds) if site.private else None
    if sent is None:
        time.sleep(size.seconds)
    spent = site.counters().since(before)
    used = {role: site.cpu_s(role) - was for role, was in cpu.items()}
    numbers: Numbers = {
        "seconds": size.seconds,
        "cpu_percent": sum(used.values()) / size.seconds * 100,
        **{f"{role}_cpu_percent": s / size.seconds * 100 for role, s in used.items()},
        "redis_cpu_percent": spent.cpu_us / size.seconds / 1e4,
        "commands_per_s": spent.commands / size.seconds,
    }
    if sent is not None:
        numbers["sent_per_s"] = sum(sent.values()) / size.seconds
        numbers["sent"] = dict(sent.most_common())
    return numbers


def _overheard(site: Site, seconds: float) -> Counter[str]:
    """What clients send, by MONITOR; what runs inside scripts is left out."""
    heard: Counter[str] = Counter()
    end = time.monotonic() + seconds

    def listen() -> None:
        with site.client.store.translate(), site.client.store.client.monitor() as monitor:
            while time.monotonic() < end:
                said = monitor.next_command()  # a scheduler's beat comes each second
                if said["client_type"] != "lua":
                    heard[_named(said["command"])] += 1

    listener = threading.Thread(target=listen)
    listener.start()
    listener.join()
    return heard


def _named(command: str) -> str:
    """`XREAD`, or `FCALL redsched_control_beat` without the digest in the function's name."""
    word, _, rest = command.partition(" ")
    return f"{word} {re.sub('_[0-9a-f]{12}$', '', rest.partition(' ')[0])}" if word == "FCALL" else word


def wide(site: Site, size: Size) -> Numbers:
    """One task, then thousands at once, then one that needs them all."""
    return _one_run(site, "wide", shapes.fan(size.tasks))


def deep(site: Site, size: Size) -> Numbers:
    """A chain of thousands."""
    return _one_run(site, "deep", shapes.chain(size.tasks))


def _one_run(site: Site, name: str, shape: shapes.Shape) -> Numbers:
    (warmer,) = load.register(site, "warm", shapes.chain(1))
    load.warm(site, [warmer], 1)
    (dag,) = load.register(site, name, shape)
    slow = SlowLog(site) if site.private else None
    clock = load.Clock(site)
    run = f"{dag}/{site.client.trigger(dag)['run']}"
    site.trace.wait(len(shape))
    load.ended(site)
    took = clock.seconds
    numbers: Numbers = {
        "tasks": len(shape),
        "seconds": took,
        "tasks_per_s": len(shape) / took,
        **clock.costs(len(shape)),
        **load.verdict(site, [run], shape),
    }
    return {**numbers, "longest_script_ms": slow.longest_ms()} if slow else numbers


class SlowLog:
    """The scripts that held a private server for longer than a millisecond."""

    def __init__(self, site: Site) -> None:
        self.client: Any = site.client.store.client
        self.client.config_set("slowlog-log-slower-than", 1000)
        self.client.config_set("slowlog-max-len", 10_000)
        self.client.slowlog_reset()

    def longest_ms(self) -> float:
        found = self.client.slowlog_get(10_000)
        self.client.slowlog_reset()
        ran = [x["duration"] / 1000 for x in found if x["command"].startswith((b"FCALL", b"EVALSHA"))]
        return float(max(ran, default=0.0))


def crowd(site: Site, size: Size) -> Numbers:
    """dag20 on an empty system, then while many other runs wait: half for room in their DAG, half for a slot."""
    shape = shapes.dag20()
    dags = load.register(site, "guest", shape, min(size.dags, size.runs))
    load.warm(site, dags, len(shape))
    empty = load.burst(site, dags, shape, size.runs)["tasks_per_s"]
    load.settled(site)
    begun = time.monotonic()
    others = wait_lists(site)
    load.submit(site, others, size.waiting)
    calm(site)
    crowded_s = time.monotonic() - begun
    crowded = load.burst(site, dags, shape, size.runs, size.waiting)
    return {
        **crowded,
        "waiting": size.waiting,
        "waiting_created_per_s": size.waiting / crowded_s,
        "tasks_per_s_empty": empty,
        "crowd_vs_empty": crowded["tasks_per_s"] / empty,
    }


def wait_lists(site: Site) -> list[str]:
    """100 DAGs whose runs wait, half for room in their DAG and half for a slot of a pool that nobody serves."""
    shape = shapes.dag20()
    site.client.set_pool("closed", 1)
    pools = dict.fromkeys(shape, "closed")
    return [
        *load.register(site, "slots", shape, 50, pools),
        *load.register(site, "room", shape, 50, pools, max_active_runs=1),
    ]


def memory(site: Site, size: Size) -> Numbers:
    """What runs take: queued, new, in the middle of their 20 tasks, and packed. By the sizes of all keys."""
    shape = shapes.dag20()
    site.client.set_pool("closed", 1)
    late = dict.fromkeys((f"t{i}" for i in range(7, 20)), "closed")
    (queued,) = load.register(site, "queued", shape, 1, dict.fromkeys(shape, "closed"), max_active_runs=1)
    (live,) = load.register(site, "live", shape, 1, late)
    (packed,) = load.register(site, "packed", shape)
    load.warm(site, [packed], len(shape))
    site.client.trigger(queued)  # it takes the room
    load.settled(site)

    def grown(dag: str, wait_for: int) -> tuple[float, Counter[str]]:
        before = site.bytes_by_key()
        site.trace.clear()
        load.submit(site, [dag], size.runs)
        site.trace.wait(wait_for * size.runs)
        calm(site)
        after = site.bytes_by_key()
        kinds = Counter({k: round((after[k] - before[k]) / size.runs) for k in after})
        shards = sum(after[k] - before[k] for k in after if k.startswith("s:"))
        return shards / size.runs, +kinds

    waiting, waiting_kinds = grown(queued, 0)
    running, running_kinds = grown(live, 7)
    ended, ended_kinds = grown(packed, len(shape))
    return {
        "runs": size.runs,
        "bytes_per_waiting_run": waiting,
        "bytes_per_live_run": running,
        "bytes_per_run": ended,
        "waiting_by_key": dict(waiting_kinds.most_common()),
        "live_by_key": dict(running_kinds.most_common()),
        "packed_by_key": dict(ended_kinds.most_common()),
    }


def calm(site: Site) -> None:
    """Until nothing is left to be done: inboxes empty, everything offered, ended runs packed."""
    site.until(
        lambda: not any(s["inbox"] or s["ready"] for s in site.client.shards()),
        "it did not calm down",
        CALM_S,
    )
    load.settled(site)


def bodies(site: Site, size: Size) -> Numbers:
    """Real processes: command tasks `true` in one run, against what xargs does with as many at a time."""
    site.client.set_pool("default", load.POOL_SLOTS)
    tasks = {f"t{i}": {"run": ["true"]} for i in range(size.tasks)}
    spec = {"dag": "bodies", "max_active_tasks": load.NO_LIMIT, "tasks": tasks}
    site.register(spec)
    site.client.wait("bodies", site.client.trigger("bodies")["run"])
    at_once = site.setup.concurrency * site.setup.workers
    xargs = min(_xargs(size.tasks, at_once) for _ in range(3))
    times, runs = [], []
    for _ in range(3):
        begun = time.monotonic()
        row = site.client.trigger("bodies")
        load.ended(site)
        times.append(time.monotonic() - begun)
        runs.append(f"bodies/{row['run']}")
    took = min(times)
    return {
        "tasks": size.tasks,
        "at_once": at_once,
        "tasks_per_s": size.tasks / took,
        "xargs_per_s": size.tasks / xargs,
        "vs_xargs": xargs / took,
        "failed_runs": load.failed(site, runs),
    }


def _xargs(count: int, at_once: int) -> float:
    words = "\n".join(map(str, range(count))).encode()
    begun = time.monotonic()
    subprocess.run(["xargs", f"-P{at_once}", "-n1", "true"], input=words, check=True)  # noqa: S607
    return time.monotonic() - begun


ALL: Final[dict[str, Workload]] = {
    w.name: w
    for w in (
        Workload(
            "dag20",
            "N runs of a 20-task DAG at once",
            dag20,
            Size(runs=1000, dags=1),
            ("runs", "dags"),
            {"concurrency": 3},
        ),
        Workload(
            "hop",
            "A chain of 50, one run at a time: from one body to the next",
            hop,
            Size(runs=20),
            ("runs",),
        ),
        Workload(
            "flat", "Independent tasks, each a run of its own", flat, Size(runs=10_000), ("runs", "dags")
        ),
        Workload("idle", "An installation with nothing to do", idle, Size(seconds=30), ("seconds",)),
        Workload(
            "crowd",
            "The same while many other runs wait",
            crowd,
            Size(runs=500, waiting=100_000),
            ("runs", "dags", "waiting"),
        ),
        Workload(
            "wide", "One task, thousands at once, one that joins them", wide, Size(tasks=10_000), ("tasks",)
        ),
        Workload("deep", "A chain of thousands", deep, Size(tasks=5000), ("tasks",)),
        Workload("memory", "Bytes of a waiting, a live and a packed run", memory, Size(runs=1000), ("runs",)),
        Workload(
            "bodies",
            "Command tasks `true` against xargs",
            bodies,
            Size(tasks=200),
            ("tasks",),
            {"concurrency": 8},
        ),
    )
}
