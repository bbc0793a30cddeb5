"""Real workers, killed at each of their first calls to Redis, one after the other; another one ends what they began.

A proxy passes their calls on one by one, and counts them. The call that is struck has run; its reply never comes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from hiredis import Reader, pack_command
from redis import Redis

from tests.engine.recount import Recount
from tests.processes import SAY, Site, states, until

NewSite = Callable[..., Site]
NOTHING = object()
# Forks workers from one process that has loaded everything: a line in, the worker's process out.
NURSERY = """
import os, sys
from pathlib import Path
from redsched.settings import load_settings
from redsched.worker.supervisor import run_worker
from redsched.definition import config, python
for line in sys.stdin:
    url, pool, log = line.split()
    pid = os.fork()
    if pid == 0:
        for fd in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), fd)
        settings = load_settings({"redis": url})
        os._exit(run_worker(settings, pools=[pool], concurrency=1, paths=[Path(".")], grace_s=1, name=pool))
    print(pid, flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


class Counting:
    """Passes one worker's calls on, each with its reply, until number `at`: that runs, then `strike` is called."""

    def __init__(self, server_url: str, at: int, strike: Callable[[], None]) -> None:
        self.at, self.strike = at, strike
        self.calls: list[str] = []
        self.struck = threading.Event()
        self._far = urlsplit(server_url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}{self._far.path}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        far = socket.create_connection((self._far.hostname or "", self._far.port or 0))
        said = Reader(notEnoughData=NOTHING)
        with near, far, contextlib.suppress(OSError):
            while data := near.recv(65536):
                said.feed(data)
                while (words := said.gets()) is not NOTHING:
                    far.sendall(pack_command(tuple(words)))
                    reply = _reply(far)
                    if self._counted(words):
                        self.strike()
                        self.struck.set()
                        return
                    near.sendall(reply)

    def _counted(self, words: list[bytes]) -> bool:
        with self._lock:
            self.calls.append((words[1] if words[0] == b"FCALL" else words[0]).decode())
            return len(self.calls) == self.at


def _reply(far: socket.socket) -> bytes:
    """One whole reply, as it came."""
    reader, raw = Reader(notEnoughData=NOTHING), b""
    while True:
        data = far.recv(65536)
        if not data:
            raise OSError
        raw += data
        reader.feed(data)
        if reader.gets() is not NOTHING:
            return raw


class Nursery:
    """Workers of a site, each behind a proxy of its own."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.proxies: list[Counting] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            cwd=site.folder,
            env=site.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def proxy(self, at: int, strike: Callable[[], None]) -> Counting:
        self.proxies.append(Counting(self.site.redis.url, at, strike))
        return self.proxies[-1]

    def worker(self, url: str, pool: str) -> int:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{url} {pool} {self.site.folder / pool}.log\n".encode())
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Those that are told to end have until then."""
        for child in children(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        self.process.communicate(timeout=20)
        for proxy in self.proxies:
            proxy.close()


def children(pid: int) -> list[int]:
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def the_worker(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def its_child(pid: int) -> None:
    """The one that runs bodies; the other one is the guardian, another program."""
    for child in children(pid):
        if b"guardian" not in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGKILL)


def nobody(pid: int) -> None:
    """Only the connection is cut."""


TASKS: dict[str, dict[str, Any]] = {
    "first": {"run": f"{SAY}; echo '::result:: 1'"},
    "second": {"call": "bodies:both", "needs": ["first"]},
    "third": {"run": f"sleep 0.5; {SAY}", "needs": ["second"]},  # long enough to be seen by the supervisor
}
# What a worker says in a run of these, besides its connections' first words.
SAID = ("worker_beat", "pool_start", "pool_heartbeat", "shard_log_write", "shard_report", "pool_release")


def strike_at(site: Site, nursery: Nursery, at: int, kill: Callable[[int], None]) -> str:
    """A worker that is struck at its call number `at`, in a run and a pool of its own; the call, '' if it made fewer."""
    pool, pid, born = f"p{at}", 0, threading.Event()
    site.dag(pool, {n: {**t, "pool": pool, "retries": 2} for n, t in TASKS.items()}, pools={pool: 1})
    run = site.run(pool, run=pool)

    def strike() -> None:
        born.wait()
        kill(pid)

    def over() -> bool:
        return bool(site.client.run(pool, run)["state"] == "success")

    proxy = nursery.proxy(at, strike)
    pid = nursery.worker(proxy.url, pool)
    born.set()
    until(lambda: proxy.struck.is_set() or over(), "it is neither struck, nor does it end its run")
    return proxy.calls[at - 1] if proxy.struck.is_set() else ""


@pytest.mark.parametrize("kill", [the_worker, its_child, nobody])
def test_a_worker_is_struck_at_each_call(new_site: NewSite, kill: Callable[[int], None]) -> None:
    site = new_site(worker_lease_ms=500, lease_ms=500, shards=2)
    site.start(workers=0)
    struck: list[str] = []
    with Nursery(site) as nursery:
        while call := strike_at(site, nursery, len(struck) + 1, kill):
            struck.append(call)
        assert all(any(word in call for call in struck) for word in SAID), struck
        pools = [f"p{i + 1}" for i in range(len(struck) + 1)]
        if kill is the_worker:
            site.worker(concurrency=4, pools=pools)
        for pool in pools:
            assert set(states(site.ended(pool, pool)).values()) == {"success"}
    begun = Counter((x.run, x.task, x.attempt) for x in site.begun())
    assert set(begun.values()) == {1}, "no attempt was begun twice"
    if kill is nobody:
        assert len(begun) == len(pools) * len(TASKS), "nobody died, so nothing ran twice"

    def trouble() -> list[str]:
        with Redis.from_url(site.redis.url) as redis:
            return Recount.of(redis, site.settings.namespace).trouble

    until(lambda: not trouble(), lambda: "\n".join(trouble()), 10)
