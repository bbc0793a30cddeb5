"""The longest that any script holds Redis: fans and chains of 10,000, a joined 50 x 100, clears of all of it."""

from __future__ import annotations

import time

from bench import main
from redsched.bench import load, shapes
from redsched.bench.load import Numbers
from redsched.bench.site import Site
from redsched.bench.workloads import Size, SlowLog, Workload


def joined(count: int, width: int) -> shapes.Shape:
    """Layers, each task of which needs all of the layer above."""
    return {
        f"l{n}_{i}": [f"l{n - 1}_{k}" for k in range(width)] if n else []
        for n in range(count)
        for i in range(width)
    }


def slices(site: Site, size: Size) -> Numbers:
    numbers: Numbers = {"tasks": size.tasks}
    slow = SlowLog(site)
    shown = {
        "wide": shapes.fan(size.tasks),
        "deep": shapes.chain(size.tasks),
        "joined": joined(size.tasks // 200, 100),
    }
    for name, shape in shown.items():
        first = next(iter(shape))
        (dag,) = load.register(site, name, shape)
        slow.longest_ms()
        site.trace.clear()
        begun = time.monotonic()
        run = site.client.trigger(dag)["run"]
        site.trace.wait(len(shape))
        load.ended(site)
        numbers[f"{name}_s"] = time.monotonic() - begun
        numbers[f"{name}_longest_script_ms"] = slow.longest_ms()
        begun = time.monotonic()
        site.client.clear(dag, run, [first], downstream=True)
        numbers[f"{name}_clear_s"] = time.monotonic() - begun
        site.client.cancel(dag, run)
        numbers[f"{name}_clear_longest_script_ms"] = slow.longest_ms()
    return numbers


if __name__ == "__main__":
    main(Workload("slices", "How long one script holds the server.", slices, Size(tasks=10_000), ("tasks",)))
