"""The longest that any script holds Redis: fans and chains of 10,000, a joined 50 x 100, clears of all of it."""

from __future__ import annotations

import time
from typing import Any

from bench.installation import Installation, installation, report
from redsched.definition.model import DagSpec

SIZE = 10_000


def longest_ms(made: Installation) -> float:
    client = made.client.store.client
    slowest = max(
        (x["duration"] for x in client.slowlog_get(1000) if x["command"].startswith(b"FCALL")), default=0
    )
    client.slowlog_reset()
    return float(slowest) / 1000


def main() -> None:
    wide: dict[str, list[str]] = {"one": []}
    wide |= {f"t{i}": ["one"] for i in range(SIZE - 2)}
    wide["join"] = [f"t{i}" for i in range(SIZE - 2)]
    deep = {f"t{i}": [f"t{i - 1}"] if i else [] for i in range(SIZE)}
    layered = {
        f"l{n}_{i}": [f"l{n - 1}_{k}" for k in range(100)] if n else [] for n in range(50) for i in range(100)
    }
    numbers: dict[str, Any] = {}
    with installation() as made:
        made.client.store.client.config_set("slowlog-log-slower-than", 1000)
        for name, shape in (("wide", wide), ("deep", deep), ("layered", layered)):
            first = next(iter(shape))
            tasks = {k: {"call": "noop:run", "needs": needs} for k, needs in shape.items()}
            if name == "deep":
                tasks[first] = {"run": "exit 1"}
            made.client.register(
                DagSpec.model_validate({"dag": name, "max_active_tasks": 100_000, "tasks": tasks})
            )
            longest_ms(made)
            begun = time.monotonic()
            run = made.client.trigger(name)["run"]
            made.client.wait(name, run)
            numbers[f"{name}_s"] = time.monotonic() - begun
            numbers[f"{name}_longest_script_ms"] = longest_ms(made)
            begun = time.monotonic()
            made.client.clear(name, run, [first], downstream=True)
            numbers[f"{name}_clear_s"] = time.monotonic() - begun
            made.client.cancel(name, run)
            numbers[f"{name}_clear_longest_script_ms"] = longest_ms(made)
        report("slices", numbers, made.client)


if __name__ == "__main__":
    main()
