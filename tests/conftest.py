"""A real server for the whole session, more of them for the faults, and a proxy that loses replies."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redsched import embedded

from .proxy import Proxy

LONG = ("faults", "cases", "matrix", "model", "cli")  # folders, the longest first


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first: then several processes have something to do until the end."""

    def place(item: pytest.Item) -> int:
        folder = item.path.parent.name
        return LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=place)


class Server:
    """A server that a test may kill, stop and start again, on the same port and data."""

    def __init__(self, folder: Path, *options: str, port: int = 0) -> None:
        self.folder = folder
        self.options = options
        self.port = port or _free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [embedded.binary(), *self._words()], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end = time.monotonic() + 20
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.01)

    def _words(self) -> list[str]:
        """A configuration file comes first: an option that does not begin with `--`."""
        given = list(self.options) or ["--appendonly", "no"]
        first = [] if given[0].startswith("--") else [given.pop(0)]
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [*first, *place, "--save", "", *given]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as link:
                link.sendall(b"PING\r\n")
                return link.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, number)
            self.process.wait()

    def restart(self, number: int = signal.SIGKILL) -> None:
        self.kill(number)
        self.start()

    def signal(self, number: int) -> None:
        """SIGSTOP and SIGCONT: a server that is not dead but does not answer."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def say(self, *words: str | int) -> Any:
        """One command, as the default user, on a connection of its own."""
        from redis import Redis

        with Redis(port=self.port, decode_responses=True) as client:
            return client.execute_command(*words)


def _free_port() -> int:
    """Below the range from which clients get theirs (32768), with room for a cluster's node, which takes port + 10000 too.

    Workers of pytest-xdist have ports of their own: another's server would answer in the place of one that could not start.
    """
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8
    for port in random.sample(range(20_000 + mine, 22_700, 8), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


@pytest.fixture(scope="session")
def _session_server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="redsched-test-"))
    server = Server(folder)
    yield server
    server.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def redis_url(_session_server: Server) -> str:
    """The session's server, without persistence. A test keeps to a namespace of its own."""
    return _session_server.url


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes servers for one test alone: `new_server("--appendonly", "yes")`."""
    made: list[Server] = []

    def make(*options: str) -> Server:
        folder = tmp_path / f"server{len(made)}"
        folder.mkdir()
        made.append(Server(folder, *options))
        return made[-1]

    yield make
    for server in made:
        server.kill()


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    """The session's server through a proxy that can lose replies."""
    with Proxy(redis_url) as made:
        yield made
