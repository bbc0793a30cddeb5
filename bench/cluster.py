"""What a cluster would carry: cells placed as Redis Cluster places them, and the busiest node as a queue. Pure; nothing is measured.

A task costs time in the cell of its DAG's shard and in the cell of its pool. A node is one thread, so it carries what its
cells cost; the cluster carries as many tasks a second as its busiest node lets it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from redsched.bench.stats import quantile

SLOTS = 16_384


class Costs(NamedTuple):
    """Microseconds a task spends in cells of each kind, and how long the calls there take."""

    shard_us: float
    pool_us: float
    shard_calls_us: Sequence[float]
    pool_calls_us: Sequence[float]


def crc16(data: bytes) -> int:
    """CRC-16/XMODEM, by which Redis Cluster places keys."""
    value = 0
    for byte in data:
        value ^= byte << 8
        for _ in range(8):
            value = ((value << 1) ^ 0x1021 if value & 0x8000 else value << 1) & 0xFFFF
    return value


def node_of(cell: str, nodes: int) -> int:
    """The node of a cell, where slots are dealt out in equal ranges."""
    return crc16(cell.encode()) % SLOTS * nodes // SLOTS


def loads(
    namespace: str, shards: int, pools: int, nodes: int, costs: Costs
) -> dict[int, tuple[float, float]]:
    """Of each node: microseconds a task in its shards, and in its pools, with DAGs and pools equally busy."""
    in_shards = Counter(node_of(f"{namespace}:s:{i}", nodes) for i in range(shards))
    in_pools = Counter(node_of(f"{namespace}:p:pool{i}", nodes) for i in range(pools))
    return {
        node: (in_shards[node] / shards * costs.shard_us, in_pools[node] / pools * costs.pool_us)
        for node in range(nodes)
    }


def carried(shards: int, pools: int, nodes: int, costs: Costs, draws: int = 200) -> dict[str, float]:
    """Tasks a second at which the busiest node is full: the median over namespaces (placement is luck), and a bad draw."""
    found = [
        1e6 / max(sum(load) for load in loads(f"n{i}", shards, pools, nodes, costs).values())
        for i in range(draws)
    ]
    return {"median": quantile(found, 0.5), "p10": quantile(found, 0.1)}


def waits_ms(
    load: tuple[float, float], costs: Costs, tasks_per_s: float, calls: int, seed: int = 1
) -> list[float]:
    """How long calls wait for a node that runs one at a time, when they come at random (Lindley's recursion)."""
    dice = random.Random(seed)
    kinds = ((load[0], costs.shard_calls_us), (load[1], costs.pool_calls_us))
    rates = [tasks_per_s * us / max(1e-9, sum(some) / len(some)) for us, some in kinds]
    wait, waits = 0.0, []
    for _ in range(calls):
        waits.append(wait / 1000)
        service = dice.choice(kinds[0 if dice.random() * sum(rates) < rates[0] else 1][1])
        wait = max(0.0, wait + service - dice.expovariate(sum(rates)) * 1e6)
    return waits


def calm_rate(
    shards: int, pools: int, nodes: int, costs: Costs, limit_ms: float = 5, calls: int = 20_000
) -> float:
    """The most tasks a second at which 99 of 100 calls wait less than `limit_ms` at the busiest node."""
    busiest = max(loads("rs", shards, pools, nodes, costs).values(), key=sum)
    low, high = 0.0, 1e6 / sum(busiest)
    for _ in range(12):
        middle = (low + high) / 2
        calm = quantile(waits_ms(busiest, costs, middle, calls), 0.99) < limit_ms
        low, high = (middle, high) if calm else (low, middle)
    return low


def table(
    costs: Costs, nodes: Sequence[int], plans: Mapping[str, tuple[int, int]]
) -> list[dict[str, float | str]]:
    """A row for each plan (name -> shards, pools) and number of nodes."""
    return [
        {
            "plan": name,
            "shards": shards,
            "pools": pools,
            "nodes": count,
            **carried(shards, pools, count, costs),
            "calm": calm_rate(shards, pools, count, costs),
        }
        for name, (shards, pools) in plans.items()
        for count in nodes
    ]
