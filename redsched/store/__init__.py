"""The state of an installation in Redis: pools, shards and the control cell behind one `Store`."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from redsched.keys import Keys
from redsched.store.audit import AuditStore
from redsched.store.control import ControlStore
from redsched.store.events import EventStore
from redsched.store.pool import PoolStore
from redsched.store.shard import ShardStore

if TYPE_CHECKING:
    from redsched.settings import Settings
    from redsched.store.connect import Clients
    from redsched.store.scripts import Scripts


# Nobody goes by a number of shards that he asked for longer ago.
TRUST_S = 5.0


class Store:
    """One process' way to Redis. Open it after a fork, or call `fork_safe_reset` in the child."""

    def __init__(self, settings: Settings, clients: Clients, *, plain: bool = False) -> None:
        from redsched.store.scripts import Scripts

        self.settings = settings
        self.keys = Keys(settings.namespace)
        self.clients = clients
        self.scripts: Scripts = Scripts(clients.scripts, plain=plain, on_resharded=self.forget_shards)
        self.pool = PoolStore(self)
        self.shard = ShardStore(self)
        self.control = ControlStore(self)
        self.audit = AuditStore(self)
        self.events = EventStore(self)
        self._shards: int | None = None
        self._trusted_until = 0.0

    @classmethod
    def open(cls, settings: Settings, role: str) -> Store:
        """Connects lazily: raises nothing about the network before the first call."""
        from redsched.store.connect import connect

        return cls(settings, connect(settings, role))

    @property
    def client(self) -> Any:
        """For plain reads and for the few writes that are no run state. Replies are bytes; narrow them at once."""
        return self.clients.scripts

    @property
    def reader(self) -> Any:
        return self.clients.reader

    @property
    def shards(self) -> int:
        """Number of shards of this installation. Raises Resharded while it is being changed."""
        asked = time.monotonic()
        if self._shards is None or asked > self._trusted_until:
            self._shards = self.control.shards(self.settings.shards)
            self.trust_shards(asked)
        return self._shards

    def trust_shards(self, asked: float) -> None:
        """It was right at that moment (monotonic), and a change takes longer than TRUST_S."""
        self._trusted_until = asked + TRUST_S

    def forget_shards(self) -> None:
        """Their number has changed: it is asked for again when it is needed."""
        self._shards = None

    def translate(self) -> AbstractContextManager[Any]:
        from redsched.store.connect import translate

        return translate()

    def fork_safe_reset(self) -> None:
        """In a forked child: leave the parent's connections alone and open own ones at the next call."""
        self.clients.reset()

    def close(self) -> None:
        self.clients.close()
