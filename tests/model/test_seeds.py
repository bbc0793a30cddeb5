"""Whole histories under faults: real schedulers, real scripts, a simulated clock; a seed decides at each call to Redis.

REDSCHED_SEEDS=100000 REDSCHED_SEED_FROM=500 for long runs. A seed that fails prints the line that replays it.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from redsched.simulation.history import simulate
from redsched.simulation.server import Server

SEEDS = int(os.environ.get("REDSCHED_SEEDS", "500"))
FIRST = int(os.environ.get("REDSCHED_SEED_FROM", "0"))
AT_ONCE = 25


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, AT_ONCE))
def test_whatever_dies_every_run_ends_as_the_reference_says(world_server: Server, first: int) -> None:
    """Each invariant after the calls, each task's accepted attempt once, nothing held or left behind at the end."""
    wrong = []
    for seed in range(first, min(first + AT_ONCE, FIRST + SEEDS)):
        history = simulate(world_server, seed)
        if history.trouble:
            wrong.append(f"{history.line}: {history.trouble}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_is_one_history(world_server: Server, hash_seed: str) -> None:
    """The same calls in the same order, also in another process; without that no seed could be replayed."""
    here = [simulate(world_server, seed).digest for seed in (3, 4)]
    words = [sys.executable, "-m", "redsched.simulation", "--seeds", "2", "--from", "3", "--digest"]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert [int(line.split()[1]) for line in done.stdout.splitlines()[:2]] == here


def test_the_seeds_do_what_they_are_there_for(world_server: Server) -> None:
    """Otherwise they would find nothing: every kind of fault happens, and somebody is refused by a fence."""
    happened = sum(
        (simulate(world_server, seed).happened for seed in range(40)),
        start=simulate(world_server, 40).happened,
    )
    wanted = {
        "delay",
        "drop",
        "lose",
        "repeat",
        "kill",
        "pause",
        "restart",
        "hint",
        "stop",
        "refused",
        "writes lost",
    }
    assert wanted <= set(happened)
