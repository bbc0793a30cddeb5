"""`place`: the servers of one cell, which the tests of a module share; a cell that this machine can't run is skipped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .places import Missing, Place, opened

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and not sys.platform.startswith("linux"):
            item.add_marker(pytest.mark.skip(reason="reads /proc"))


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    try:
        with opened(request.param, tmp_path_factory.mktemp("place")) as found:
            yield found
    except Missing as missing:
        pytest.skip(str(missing))
