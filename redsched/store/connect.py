"""The only place (besides scripts) that knows redis-py: clients with every setting named, and what its errors mean.

redis-py's defaults differ by version and say a call again after a time-out, so nothing is left to them: nothing is
ever sent twice here. After each error the caller knows: it did not happen (Unavailable), or can't tell (MayHaveHappened).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from redsched.errors import DefinitionError, MayHaveHappened, RedschedError, Unavailable
from redsched.settings import Address, Settings, mask_url

if TYPE_CHECKING:
    from types import TracebackType

    from redis import Redis

    from redsched.store.cluster import Reads

SCRIPT_TIMEOUT_S: Final = 5.0
BLOCK_MS: Final = 4000
MIN_BLOCK_MS: Final = 20
MAX_CONNECTIONS: Final = 1024
ASK_S: Final = 1.0  # how often the sentinels are asked for the master, and how long one may take to answer
KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
NOT_RUNNING: Final = (
    "no Redis is known: start one with `redsched up`, or give --redis URL or REDSCHED_REDIS_URL"
)


@dataclass(frozen=True, slots=True)
class Clients:
    """Two clients of one Redis: `scripts` for short calls, `reader` for blocking reads of at most `block_ms`.

    `reads` is what a cluster needs besides: there one read can't name keys of two slots.
    """

    scripts: Redis
    reader: Redis
    block_ms: int
    where: str
    namespace: str
    reads: Reads | None = None

    def reset(self) -> None:
        """Forget the connections without closing them: for a forked child, whose parent goes on using them."""
        if self.reads:
            self.reads.reset()
        for client in (self.scripts, self.reader):
            for pool in _pools(client):
                pool.reset()
            if hasattr(client, "forget"):
                client.forget()

    def close(self) -> None:
        if self.reads:
            self.reads.close()
        for client in (self.scripts, self.reader):
            client.close()


class Place(NamedTuple):
    """Where this process is connected, for messages only."""

    url: str = "Redis"
    user: str = "default"
    namespace: str = "<namespace>"


_place = Place()


def connect(settings: Settings, role: str) -> Clients:
    """Clients for `role` (scheduler, worker, cli …); nothing is sent before the first call, except to a cluster.

    Raises Unavailable if no Redis is known or a cluster can't be reached, DefinitionError for a wrong URL.
    """
    global _place
    if settings.redis is None:
        raise Unavailable(NOT_RUNNING)
    address = settings.address()
    url = mask_url(settings.redis)
    _place = Place(url, address.username or "default", settings.namespace)
    timeout = script_timeout_s(address)
    block_ms = _block_ms(timeout)
    clock = f"{{{settings.namespace}:c}}:"
    with translate():
        scripts = _client(address, f"redsched-{role}", timeout, clock)
        reader = _client(address, f"redsched-{role}", block_ms / 1000 + timeout, clock)
    return Clients(scripts, reader, block_ms, url, settings.namespace, _reads(reader))


def script_timeout_s(address: Address) -> float:
    return float(address.options.get("socket_timeout", SCRIPT_TIMEOUT_S))


def reader_block_ms(settings: Settings) -> int:
    """How long one blocking read may wait on the server: always shorter than the socket's time-out (RD-109)."""
    return _block_ms(script_timeout_s(settings.address()))


def _block_ms(timeout_s: float) -> int:
    return max(MIN_BLOCK_MS, min(BLOCK_MS, int(timeout_s * 800)))


def _client(address: Address, name: str, timeout_s: float, clock: str) -> Redis:
    options = _named(address, name, timeout_s)
    if address.kind == "cluster":
        return _cluster(address, options, clock)
    if address.kind == "sentinel":
        return _sentinel(address, options)
    return _single(address, options)


