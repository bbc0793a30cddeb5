"""Simulations find what they are there to find: each script that is broken here is found out by a few seeds."""

from __future__ import annotations

import pytest

from redsched.simulation.history import simulate
from redsched.simulation.server import private_server
from redsched.store.scripts import all_scripts

ENOUGH = 300

# What is broken: the line of lua/, and what stands there instead.
MUTANTS = {
    "a deposed scheduler may write": (
        "if current == token then return nil end",
        "if current then return nil end",
    ),
    "a pool takes offers of earlier owners": (
        "if tonumber(fence) < seen then",
        "if tonumber(fence) < 0 then",
    ),
    "a hint that comes twice is granted twice": (
        "if state == 'Q' then\n      set[",
        "if state == 'Q' or state == 'R' then\n      set[",
    ),
    "a slot is not given back": (
        "for slot = 1, e.slots do w.free[",
        "for slot = 2, e.slots do w.free[",
    ),
    "one retry too few": ("rec.failures > task.retries", "rec.failures >= task.retries"),
    "one_success is skipped where upstreams failed": (
        "return k == n and 'k' or 'u' end\n  end,\n  -- one_failed",
        "return 'k' end\n  end,\n  -- one_failed",
    ),
    "reports of earlier attempts count": (
        "if not rec or rec.attempt ~= tonumber(attempt) then return stale() end",
        "if not rec then return stale() end",
    ),
    "a slot of a schedule vanishes": (
        "redis.call('ZADD', key, ms, ms .. ':' .. reason)",
        "redis.call('ZCARD', key)",
    ),
}


@pytest.mark.parametrize("broken", MUTANTS)
def test_a_broken_script_is_found_out(broken: str) -> None:
    right, wrong = MUTANTS[broken]
    assert any(right in script.library for script in all_scripts().values()), (
        "lua/ has changed: change it here, too"
    )
    with private_server(lambda text: text.replace(right, wrong)) as server:
        for seed in range(ENOUGH):
            if simulate(server, seed, "many").trouble:
                return
    raise AssertionError(f"{ENOUGH} seeds did not notice that {broken}")
