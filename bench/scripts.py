"""Where Redis' time goes: each script and command of a dag20, by what it costs a task, and by the cell that it touches.

The server's slow log keeps every call for it, which costs a microsecond or two a call: read shares, not speed.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from bench import main
from redsched.bench import load, shapes
from redsched.bench.load import Numbers
from redsched.bench.site import Site
from redsched.bench.workloads import Size, Workload

CELL = re.compile(rb"\{[^:{}]+:([spc])(?::[^{}]*)?\}:")
CELLS = {b"s": "shard", b"p": "pool", b"c": "control"}
OUTER = (b"FCALL", b"EVALSHA", b"XREADGROUP", b"XREAD ")
KEPT = 1_000_000


def scripts(site: Site, size: Size) -> Numbers:
    client: Any = site.client.store.client
    shape = shapes.dag20()
    dags = load.register(site, "dag20_", shape, min(size.dags, size.runs))
    load.warm(site, dags, len(shape))
    client.config_set("slowlog-max-len", KEPT)
    client.config_set("slowlog-log-slower-than", 0)
    client.slowlog_reset()
    runs = load.submit(site, dags, size.runs)
    tasks = size.runs * len(shape)
    site.trace.wait(tasks)
    load.ended(site)
    load.settled(site)
    client.config_set("slowlog-log-slower-than", -1)
    return {**shares(client.slowlog_get(KEPT), tasks), "tasks": tasks, **load.verdict(site, runs, shape)}


def shares(log: list[dict[str, Any]], tasks: int) -> Numbers:
    """Of each command: microseconds and calls a task; of each kind of cell: microseconds a task."""
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    cells: Counter[str] = Counter()
    for entry in log:
        name = named(entry["command"])
        spent[name] += entry["duration"]
        calls[name] += 1
        outer = entry["command"].startswith(OUTER)  # what runs inside a script is in the script's time, too
        if outer and (found := CELL.search(entry["command"])):
            cells[CELLS[found[1]]] += entry["duration"]
    return {
        "us_per_task_by_cell": {cell: us / tasks for cell, us in cells.most_common()},
        "us_per_task_by_command": {name: us / tasks for name, us in spent.most_common() if us >= tasks / 100},
        "calls_per_task": {
            name: calls[name] / tasks for name, us in spent.most_common() if us >= tasks / 100
        },
    }


def named(command: bytes) -> str:
    words = command.split(b" ", 2)
    if words[0] == b"FCALL":
        return re.sub("_[0-9a-f]{12}$", "", words[1].decode()).removeprefix("redsched_").replace("_", "/", 1)
    return words[0].decode()


if __name__ == "__main__":
    main(Workload("scripts", "What each script costs a task.", scripts, Size(runs=300), ("runs", "dags")))
