"""The only place where a Redis key is spelled.

Every key belongs to one cell, and the cell is its hash tag: `{rs:s:7}:…` shard 7, `{rs:p:gpu}:…` pool gpu,
`{rs:c}:…` control. Ids never contain `:`, `/`, `{` or `~`, so a key can be read back without doubt.
The schema, key by key, is in `lua/README.md`.
"""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple


@lru_cache(maxsize=65_536)
def stable_hash(dag: str) -> int:
    """CRC-32 of the DAG's id: the same in every process and version."""
    return zlib.crc32(dag.encode())


# DAGs and pools that `redsched fence-test` makes for a moment.
CANARY = "fence-test-"


def shard_of(dag: str, shards: int) -> int:
    return stable_hash(dag) % shards


def iso(ms: int | None) -> str | None:
    """Milliseconds since the epoch as UTC with `Z`; milliseconds are shown where there are any."""
    if ms is None:
        return None
    at = datetime.fromtimestamp(ms // 1000, UTC)
    tail = f".{ms % 1000:03d}Z" if ms % 1000 else "Z"
    return at.strftime("%Y-%m-%dT%H:%M:%S") + tail


def dated_run_id(logical_ms: int) -> str:
    """The id of the run of a logical date: `20260102T010000Z`."""
    at = datetime.fromtimestamp(logical_ms // 1000, UTC).strftime("%Y%m%dT%H%M%S")
    return f"{at}.{logical_ms % 1000:03d}Z" if logical_ms % 1000 else f"{at}Z"


class AttemptId(NamedTuple):
    """`dag/run/task/attempt`; a DAG id that was deleted and made again carries `~N` (its generation)."""

    dag: str
    run: str
    task: int
    attempt: int
    generation: int = 0

    @classmethod
    def parse(cls, text: str) -> AttemptId:
        name, run, task, attempt = text.split("/")
        dag, _, generation = name.partition("~")
        return cls(dag, run, int(task), int(attempt), int(generation or 0))

    def __str__(self) -> str:
        name = f"{self.dag}~{self.generation}" if self.generation else self.dag
        return f"{name}/{self.run}/{self.task}/{self.attempt}"


class Keys:
    """Keys of one installation. `shard(7)`, `pool("gpu")` and `control` are prefixes: add the name."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.control = f"{{{namespace}:c}}:"

    def shard(self, shard: int) -> str:
        return f"{{{self.namespace}:s:{shard}}}:"

    def pool(self, pool: str) -> str:
        return f"{{{self.namespace}:p:{pool}}}:"
