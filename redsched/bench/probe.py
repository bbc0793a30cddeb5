"""What the server could do at best: a tiny script that counts, pipelined by a hundred on one connection."""

from __future__ import annotations

import time
from statistics import median
from typing import Any, Final

from redsched.bench.site import Site

DEPTH: Final = 100
BURST_S: Final = 0.15
BURSTS: Final = 5
TINY: Final = "return redis.call('INCR', KEYS[1])"


def evalsha_per_s(site: Site) -> float:
    """The median of a few bursts. Commands are packed before, so that it is the server that is measured and not Python."""
    client: Any = site.client.store.client
    key = f"{{{site.settings.namespace}:c}}:tiny"
    with site.client.store.translate():
        if hasattr(client, "nodes_manager"):
            client = client.get_redis_connection(client.get_node_from_key(key))
        sha = client.script_load(TINY)
        connection = client.connection_pool.get_connection()
        try:
            packed = b"".join(connection.pack_command("EVALSHA", sha, 1, key)) * DEPTH
            rates = [_burst(connection, packed) for _ in range(BURSTS)]
        finally:
            client.connection_pool.release(connection)
        client.delete(key)
    return median(rates)


def _burst(connection: Any, packed: bytes) -> float:
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < BURST_S:
        connection.send_packed_command([packed])
        for _ in range(DEPTH):
            connection.read_response()
        count += DEPTH
    return count / (time.perf_counter() - begun)
