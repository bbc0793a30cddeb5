"""A site for each test: `new_site(worker_lease_ms=…)` with a server of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from redsched import embedded
from redsched.errors import Unavailable
from tests.conftest import Server
from tests.processes import Site

NewSite = Callable[..., Site]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = "" if sys.platform.startswith("linux") else "reads /proc"
    try:
        embedded.binary()
    except Unavailable as error:
        why = why or ("" if os.environ.get("CI") else str(error))
    for item in items:
        if why and "new_site" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def new_site(tmp_path: Path, new_server: Callable[..., Server]) -> Iterator[NewSite]:
    """`options` are the server's; `server=False`: none, for `up` with the embedded one; else settings."""
    with ExitStack() as stack:

        def make(*options: str, server: bool = True, **settings: Any) -> Site:
            folder = tmp_path / "site"
            folder.mkdir()
            mine = new_server(*options) if server else None
            return stack.enter_context(Site(folder, mine, **settings))

        yield make


@pytest.fixture
def site(new_site: NewSite) -> Site:
    return new_site()
