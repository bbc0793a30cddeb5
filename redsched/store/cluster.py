"""Redis Cluster: calls that are never sent twice, one clock for each cell, and reads that wait for many slots at once.

redis-py's cluster pipeline says lost calls again by itself, and one blocking read can't name keys of two slots. So the
pipeline is told not to, and each slot's read stands on a connection of its own: one `poll` waits for all of them.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis.cluster import ClusterPipeline, RedisCluster
from redis.exceptions import (
    AskError,
    ConnectionError,
    MovedError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

Words = tuple[str | bytes | int, ...]

# The place of the first key among a command's words, where it is not the second one.
FIRST_KEY: Final = {"EVALSHA": 3, "EVAL": 3, "FCALL": 3}
KEYLESS: Final = {"TIME"}
REDIRECTED: Final = (AskError, TryAgainError)  # a MOVED is an AskError to redis-py; none of them has run
REDIRECTS: Final = 3
REDIRECT_PAUSE_S: Final = 0.02


class Aimed(RedisCluster):
    """Knows where a call goes without asking a server for its keys, as redis-py does at every FCALL."""

    def determine_slot(self, *words: Any) -> int | None:
        key = _first_key(words) if str(words[0]).upper() in FIRST_KEY else None
        found: int | None = super().determine_slot(*words) if key is None else self.keyslot(key)
        return found


class Cluster(Aimed):
    """A client of a cluster. `clock` is a key whose node's clock is meant by `time()`."""

    def __init__(self, clock: str, **options: Any) -> None:
        super().__init__(**options)
        self._clock = clock

    def execute_command(self, *words: Any, **options: Any) -> Any:
        """A script goes the way of a pipeline, because redis-py would follow an ASK with it."""
        if words[0] != "FCALL":
            return super().execute_command(*words, **options)
        pipe = self.pipeline()
        pipe.execute_command(*words)
        return pipe.execute()[0]

    def time(self, **_: Any) -> tuple[int, int]:
        found: tuple[int, int] = self.execute_command(
            "TIME", target_nodes=self.get_node_from_key(self._clock)
        )
        return found

    def function_load(self, code: str, replace: bool | None = False) -> str:
        """On every primary, also if some have it already: one that joined or came back lacks it."""
        for node in self.get_primaries():
            try:
                node.redis_connection.function_load(code, replace)
            except ResponseError as error:
                if "already exists" not in str(error):
                    raise
            except (ConnectionError, TimeoutError):
                self.nodes_manager.initialize()
                raise
        return "OK"

    def pipeline(self, transaction: bool | None = None, shard_hint: None = None) -> Pipeline:
        return Pipeline(
            nodes_manager=self.nodes_manager,
            commands_parser=self.commands_parser,
            result_callbacks=self.result_callbacks,
            cluster_response_callbacks=self.cluster_response_callbacks,
            reinitialize_steps=self.reinitialize_steps,
            retry=self.retry,
            lock=self._lock,
            transaction=False,
        )


class Pipeline(Aimed, ClusterPipeline):
    """All nodes are written to before the first is read. Only what did not run (MOVED, ASK) is said again."""

    def time(self, **_: Any) -> Any:
        """By the clock of the node that the other calls of this pipeline go to."""
        return self.execute_command("TIME")

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack = list(self._execution_strategy.command_queue)
        try:
            replies = self._sent(stack)
            for _ in range(REDIRECTS):
                if not (moved := [i for i, reply in enumerate(replies) if isinstance(reply, MovedError)]):
                    break
                for i in moved:
                    self.nodes_manager.move_slot(replies[i])
                for i, reply in zip(moved, self._sent([stack[i] for i in moved]), strict=True):
                    replies[i] = reply
            for i, reply in enumerate(replies):
                if isinstance(reply, AskError):
                    replies[i] = self._asked(stack[i].args)
        finally:
            self.reset()
        if raise_on_error:
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        return replies

    def _sent(self, stack: list[Any]) -> list[Any]:
        self._aim(stack)
        replies = list(self.send_cluster_commands(stack, raise_on_error=False, allow_redirections=False))
        self._raise_lost(replies)
        return replies

    def _aim(self, stack: Iterable[Any]) -> None:
        """Name each call's node, because redis-py would ask a server for the keys of each EVALSHA."""
        keys = [(c, _first_key(c.args)) for c in stack]
        clock = next((key for _, key in keys if key is not None), None)
        for command, key in keys:
            command.options["target_nodes"] = self.get_node_from_key(clock if key is None else key)

    def _raise_lost(self, replies: Iterable[Any]) -> None:
        """A node that did not answer: its calls may have run, and the answers of the others are not all there is."""
        for reply in replies:
            if isinstance(reply, ConnectionError | TimeoutError):
                self.nodes_manager.initialize()
                raise ConnectionError(f"a node did not answer: {type(reply).__name__}") from reply

    def _asked(self, words: Words) -> Any:
        """A key that may have gone ahead of its slot is looked for where it goes to.

        Not for a script, which would find only some of its cell there: it waits until the slot has moved.
        """
        if str(words[0]).upper() in FIRST_KEY:
            return TryAgainError("the slot of this cell moves to another node")
        try:
            return self.parent_execute_command(*words)
        except ConnectionError:
            raise
        except RedisError as error:
            return error