def _named(address: Address, name: str, timeout_s: float) -> dict[str, Any]:
    """Every setting of a connection, by name, because a default of redis-py is another one in each major version."""
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    protocol = address.options.get("protocol", 2)
    return {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "client_name": name,
        "protocol": protocol,
        "legacy_responses": False,
        "decode_responses": False,
        "encoding": "utf-8",
        "encoding_errors": "strict",
        "socket_timeout": timeout_s,
        "socket_connect_timeout": address.options.get(
            "socket_connect_timeout", min(timeout_s, SCRIPT_TIMEOUT_S)
        ),
        "socket_read_size": 65536,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": MAX_CONNECTIONS,
        **_unsaid(protocol),
    }


def _unsaid(protocol: int) -> dict[str, Any]:
    """What redis-py would send on its own when it connects (CLIENT SETINFO, MAINT_NOTIFICATIONS): nothing."""
    from redis.maint_notifications import MaintNotificationsConfig

    # redis-py 8.0's cluster refuses the word with RESP2, even to say no; it never notifies there.
    quiet = {"maint_notifications_config": MaintNotificationsConfig(enabled=False)} if protocol == 3 else {}
    return {"driver_info": None, **quiet}


def _tcp() -> dict[str, Any]:
    import socket

    options = {getattr(socket, n): v for n, v in KEEPALIVE.items() if hasattr(socket, n)}
    return {"socket_keepalive": True, "socket_keepalive_options": options}


def _tls(address: Address) -> dict[str, Any]:
    """TLS options of the URL; certificates and host names are checked unless it says otherwise."""
    if not address.tls:
        return {}
    given = {name: value for name, value in address.options.items() if name.startswith("ssl_")}
    checks = {"ssl_cert_reqs": "required", "ssl_check_hostname": given.get("ssl_cert_reqs") != "none"}
    return {**checks, **given}


def _single(address: Address, options: dict[str, Any]) -> Redis:
    from redis import ConnectionPool
    from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

    from redsched.store.quick import Quick

    more: dict[str, Any] = {"retry_on_error": [], "health_check_interval": 0}
    if address.path:
        where: dict[str, Any] = {"connection_class": UnixDomainSocketConnection, "path": address.path}
    else:
        host, port = address.hosts[0]
        kind = SSLConnection if address.tls else Connection
        where = {"connection_class": kind, "host": host, "port": port, **_tcp(), **_tls(address)}
    return Quick.from_pool(ConnectionPool(**where, **options, **more))


def _sentinel(address: Address, options: dict[str, Any]) -> Redis:
    """A client that asks the sentinels for the master at each new connection. Their own login is its own option."""
    from redsched.store.quick import Quick

    login = {k: address.options.get(f"sentinel_{k}") for k in ("username", "password")}
    more = {"retry_on_error": [], "health_check_interval": 0, **_tcp()}
    tls = {"ssl": address.tls, **_tls(address)}
    soon = min(ASK_S, options["socket_connect_timeout"])
    asking = {**options, **more, **tls, **login, "db": 0}
    asking |= {"socket_timeout": soon, "socket_connect_timeout": soon}
    sentinel = _sentinels()(list(address.hosts), sentinel_kwargs=asking, **options, **more, **tls)
    master = sentinel.master_for(address.service, redis_class=Quick, connection_class=_to_master(address.tls))
    return cast("Redis", master)


def _sentinels() -> Any:
    """redis-py's, but for the question: what it asks names a new master only when all replicas follow it."""
    from redis.exceptions import ConnectionError, TimeoutError
    from redis.sentinel import MasterNotFoundError, Sentinel

    base: Any = Sentinel  # redis-py leaves it untyped

    class Sentinels(base):  # type: ignore[misc]
        def discover_master(self, service: str) -> tuple[str, int]:
            for number, sentinel in enumerate(self.sentinels):
                with contextlib.suppress(ConnectionError, TimeoutError):
                    if found := sentinel.sentinel_get_master_addr_by_name(service):
                        self.sentinels.insert(0, self.sentinels.pop(number))  # asked first from now on
                        return _text(found[0]), int(found[1])
            raise MasterNotFoundError(f"No master found for {service!r}")

    return Sentinels


