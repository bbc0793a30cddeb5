"""The clients: nothing is sent twice, replies have one shape, and each error says whether the call happened."""

from __future__ import annotations

import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from redis import Redis

from redsched.errors import DefinitionError, MayHaveHappened, RedschedError, Unavailable
from redsched.settings import Settings
from redsched.store.connect import (
    Clients,
    allowed,
    connect,
    reader_block_ms,
    server,
    stream_entries,
    translate,
)
from tests.conftest import Server
from tests.matrix.places import Place
from tests.proxy import Proxy

NewServer = Callable[..., Server]
Connect = Callable[..., Clients]


@pytest.fixture
def to() -> Iterator[Connect]:
    """Clients of a URL, closed at the end."""
    made: list[Clients] = []

    def make(url: str, **more: Any) -> Clients:
        made.append(connect(Settings(redis=url, **more), "test"))
        return made[-1]

    yield make
    for clients in made:
        clients.close()


def with_option(url: str, name: str, value: object) -> str:
    """The URL may have options already."""
    place, _, query = url.partition("?")
    return f"{place}?{urlencode({**dict(parse_qsl(query)), name: value})}"


def nodes_of(client: Any) -> list[Any]:
    """One client for each server behind a client."""
    return [n.redis_connection for n in client.get_nodes()] if hasattr(client, "nodes_manager") else [client]


def fails(call: Callable[[], Any]) -> RedschedError:
    with pytest.raises(RedschedError) as caught, translate():
        call()
    assert "\n" not in str(caught.value)
    return caught.value


def unavailable(call: Callable[[], Any], *words: str) -> None:
    """It did not happen, and the message holds the words."""
    error = fails(call)
    assert type(error) is Unavailable, error
    assert all(word in str(error) for word in words), error


# ---- settings of the clients


# Replicas and sentinels; and `info`, with which the test looks.
NAMES = ("client|setname", "client|getname")
OTHERS_SAY = {f"cmdstat_{c}" for c in ("replconf", "publish", "subscribe", "ping", "info")}


def test_nothing_is_said_on_its_own_but_the_name(redis_url: str, place: Place, to: Connect) -> None:
    """No CLIENT SETINFO, no MAINT_NOTIFICATIONS: an ACL may forbid them, and 7.0 does not know them."""
    for protocol in (2, 3):
        clients = nodes_of(to(with_option(redis_url, "protocol", protocol)).scripts)
        with ExitStack() as stack:
            behind = [stack.enter_context(Redis(port=server.port)) for server in place.servers]
            before = [b.info("commandstats") for b in behind]
            for client in clients:
                client.connection_pool.disconnect()
                assert client.client_getname() == "redsched-test"
            after = [b.info("commandstats") for b in behind]
        said = {
            command
            for old, new in zip(before, after, strict=True)
            for command, seen in new.items()
            if old.get(command, {"calls": 0})["calls"] < seen["calls"]
        }
        assert said - OTHERS_SAY <= {f"cmdstat_{c}" for c in ("hello", "auth", "select", *NAMES)}
        assert {f"cmdstat_{c}" for c in NAMES} <= said


def test_a_script_is_never_sent_twice(proxy: Proxy, to: Connect) -> None:
    """One lost reply, one late reply: each call ran once, and the caller knows that it can't tell."""
    clients = to(proxy.url + "?socket_timeout=0.3")
    clients.scripts.delete("{rs:c}:once")
    proxy.cut_next_reply("EVAL")
    error = fails(lambda: clients.scripts.eval("return redis.call('INCR', KEYS[1])", 1, "{rs:c}:once"))
    assert type(error) is MayHaveHappened and "said again" in str(error)
    assert clients.scripts.get("{rs:c}:once") == b"1"
    proxy.hold_next_reply("EVAL")
    error = fails(lambda: clients.scripts.eval("return redis.call('INCR', KEYS[1])", 1, "{rs:c}:once"))
    assert type(error) is MayHaveHappened
    assert clients.scripts.get("{rs:c}:once") == b"2"


def test_a_pipeline_is_never_sent_twice(proxy: Proxy, to: Connect) -> None:
    clients = to(proxy.url)
    clients.scripts.delete("{rs:c}:once")
    proxy.cut_next_reply("INCR")
    pipe = clients.scripts.pipeline(transaction=False)
    pipe.incr("{rs:c}:once")
    pipe.incr("{rs:c}:once")
    assert type(fails(pipe.execute)) is MayHaveHappened
    assert clients.scripts.get("{rs:c}:once") == b"2"


def test_a_connection_that_was_closed_while_idle_is_replaced_unseen(proxy: Proxy, to: Connect) -> None:
    clients = to(proxy.url)
    clients.scripts.ping()
    proxy.cut_all()
    connection = clients.scripts.connection_pool._available_connections[0]
    assert select.select([connection._sock], [], [], 5)[0]  # the kernel has seen the end
    assert clients.scripts.ping()
    assert proxy.connections == 2


