"""`python -m redsched.simulation --seed 123 --trace`, or `--seeds 1000 --from 0` for many: exit 1 if a seed finds anything."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections import Counter

from redsched.simulation.history import History, simulate
from redsched.simulation.server import private_server


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m redsched.simulation", description=__doc__)
    words.add_argument("--seed", type=int, help="one seed")
    words.add_argument("--seeds", type=int, default=100, help="so many [100]")
    words.add_argument("--from", type=int, default=0, dest="first", help="the first of them [0]")
    words.add_argument("--faults", choices=("none", "some", "many"), help="[what the seed says]")
    words.add_argument("--digest", action="store_true", help="print a digest of each history")
    words.add_argument("--trace", action="store_true", help="print each call")
    given = words.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no server stays behind
    seeds = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    done, bad, totals, begun = 0, 0, Counter[str](), time.perf_counter()
    with private_server() as server, contextlib.suppress(KeyboardInterrupt):
        for seed in seeds:
            history = simulate(server, seed, given.faults, trace=given.trace)
            done, bad = done + 1, bad + bool(history.trouble)
            add(totals, history)
            show(history, given.digest)
    seconds = time.perf_counter() - begun
    shown = ", ".join(f"{n:,} {name}" for name, n in totals.items())
    print(f"{done:,} seeds in {seconds:.1f} s, {bad} bad: {shown}")  # noqa: T201 - what was asked for
    return 1 if bad else 0


def show(history: History, digest: bool) -> None:
    lines = [*history.trace]
    if history.trouble:
        lines.append(f"{history.line}: {history.trouble}")
    if digest:
        lines.append(f"{history.seed} {history.digest}")
    sys.stdout.writelines(line + "\n" for line in lines)
    sys.stdout.flush()


def add(totals: Counter[str], history: History) -> None:
    totals.update(
        calls=history.calls,
        runs=history.runs,
        executions=history.executions,
        simulated_s=int(history.simulated_s),
    )
    totals.update(history.happened)


if __name__ == "__main__":
    sys.exit(main())