def _to_master(tls: bool) -> type:
    """Connections that go with the master: what a former one still takes is lost when it follows the new one.

    redis-py leaves a master at READONLY only. But a failover that was asked for tells the former master some ten seconds
    late, so the sentinels are asked again each second; and one that steps down under a waiting read says UNBLOCKED.
    """
    from redis.exceptions import ConnectionError, RedisError, ResponseError
    from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

    base: Any = SentinelManagedSSLConnection if tls else SentinelManagedConnection

    class ToMaster(base):  # type: ignore[misc]  # redis-py leaves it untyped
        def check_health(self) -> None:
            """All connections of a pool go over together, because a process must not talk to two masters."""
            pool, now = self.connection_pool, time.monotonic()
            if now - getattr(pool, "asked", 0.0) > ASK_S:
                pool.asked = now
                with contextlib.suppress(RedisError, OSError):  # no sentinel answers: the master may be well
                    pool.get_master_address()
            if self._sock and pool.master_address != (self.host, self.port):
                self.disconnect()
                self.connect()

        def read_response(self, *args: Any, **named: Any) -> Any:
            try:
                return super().read_response(*args, **named)
            except ResponseError as error:
                if str(error).startswith("UNBLOCKED"):
                    self.disconnect()
                    raise ConnectionError("The previous master is now a replica") from error
                raise

    return ToMaster


def _cluster(address: Address, options: dict[str, Any], clock: str) -> Redis:
    from redis.cluster import ClusterNode

    from redsched.store.cluster import Cluster

    named = {k: v for k, v in options.items() if k != "db"}
    node: Any = ClusterNode  # redis-py leaves it untyped
    nodes = [node(host, port) for host, port in address.hosts]
    more: dict[str, Any] = {
        "require_full_coverage": True,
        "load_balancing_strategy": None,
        "reinitialize_steps": 5,
    }
    tls = {"ssl": True, **_tls(address)} if address.tls else {}
    client = Cluster(clock, startup_nodes=nodes, dynamic_startup_nodes=True, **named, **more, **_tcp(), **tls)
    return cast("Redis", client)


def _reads(reader: Any) -> Reads | None:
    if not hasattr(reader, "nodes_manager"):
        return None
    from redsched.store.cluster import Reads

    return Reads(reader)


def _pools(client: Any) -> Iterator[Any]:
    """The connection pools of a client: one, or one per node of a cluster."""
    if hasattr(client, "nodes_manager"):
        nodes = client.nodes_manager.nodes_cache.values()
        yield from (node.redis_connection.connection_pool for node in nodes if node.redis_connection)
    else:
        yield client.connection_pool


# ---- replies ----

Entry = tuple[bytes, dict[bytes, bytes]]


def stream_entries(reply: Any) -> list[tuple[bytes, list[Entry]]]:
    """What XREAD and XREADGROUP found, as [(stream, [(id, fields)])], whichever protocol brought it.

    RESP2 gives [[stream, entries]], RESP3 {stream: [entries]} or, unified, {stream: entries}; nothing is [], {} or None.
    An entry that was deleted meanwhile has no fields: it comes with {}.
    """
    return [(stream, [_entry(e) for e in _flat(entries)]) for stream, entries in _pairs(reply)]


def stream_names(reply: Any) -> list[bytes]:
    """Only the streams in which something was found."""
    return [stream for stream, _ in _pairs(reply)]


def _pairs(reply: Any) -> Any:
    if not reply:
        return ()
    return reply.items() if isinstance(reply, Mapping) else reply


def _flat(entries: Any) -> Any:
    """Take off the extra list level of redis-py's RESP3 shape: an entry begins with its id, a level with a list."""
    if len(entries) == 1 and (not entries[0] or isinstance(entries[0][0], list | tuple)):
        return entries[0]
    return entries


def _entry(entry: Any) -> Entry:
    ident, fields = entry
    if isinstance(fields, list | tuple):
        fields = dict(zip(fields[::2], fields[1::2], strict=True))
    return ident, fields or {}


# ---- what the server is, asked so that nobody's ACL LOG grows ----


class Server(NamedTuple):
    """What a server calls itself: `Valkey`, `9.1.2`, (9, 1)."""

    name: str
    version: str
    number: tuple[int, int]


