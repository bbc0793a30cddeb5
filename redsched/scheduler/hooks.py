"""on_success, on_failure, on_deadline: a command or a URL is told what became of a run, at least once.

The outbox was written in the same script as the change, so nothing is forgotten; a few threads deliver it, because the
loop must not wait for somebody else's server. What fails is tried again, later and later, and given up after a day or so.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redsched.errors import NotFound, Unavailable
from redsched.keys import iso
from redsched.store import Store

log = logging.getLogger("redsched.scheduler")

THREADS = 4
AT_ONCE = 50
TIMEOUT_S = 30
FIRST_PAUSE_MS, LAST_PAUSE_MS = 5_000, 3_600_000
TRIES = 30
# While one is being delivered, it is not looked at again before.
BUSY_MS = 1000


class Hooks:
    """Delivers what the shards of one scheduler have in their outboxes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._threads: ThreadPoolExecutor | None = None
        self._under_way: set[str] = set()
        self._lock = threading.Lock()

    def deliver(self, shard: int, now: int) -> int:
        """Begin to deliver what is due; returns when to look again (ms)."""
        for member, failed in self.store.shard.hooks_due(shard, now, AT_ONCE):
            with self._lock:
                if member in self._under_way:
                    continue
                self._under_way.add(member)
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, "hooks")
            self._threads.submit(self._one, shard, member, failed, now)
        return now + BUSY_MS

    def close(self) -> None:
        """What is not delivered stays in the outbox, for the next owner."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _one(self, shard: int, member: str, failed: int, now: int) -> None:
        try:
            trouble = self._tell(member)
            if trouble is None:
                self.store.shard.hook_done(shard, member)
            elif failed + 1 >= TRIES:
                log.error("hook %s given up after %d tries: %s", member, failed + 1, trouble)
                self.store.shard.hook_done(shard, member)
            else:
                pause = min(LAST_PAUSE_MS, FIRST_PAUSE_MS * 2**failed)
                log.warning("hook %s failed, again in %d s: %s", member, pause // 1000, trouble)
                self.store.shard.hook_again(shard, member, now + pause)
        except Unavailable as error:
            log.warning("hook %s is told again later: %s", member, error)
        finally:
            with self._lock:
                self._under_way.discard(member)

    def _tell(self, member: str) -> str | None:
        """None if that was taken, else what was wrong."""
        name, run, event, _ = member.split("/")
        dag = name.partition("~")[0]
        try:
            record = self.store.shard.record(dag, run)
            hook = self.store.shard.plan(dag, record.digest)[0].get(f"on_{event}")
        except NotFound:
            return None  # the run has been deleted: there is nobody to be told about
        if hook is None:
            return None
        about = {
            "dag": dag,
            "run": run,
            "event": event,
            "state": record.state,
            "logical_date": iso(record.logical),
            "started_at": iso(record.started),
            "ended_at": iso(record.ended),
        }
        return post(hook["url"], about, member) if isinstance(hook, dict) else command(hook, about)


def post(url: str, about: dict[str, Any], key: str) -> str | None:
    """A JSON document by POST; the header Idempotency-Key is the same each time it is told."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    request = urllib.request.Request(url, json.dumps(about).encode(), headers)  # noqa: S310 - checked to be http
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310
            return None
    except OSError as error:
        return str(error)


def command(hook: str | list[str], about: dict[str, Any]) -> str | None:
    """A shell line or an argument list; what happened is in its environment."""
    told = {f"REDSCHED_{k.upper()}": "" if v is None else str(v) for k, v in about.items()}
    line = ["/bin/sh", "-c", hook] if isinstance(hook, str) else hook
    try:
        done = subprocess.run(
            line,
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (
        None
        if done.returncode == 0
        else f"exit {done.returncode}: {done.stderr[-300:].decode(errors='replace')}"
    )
