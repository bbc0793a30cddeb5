from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from redsched.settings import Settings

from .harness import Engine


@pytest.fixture
def engine(redis_url: str) -> Iterator[Engine]:
    """A fresh installation on the tests' server, in a namespace of its own."""
    made = Engine(Settings(redis=redis_url, namespace="t" + secrets.token_hex(4), shards=4))
    yield made
    made.close()