def server(client: Redis) -> Server:
    """By HELLO, which every user may say; INFO is forbidden to many, and asking for it leaves a line in ACL LOG."""
    asked: Any = client
    # A cluster's client knows no node for a command without keys; any will do.
    any_node = {"target_nodes": asked.get_random_node()} if hasattr(client, "nodes_manager") else {}
    with translate():
        reply = asked.execute_command("HELLO", **any_node)
    pairs = reply if isinstance(reply, Mapping) else dict(zip(reply[::2], reply[1::2], strict=True))
    known = {_text(k): _text(v) for k, v in pairs.items() if isinstance(v, str | bytes)}
    name, version = known.get("server", "redis"), known.get("version", "0")
    numbers = [int(x) for x in re.findall(r"\d+", version)[:2]]
    return Server(name.capitalize(), version, (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0))


def allowed(client: Redis, key: str, calls: Sequence[str]) -> list[bool]:
    """Whether this user may say each of the calls (`HSET KEY f v`; KEY stands for `key`), without saying them."""
    ask: Any = client.eval
    with translate():
        return [bool(x) for x in ask(ALLOWED, 1, key, *calls)]


# A server before 7.0 can't tell, and a command that it does not know is not forbidden: true, the call itself will show.
ALLOWED: Final = """
local function ask(call)
  local words = {}
  for word in string.gmatch(call, '%S+') do words[#words + 1] = word == 'KEY' and KEYS[1] or word end
  local ok, may = pcall(redis.acl_check_cmd, unpack(words))
  return (not ok or may) and 1 or 0
end
local found = {}
for i, call in ipairs(ARGV) do found[i] = ask(call) end
return found
"""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


# ---- errors ----

WORDS: Final = {
    "ReadOnlyError": "READONLY",
    "BusyLoadingError": "LOADING",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "OutOfMemoryError": "OOM",
    "NoPermissionError": "NOPERM",
    "NoScriptError": "NOSCRIPT",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "ClusterCrossSlotError": "CROSSSLOT",
    "MasterNotFoundError": "NOMASTER",
    "SlotNotCoveredError": "CLUSTERDOWN",
    "MaxConnectionsError": "MAXCONNECTIONS",
}
# Answers that mean: this call did not run. Each with what to do about it.
DID_NOT_RUN: Final = {
    "READONLY": "is a read-only replica; after a failover the next try finds the new master, else point the URL at it",
    "LOADING": "is still loading its data; it answers when that is done",
    "MASTERDOWN": "is a replica that has lost its master; wait for the failover or point the URL at the master",
    "CLUSTERDOWN": "is a cluster with slots that no node serves; see CLUSTER INFO on a node",
    "TRYAGAIN": "is a cluster that moves these keys to another node; try again",
    "BUSY": "is busy with somebody's long script; try again, or end that script with SCRIPT KILL",
    "OOM": "has no memory left and refuses writes; free some or raise maxmemory, nothing is lost meanwhile",
    "MISCONF": "refuses writes because it can't save to disk; look for a full disk in its log",
    "NOREPLICAS": "refuses writes because too few replicas are connected (min-replicas-to-write)",
    "UNBLOCKED": "ended a waiting read because the instance changed its role; try again",
    "NOSCRIPT": "lost a script twice in one call; does something flush functions without pause?",
    "MOVED": "is part of a cluster; write redis+cluster://host:port",
    "ASK": "is part of a cluster; write redis+cluster://host:port",
    "NOMASTER": "has no master that the sentinels agree on; check the service's name and the sentinels",
    "NOSENTINEL": "is no sentinel; write redis://host:port for a Redis itself",
    "MAXCONNECTIONS": f"has {MAX_CONNECTIONS} connections from this process already",
    "NOAUTH": "wants a login; put user:password@ into the URL, or give --username and --password",
    "WRONGPASS": "refuses this user and password; correct them (in a URL, percent-encode the password)",
}
CONNECTING: Final = re.compile(
    r"connecting to|timeout connecting|no connection available|max number of clients|previous master is now"
    r"|invalid database|error setting client name|certificate|invalid username or password",
    re.IGNORECASE,
)