def _raise_refused(answers: Mapping[str, Any]) -> None:
    for answer in answers.values():
        if isinstance(answer, ResponseError):
            raise answer


def _first_key(words: Sequence[Any]) -> Any:
    name = str(words[0]).upper()
    return None if name in KEYLESS else words[FIRST_KEY.get(name, 1)]


@dataclass(slots=True)
class _Standing:
    """A read that the server has not answered yet."""

    connection: Any
    pool: Any
    until: float


@dataclass(slots=True)
class Reads:
    """Reads of keys in many slots, said on one connection each and waited for together.

    `first` leaves those that have no answer yet standing, so it is for reads that take nothing (XREAD). `take` leaves none.
    """

    client: Cluster
    heard: dict[tuple[str, str], bytes] = field(
        default_factory=dict
    )  # the last entry, by consumer and stream
    _standing: dict[str, _Standing] = field(default_factory=dict)

    def first(self, wanted: Mapping[str, Words], ms: int, stand_s: float) -> dict[str, Any]:
        """The answers that hold something, by key, as soon as there is one; {} after `ms`. A read stands for `stand_s`."""
        with self._whole():
            self._drop(self._standing.keys() - wanted.keys())
            end = time.monotonic() + ms / 1000
            while True:
                self._ask(wanted, stand_s)
                if found := self._answers(max(0.0, end - time.monotonic())):
                    _raise_refused(found)
                    return found
                if time.monotonic() >= end:
                    return {}

    def every(self, wanted: Mapping[str, Words]) -> dict[str, Any]:
        """All answers that hold something, by key, refusals among them; for reads that don't wait."""
        with self._whole():
            self._ask(wanted, 0)
            return {key: reply for key in wanted if (reply := self._answer(key))}

    def take(self, wanted: Mapping[str, Words], stand_s: float) -> tuple[dict[str, Any], list[str]]:
        """The answers that hold something, as soon as there is one, refusals among them; and the keys whose read was withdrawn.

        A read that takes what it finds must not go on when nobody listens. One that was withdrawn may have taken
        something and not told: that is pending for this consumer now.
        """
        with self._whole():
            self._ask(wanted, stand_s)
            found: dict[str, Any] = {}
            while self._standing and not found:
                found = self._answers(stand_s)
            withdrawn = self._withdraw(found)
            return found, withdrawn

    def reset(self) -> None:
        """In a forked child: forget the connections, which are the parent's."""
        self._standing.clear()

    def close(self) -> None:
        self._drop(list(self._standing))

    # ----

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Whatever ends a read in its middle leaves no half-read connection behind; after a lost one, nodes are looked up anew."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, ConnectionError | TimeoutError):
                self.client.nodes_manager.initialize()
            raise

    def _ask(self, wanted: Mapping[str, Words], stand_s: float) -> None:
        for key, words in wanted.items():
            if key not in self._standing:
                pool = self.client.get_node_from_key(key).redis_connection.connection_pool
                connection = pool.get_connection()
                until = time.monotonic() + stand_s + (connection.socket_timeout or 0)
                self._standing[key] = _Standing(connection, pool, until)
                connection.send_command(*words)

    def _answers(self, seconds: float) -> dict[str, Any]:
        """What has come within so long, waiting for the first."""
        waiting = select.poll()
        keys = {}
        for key, read in self._standing.items():
            keys[read.connection._sock.fileno()] = key
            waiting.register(read.connection._sock, select.POLLIN)
        ready = [keys[fd] for fd, _ in waiting.poll(seconds * 1000)]
        found = {key: reply for key in ready if (reply := self._answer(key))}
        now = time.monotonic()
        for key, read in self._standing.items():
            if now > read.until:
                raise TimeoutError(f"no answer to a read of {key}")
        return found

    def _answer(self, key: str) -> Any:
        read = self._standing[key]
        try:
            reply = read.connection.read_response()
        except REDIRECTED:
            # The slot moves or has moved: look where it is now. The pause is for one that takes its time.
            self._release(key)
            self.client.nodes_manager.initialize()
            time.sleep(REDIRECT_PAUSE_S)
            return None
        except ResponseError as refusal:
            reply = refusal
        self._release(key)
        return reply

    def _withdraw(self, found: dict[str, Any]) -> list[str]:
        """Half-close what still stands, and wait until the server has hung up: from then on it gives nothing to that read."""
        for read in self._standing.values():
            # Not SSLSocket's own shutdown, which would forget how to read what is still to come.
            socket.socket.shutdown(read.connection._sock, socket.SHUT_WR)
        withdrawn = []
        for key, read in list(self._standing.items()):
            try:
                if reply := read.connection.read_response():
                    found[key] = reply
            except ConnectionError:
                withdrawn.append(key)
            except ResponseError:
                pass  # the next read is refused, too
            self._drop([key])
        return withdrawn

    def _release(self, key: str) -> None:
        read = self._standing.pop(key)
        read.pool.release(read.connection)

    def _drop(self, keys: Collection[str]) -> None:
        for key in keys:
            read = self._standing.pop(key)
            read.connection.disconnect()
            read.pool.release(read.connection)
