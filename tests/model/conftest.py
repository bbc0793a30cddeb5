from __future__ import annotations

from collections.abc import Iterator

import pytest

from redsched.simulation.server import Server, private_server


@pytest.fixture(scope="session")
def world_server() -> Iterator[Server]:
    """The simulations' own server: each seed empties it."""
    with private_server() as server:
        yield server
