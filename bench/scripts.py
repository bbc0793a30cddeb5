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


Log = list[dict[str, Any]]


def logged(site: Site, runs: int, dags: int) -> Log:
    """Every call that the server saw during a dag20. Raises Unavailable if the runs don't end."""
    client: Any = site.client.store.client
    shape = shapes.dag20()
    names = load.register(site, "dag20_", shape, dags)
    load.warm(site, names, len(shape))
    client.config_set("slowlog-max-len", KEPT)
    client.config_set("slowlog-log-slower-than", 0)
    client.slowlog_reset()
    load.burst(site, names, shape, runs)
    load.settled(site)
    client.config_set("slowlog-log-slower-than", -1)
    return list(client.slowlog_get(KEPT))


def scripts(site: Site, size: Size) -> Numbers:
    tasks = size.runs * len(shapes.dag20())
    log = logged(site, size.runs, min(size.dags, size.runs))
    cells = {cell: sum(us) / tasks for cell, us in calls_of(log).items()}
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for entry in log:
        name = named(entry["command"])
        spent[name] += entry["duration"]
        calls[name] += 1
    shown = [(name, us) for name, us in spent.most_common() if us >= tasks / 100]
    return {
        "tasks": tasks,
        "us_per_task_by_cell": cells,
        "us_per_task_by_command": {name: us / tasks for name, us in shown},
        "calls_per_task": {name: calls[name] / tasks for name, _ in shown},
    }


def calls_of(log: Log) -> dict[str, list[float]]:
    """How long each call of a client took, by the kind of cell. What runs inside a script is in the script's time."""
    found: dict[str, list[float]] = {"shard": [], "pool": [], "control": []}
    for entry in log:
        if entry["command"].startswith(OUTER) and (cell := CELL.search(entry["command"])):
            found[CELLS[cell[1]]].append(entry["duration"])
    return found


def named(command: bytes) -> str:
    words = command.split(b" ", 2)
    if words[0] == b"FCALL":
        return re.sub("_[0-9a-f]{12}$", "", words[1].decode()).removeprefix("redsched_").replace("_", "/", 1)
    return words[0].decode()


if __name__ == "__main__":
    main(Workload("scripts", "What each script costs a task.", scripts, Size(runs=300), ("runs", "dags")))