@pytest.mark.parametrize(("timeout", "block"), [(None, 4000), (1, 800), (0.1, 80), (60, 4000)])
def test_a_blocking_read_is_shorter_than_every_timeout(
    redis_url: str, timeout: float | None, block: int
) -> None:
    url = with_option(redis_url, "socket_timeout", timeout) if timeout else redis_url
    assert reader_block_ms(Settings(redis=url)) == block < 1000 * (timeout or 5)


def test_idle_reads_with_a_short_timeout_are_no_errors(redis_url: str, place: Place, to: Connect) -> None:
    """RD-109: no error and no new connection while nothing comes."""
    clients = to(with_option(redis_url, "socket_timeout", 0.1))
    clients.reader.xread({"{rs:c}:idle": "$"}, block=1)
    with ExitStack() as stack:
        behind = [stack.enter_context(Redis(port=server.port)) for server in place.servers]

        def made() -> int:
            return sum(b.info("stats")["total_connections_received"] for b in behind)

        made()  # on connections of its own, from here on
        before = made()
        for _ in range(8):
            assert stream_entries(clients.reader.xread({"{rs:c}:idle": "$"}, block=clients.block_ms)) == []
        assert made() == before


# ---- shapes


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("path", ["reader", "raw"])
def test_stream_entries_have_one_shape(redis_url: str, to: Connect, protocol: int, path: str) -> None:
    """RD-110: also for an entry deleted after its delivery, several streams, and nothing."""
    clients = to(with_option(redis_url, "protocol", protocol))
    one, two = (f"{{rs:c}}:{protocol}{path}{i}".encode() for i in (1, 2))
    clients.scripts.delete(one, two)
    for key in (one, two):
        clients.scripts.xgroup_create(key, "g", mkstream=True)
    ids = [clients.scripts.xadd(key, {"a": b"\xff", "b": n}) for n, key in enumerate((one, one, two))]

    def read(mark: str) -> list[Any]:
        if path == "reader":
            return stream_entries(
                clients.reader.xreadgroup("g", "c", {one: mark, two: mark}, count=9, block=1)
            )
        words: tuple[Any, ...] = ("GROUP", "g", "c", "COUNT", 9, "BLOCK", 1, "STREAMS", one, two, mark, mark)
        return stream_entries(clients.reader.execute_command("XREADGROUP", *words))

    everything = [
        (one, [(ids[0], {b"a": b"\xff", b"b": b"0"}), (ids[1], {b"a": b"\xff", b"b": b"1"})]),
        (two, [(ids[2], {b"a": b"\xff", b"b": b"2"})]),
    ]
    assert read(">") == everything
    assert read(">") == []
    clients.scripts.xdel(one, ids[0])
    everything[0][1][0] = (ids[0], {})
    assert read("0") == everything
    clients.scripts.xdel(one, ids[1])
    assert read("0")[0] == (one, [(ids[0], {}), (ids[1], {})])


@pytest.mark.parametrize(
    "reply",
    [
        [[b"s", [(b"1-0", {b"a": b"1"})]]],
        [[b"s", [[b"1-0", [b"a", b"1"]]]]],
        {b"s": [[(b"1-0", {b"a": b"1"})]]},
        {b"s": [(b"1-0", {b"a": b"1"})]},
        {b"s": [[b"1-0", [b"a", b"1"]]]},
    ],
)
def test_every_shape_that_redis_py_ever_had(reply: Any) -> None:
    assert stream_entries(reply) == [(b"s", [(b"1-0", {b"a": b"1"})])]


def test_no_entries_in_every_shape() -> None:
    nothing: list[Any] = [None, [], {}]
    assert [stream_entries(x) for x in nothing] == [[], [], []]
    assert stream_entries({b"s": [[]]}) == stream_entries({b"s": []}) == [(b"s", [])]


# ---- what an error means


def test_without_a_url(to: Connect) -> None:
    with pytest.raises(Unavailable, match="redsched up"):
        connect(Settings(), "test")


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:secret@127.0.0.1:1",
        "unix://me:secret@/nowhere/x.sock",
        "redis://me:secret@no-such-host.invalid:1",
        "redis+sentinel://me:secret@127.0.0.1:1/mine",
        "redis+cluster://me:secret@127.0.0.1:1",
    ],
)
def test_nobody_there_means_that_it_did_not_happen(url: str, to: Connect) -> None:
    error = fails(lambda: to(url).scripts.ping())
    assert type(error) is Unavailable
    assert "secret" not in str(error) and "***@" in str(error)