class translate:
    """`with translate():` turns what redis-py raises into Unavailable, MayHaveHappened or RedschedError."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and (ours := translated(error)):
            raise ours from error


def translated(error: Exception) -> RedschedError | None:
    """Our error for one of redis-py; None if it is not one of redis-py's (ours, a bug): let it pass."""
    from redis.exceptions import (
        ConnectionError,
        RedisClusterException,
        RedisError,
        ResponseError,
        TimeoutError,
    )

    if not isinstance(error, RedisError | RedisClusterException | OSError):
        return None
    text = " ".join(str(error).split()) or type(error).__name__
    word = _word(error, text)
    if word == "NOPERM":
        return Unavailable(_no_permission(text))
    if word in DID_NOT_RUN:
        return Unavailable(
            f"{_place.url} {DID_NOT_RUN[word]} ({word}: {_short(text.removeprefix(word + ' '))})"
        )
    if "DB index is out of range" in text or "Invalid Database" in text:
        return DefinitionError(f"{_place.url} has no such database; most have 0 to 15, a cluster only 0")
    misused = isinstance(error, RedisClusterException) and "connect" not in text and _unsent(error)
    if isinstance(error, ConnectionError | TimeoutError | RedisClusterException | OSError) and not misused:
        return _lost(error, text)
    kind = "refused a call" if isinstance(error, ResponseError) else "could not be asked"
    return RedschedError(f"{_place.url} {kind}: {_short(text)}")


def _word(error: Exception, text: str) -> str:
    """The first word of the server's reply; redis-py takes it off for the classes that it knows."""
    code = getattr(error, "status_code", None)
    if isinstance(code, str) and code != "ERR":
        return code
    name = type(error).__name__
    if text.startswith(
        ("ACL failure in script", "The user executing the script can't")
    ):  # the latter is 7.0's
        return "NOPERM"
    if "Function not found" in text:
        return "NOSCRIPT"
    if text.startswith("unknown command 'SENTINEL'"):
        return "NOSENTINEL"
    if name == "AuthenticationError":
        return "NOAUTH" if "required" in text.lower() else "WRONGPASS"
    if "called without any password configured" in text:
        return "WRONGPASS"
    return WORDS.get(name) or text.partition(" ")[0]


def _lost(error: Exception, text: str) -> Unavailable:
    """No reply: it did not happen if the connection could not even be made, else nobody knows."""
    if _unsent(error):
        advice = "is it running, and is the URL right? `redsched doctor` looks closer"
        return Unavailable(f"{_place.url} can't be reached ({_short(text)}); {advice}")
    return MayHaveHappened(
        f"{_place.url}: the reply was lost ({_short(text)}); the call is safe to be said again"
    )


def _unsent(error: Exception) -> bool:
    """A cluster's error may hide a lost reply behind its search for other nodes: look at the whole chain there."""
    from redis.exceptions import ConnectionError, RedisClusterException, TimeoutError

    if not isinstance(error, RedisClusterException):
        return CONNECTING.search(str(error)) is not None
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, ConnectionError | TimeoutError) and not CONNECTING.search(str(link)):
            return False
        link = link.__cause__ or link.__context__
    return True


def _no_permission(text: str) -> str:
    """NOPERM, with the right that is missing: the server names a command, but never the key or its pattern."""
    command = re.search(r"'([^']+)' command", text)
    if command:
        missing = f"lacks the right to a command: ACL SETUSER {_place.user} +{command[1]}"
    elif "command or subcommand" in text:
        missing = "lacks the right to a command that a script says: `redsched doctor` names it"
    elif "channel" in text:
        missing = "lacks the right to a channel, and redsched uses none: another program's call"
    else:
        missing = f"lacks the right to redsched's keys: ACL SETUSER {_place.user} ~{{{_place.namespace}:*"
    return f"{_place.url}: user '{_place.user}' {missing} (NOPERM: {_short(text)})"


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "..."
