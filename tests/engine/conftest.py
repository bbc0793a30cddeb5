"""The engine's tests run on the tests' own server, or wherever REDSCHED_MATRIX says: `REDSCHED_MATRIX=redis7+cluster`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from redsched.settings import Settings
from tests.conftest import Server
from tests.matrix.places import Missing, Place, opened
from tests.proxy import Proxy

from .harness import Engine


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, _session_server: Server) -> Iterator[Place]:
    """Where the engine's tests run."""
    cell = os.environ.get("REDSCHED_MATRIX")
    if not cell:
        yield Place(_session_server.url, [_session_server])
        return
    try:
        with opened(cell, tmp_path_factory.mktemp("place")) as found:
            yield found
    except Missing as missing:
        pytest.exit(str(missing), 1)


@pytest.fixture
def redis_url(place: Place) -> str:
    return place.url


@pytest.fixture
def proxy(_session_server: Server) -> Iterator[Proxy]:
    """What is cut and held is one TCP connection, so this is always the tests' own server."""
    with Proxy(_session_server.url) as made:
        yield made


@pytest.fixture
def engine(redis_url: str) -> Iterator[Engine]:
    """A fresh installation on the tests' server, in a namespace of its own."""
    made = Engine(Settings(redis=redis_url, namespace="t" + secrets.token_hex(4), shards=4))
    yield made
    made.close()