def test_a_dead_server_is_told_apart_from_a_lost_reply(new_server: NewServer, to: Connect) -> None:
    live = new_server()
    clients = to(live.url)
    clients.scripts.ping()
    live.kill()
    unavailable(lambda: clients.scripts.set("{rs:c}:x", 1), "can't be reached", "doctor")
    live.start()
    assert clients.scripts.set("{rs:c}:x", 1)


def test_a_server_that_dies_in_a_call_may_have_done_it(new_server: NewServer, to: Connect) -> None:
    live = new_server()
    clients = to(live.url)
    live.signal(signal.SIGSTOP)
    timer = threading.Timer(0.1, live.kill)
    timer.start()
    clients.reader.connection_pool.reset()
    error = fails(lambda: clients.scripts.set("{rs:c}:x", 1))
    timer.join()
    assert isinstance(error, Unavailable)


def test_logins(new_server: NewServer, to: Connect) -> None:
    """RD-106: the weird password in both forms, on database 3, and what wrong ones are told."""
    live = new_server()
    weird, encoded = "p@ss:w/rd#1?x%20=+&", "p%40ss%3Aw%2Frd%231%3Fx%2520%3D%2B%26"
    live.say("ACL", "SETUSER", "weird", "on", f">{weird}", "~*", "+@all")
    host = live.url.removeprefix("redis://").removesuffix("/0")
    for protocol in (2, 3):
        option = f"?protocol={protocol}"
        assert to(f"redis://weird:{encoded}@{host}/3{option}").scripts.incr("{rs:c}:db") == 2 * protocol - 3
        apart = to(f"redis://{host}{option}", username="weird", password=weird, db=3)
        assert apart.scripts.incr("{rs:c}:db") == 2 * protocol - 2
        wrong = to(f"redis://weird:wrong@{host}{option}")
        unavailable(lambda: wrong.scripts.ping(), "WRONGPASS", "weird:***@", "percent-encode")  # noqa: B023
    assert live.say("INFO", "keyspace").keys() == {"db3"}
    live.say("CONFIG", "SET", "requirepass", "x")
    for protocol in (2, 3):
        unavailable(lambda: to(f"redis://{host}?protocol={protocol}").scripts.ping(), "NOAUTH", "--password")  # noqa: B023


def test_no_such_database(redis_url: str, to: Connect) -> None:
    error = fails(lambda: to(redis_url, db=99).scripts.ping())
    assert type(error) is DefinitionError and re.search("no such database|only database 0", str(error))


@pytest.mark.parametrize("header", ["", "#!lua\n"])
def test_a_full_server_refuses_before_anything_happened(
    new_server: NewServer, to: Connect, header: str
) -> None:
    live = new_server()
    clients = to(live.url)
    live.say("CONFIG", "SET", "maxmemory", 1)
    unavailable(lambda: clients.scripts.set("{rs:c}:x", 1), "OOM", "maxmemory")
    write = f"{header}return redis.call('SET', KEYS[1], 1)"
    unavailable(lambda: clients.scripts.eval(write, 1, "{rs:c}:x"), "OOM")


@pytest.mark.parametrize("header", ["", "#!lua\n"])
def test_a_replica_refuses(new_server: NewServer, to: Connect, header: str) -> None:
    live = new_server()
    clients = to(live.url)
    live.say("REPLICAOF", "127.0.0.1", 1)
    write = f"{header}return redis.call('SET', KEYS[1], 1)"
    unavailable(lambda: clients.scripts.eval(write, 1, "{rs:c}:x"), "READONLY", "master")
    live.say("CONFIG", "SET", "replica-serve-stale-data", "no")
    unavailable(lambda: clients.scripts.get("{rs:c}:x"), "MASTERDOWN")


def test_a_busy_server_refuses_and_is_well_again(new_server: NewServer, to: Connect) -> None:
    live = new_server("--busy-reply-threshold", "20")
    clients = to(live.url)
    clients.scripts.ping()
    other = to(live.url)
    other.scripts.ping()
    endless = threading.Thread(target=lambda: fails(lambda: clients.scripts.eval("while true do end", 0)))
    endless.start()
    deadline = time.monotonic() + 5
    refused = None
    while refused is None and time.monotonic() < deadline:
        try:
            with translate():
                other.scripts.set("{rs:c}:x", 1)
        except Unavailable as error:
            refused = str(error)
    assert refused and "BUSY" in refused and "SCRIPT KILL" in refused
    other.scripts.script_kill()
    endless.join()
    assert other.scripts.ping()


