"""What processes of a simulation connect with: redis-py's own client whose every round trip goes through the world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from redis import ConnectionPool, Redis
from redis.client import EMPTY_RESPONSE, Pipeline
from redis.exceptions import ResponseError

from redsched.store import Store
from redsched.store.connect import Clients

if TYPE_CHECKING:
    from redsched.settings import Settings

Words = tuple[Any, ...]
RoundTrip = Callable[[Sequence[Words]], list[Any]]
# Longer than any simulated wait: what a blocking read waits for is news, or a time that its caller knows.
BLOCK_MS: Final = 600_000


class Line(Redis):
    """A client that never connects: `trip` takes the commands of one round trip and returns their replies."""

    def __init__(self, trip: RoundTrip) -> None:
        super().__init__(connection_pool=ConnectionPool(protocol=2, legacy_responses=False))
        self.trip = trip

    def execute_command(self, *args: Any, **options: Any) -> Any:
        (reply,) = self.trip([args])
        if isinstance(reply, Exception):
            if EMPTY_RESPONSE in options:
                return options[EMPTY_RESPONSE]
            raise reply
        return parsed(self.response_callbacks, args, options, reply)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        return Piped(self.trip, self.connection_pool, self.response_callbacks, False, shard_hint)


class Piped(Pipeline):
    def __init__(self, trip: RoundTrip, *args: Any) -> None:
        super().__init__(*args)
        self.trip = trip

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack, self.command_stack = self.command_stack, []
        replies = self.trip([args for args, _ in stack]) if stack else []
        for i, (args, options) in enumerate(stack):
            if not isinstance(replies[i], ResponseError):
                replies[i] = parsed(self.response_callbacks, args, options, replies[i])
            elif raise_on_error:
                raise replies[i]
        return replies


def parsed(callbacks: Any, args: Words, options: dict[str, Any], reply: Any) -> Any:
    """As redis-py's `parse_response`."""
    options.pop(EMPTY_RESPONSE, None)
    options.pop("keys", None)
    return callbacks[args[0]](reply, **options) if args[0] in callbacks else reply


def store(settings: Settings, trip: RoundTrip) -> Store:
    line = Line(trip)
    return Store(settings, Clients(line, line, BLOCK_MS, "simulation", settings.namespace))
