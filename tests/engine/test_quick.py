"""The quick way to Redis: as true as redis-py's where replies are lost, connections die and processes fork."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from redis.exceptions import ConnectionError, ResponseError

from redsched.errors import MayHaveHappened
from redsched.settings import Settings
from redsched.store.connect import Clients, connect, translate
from redsched.store.quick import FRESH_S, Quick
from tests.conftest import Server
from tests.proxy import Proxy

ECHO = """#!lua name=quicktest
redis.register_function('quick_echo', function(keys, args) return args[1] end)
redis.register_function('quick_count', function(keys, args) return redis.call('INCR', keys[1]) end)
"""


@pytest.fixture
def server(new_server: type[Server]) -> Server:
    made = new_server()
    made.say("FUNCTION", "LOAD", ECHO)
    return made


@pytest.fixture
def clients(server: Server) -> Iterator[Clients]:
    made = connect(Settings(redis=server.url), "test")
    yield made
    made.close()


def quick(clients: Clients) -> Quick:
    assert isinstance(clients.scripts, Quick)
    return clients.scripts


def connections(server: Server) -> int:
    return int(server.say("INFO", "stats")["total_connections_received"])


def test_values_of_all_kinds_come_back_as_bytes(clients: Clients) -> None:
    client = quick(clients)
    for value in (b"\x00\xff\r\n", "grün", 7, 2.5, b"x" * 300_000):
        said = value if isinstance(value, bytes) else str(value).encode()
        assert client.execute_command("FCALL", "quick_echo", 0, value) == said


def test_many_replies_keep_their_order_and_their_errors(clients: Clients) -> None:
    calls = [("FCALL", "quick_echo", 0, str(i)) for i in range(500)]
    calls.insert(250, ("FCALL", "nowhere", 0))
    replies = quick(clients).many(calls)
    assert isinstance(replies.pop(250), ResponseError)
    assert replies == [str(i).encode() for i in range(500)]


def test_one_connection_is_used_again_and_one_that_died_is_made_again(
    clients: Clients, server: Server
) -> None:
    client = quick(clients)
    client.execute_command("FCALL", "quick_echo", 0, "a")
    before = connections(server)
    for _ in range(20):
        client.execute_command("FCALL", "quick_echo", 0, "a")
    assert connections(server) == before + 1  # our own question
    server.restart(signal.SIGTERM)
    server.say("FUNCTION", "LOAD", ECHO)
    client._lines[0].used -= 2 * FRESH_S
    assert client.execute_command("FCALL", "quick_echo", 0, "b") == b"b"


def test_a_lost_reply_may_have_happened_and_is_never_taken_for_the_next(server: Server) -> None:
    with Proxy(server.url) as proxy:
        made = connect(Settings(redis=proxy.url), "test")
        client = quick(made)
        assert client.execute_command("FCALL", "quick_count", 1, "k") == 1
        proxy.cut_next_reply("FCALL")
        with pytest.raises(MayHaveHappened), translate():
            client.execute_command("FCALL", "quick_count", 1, "k")
        assert client.execute_command("FCALL", "quick_count", 1, "k") == 3
        made.close()


def test_a_read_that_is_broken_off_leaves_nothing_behind(clients: Clients) -> None:
    class Woken(BaseException):
        pass

    def wake(*_: object) -> None:
        raise Woken

    before = signal.signal(signal.SIGUSR1, wake)
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(Woken):
            clients.reader.execute_command("XREAD", "BLOCK", 4000, "STREAMS", "s", "$")
    finally:
        signal.signal(signal.SIGUSR1, before)
    clients.scripts.xadd("s", {"a": "b"})
    [[stream, entries]] = clients.reader.execute_command("XREAD", "STREAMS", "s", "0")
    assert stream == b"s" and len(entries) == 1


def test_threads_have_connections_of_their_own(clients: Clients) -> None:
    client, wrong = quick(clients), []

    def ask(name: str) -> None:
        wrong.extend(
            name
            for _ in range(300)
            if client.execute_command("FCALL", "quick_echo", 0, name) != name.encode()
        )

    threads = [threading.Thread(target=ask, args=(f"t{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and 1 <= len(client._lines) <= 8


def test_a_forked_child_leaves_its_parents_connections_alone(clients: Clients) -> None:
    client = quick(clients)
    client.execute_command("FCALL", "quick_echo", 0, "parent")
    pid = os.fork()
    if pid == 0:
        clients.reset()
        os._exit(0 if client.execute_command("FCALL", "quick_echo", 0, "child") == b"child" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.execute_command("FCALL", "quick_echo", 0, "still") == b"still"


def test_a_server_that_is_gone_is_an_error_each_time(server: Server) -> None:
    made = connect(Settings(redis=server.url), "test")
    client = quick(made)
    client.execute_command("FCALL", "quick_echo", 0, "a")
    server.kill()
    for _ in range(3):
        with pytest.raises((ConnectionError, OSError)):
            client.execute_command("FCALL", "quick_echo", 0, "a")
    made.close()