def test_a_missing_right_is_named(new_server: NewServer, to: Connect) -> None:
    """RD-107: the server names the command but not the key, so we do."""
    live = new_server()
    live.say("ACL", "SETUSER", "me", "on", ">pw", "~{other:*", "+@all", "-@dangerous", "-xadd")
    clients = to(live.url.replace("://", "://me:pw@"), namespace="mine")
    unavailable(lambda: clients.scripts.xadd("{other:c}:x", {"a": 1}), "NOPERM", "ACL SETUSER me +xadd")
    unavailable(lambda: clients.scripts.config_get("x"), "+config|get")
    unavailable(lambda: clients.scripts.set("{mine:c}:x", 1), "ACL SETUSER me ~{mine:*")
    in_script = "#!lua\nreturn redis.call('XADD', KEYS[1], '*', 'a', 'b')"
    # Redis 7.0 does not say which command of a script it was.
    named = "+xadd" if server(clients.scripts).number > (7, 0) else "doctor"
    unavailable(lambda: clients.scripts.eval(in_script, 1, "{other:c}:x"), "NOPERM", named)
    elsewhere = "return redis.call('SET', '{mine:c}:x', 1)"
    unavailable(lambda: clients.scripts.eval(elsewhere, 0), "NOPERM", "~{mine:*")
    live.say("ACL", "LOG", "RESET")
    assert allowed(clients.scripts, "{other:c}:x", ["HSET KEY f v", "XADD KEY * f v", "INFO", "NO SUCH"]) == [
        *(True, False, False, True)
    ]
    assert server(clients.scripts).number >= (7, 0)
    assert live.say("ACL", "LOG") == []


def test_a_loading_server_did_not_take_the_call(new_server: NewServer, to: Connect) -> None:
    slow = ("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
    live = new_server("--rdbcompression", "no", *slow)
    live.say("EVAL", "for i = 1, 300 do redis.call('SET', i, string.rep('x', 10000)) end", 0)
    live.say("SAVE")
    live.kill()
    clients = to(live.url)
    starter = threading.Thread(target=live.start)
    starter.start()
    refused = ""
    while "LOADING" not in refused and starter.is_alive():
        try:
            with translate():
                clients.scripts.get("1")
        except Unavailable as error:
            refused = f"{type(error).__name__} {error}"
    starter.join()
    assert refused.startswith("Unavailable") and "LOADING" in refused
    assert clients.scripts.strlen("300") == 10000


def test_errors_that_are_not_redis_pass_unchanged() -> None:
    with pytest.raises(KeyError), translate():
        raise KeyError("x")
    with pytest.raises(KeyboardInterrupt), translate():
        raise KeyboardInterrupt


def test_a_mistake_in_a_call_is_no_outage(redis_url: str, to: Connect) -> None:
    clients = to(redis_url)
    clients.scripts.set("{rs:c}:text", "x")
    assert type(fails(lambda: clients.scripts.hget("{rs:c}:text", "f"))) is RedschedError


# ---- other servers


def test_a_forked_child_leaves_its_parents_connections_alone(redis_url: str, to: Connect) -> None:
    clients = to(redis_url)
    mine = clients.scripts.client_id()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        clients.reset()
        os.write(write, str(clients.scripts.client_id()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        assert int(answer.read()) != mine
    assert clients.scripts.client_id() == mine


@pytest.mark.parametrize("protocol", [2, 3])
def test_sentinel_finds_the_master(new_server: NewServer, tmp_path: Path, to: Connect, protocol: int) -> None:
    master = new_server()
    conf = tmp_path / "sentinel.conf"
    conf.write_text(f"sentinel monitor mine 127.0.0.1 {master.port} 1\n")
    sentinel = new_server(str(conf), "--sentinel")
    url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/mine/3?protocol={protocol}"
    clients = to(url)
    clients.scripts.set("{rs:c}:x", 1)
    assert "db3" in master.say("INFO", "keyspace")
    assert clients.scripts.client_getname() == clients.reader.client_getname() == "redsched-test"
    unavailable(lambda: to(url.replace("/mine", "/other")).scripts.ping(), "NOMASTER", "service")
    unavailable(lambda: to(f"redis+sentinel://127.0.0.1:{master.port}/mine").scripts.ping(), "no sentinel")


def test_cluster(new_server: NewServer, to: Connect) -> None:
    node = new_server("--cluster-enabled", "yes")
    url = node.url.replace("redis://", "redis+cluster://").removesuffix("/0")
    node.say("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    deadline = time.monotonic() + 10
    while "cluster_state:ok" not in str(node.say("CLUSTER", "INFO")):
        assert time.monotonic() < deadline
    clients = to(url)
    assert server(clients.scripts).number >= (7, 0)
    assert allowed(clients.scripts, "{rs:c}:x", ["INFO"]) == [True]
    entry = clients.scripts.xadd("{rs:p:a}:stream", {"a": 1})
    assert stream_entries(clients.reader.xread({"{rs:p:a}:stream": "0"}, block=10)) == [
        (b"{rs:p:a}:stream", [(entry, {b"a": b"1"})])
    ]
    with closing(to(node.url).scripts) as plain:
        plain.ping()
    unavailable(lambda: to(url.replace(str(node.port), "1")), "can't be reached")
