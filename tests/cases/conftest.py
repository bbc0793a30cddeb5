"""`make`: installations for one test alone; `make_shared` is what a module builds the one from that its tests share."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server
from tests.processes import Site

Make = Callable[..., Site]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and not sys.platform.startswith("linux"):
            item.add_marker(pytest.mark.skip(reason="reads /proc"))


def _makes(stack: ExitStack, base: Callable[[], Path], shared: Server) -> Make:
    def make(server: Server = shared, **settings: Any) -> Site:
        site = Site(base(), server, **{"namespace": "c" + secrets.token_hex(4), **settings})
        if server is shared:
            stack.callback(site.forget)
        return stack.enter_context(site)

    return make


@pytest.fixture
def make(tmp_path: Path, _session_server: Server) -> Iterator[Make]:
    count = iter(range(1000))
    with ExitStack() as stack:
        yield _makes(stack, lambda: tmp_path / f"site{next(count)}", _session_server)


@pytest.fixture(scope="module")
def make_shared(_session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """The same, for as long as a module's tests take. They kill nothing and keep to DAGs and pools of their own."""
    with ExitStack() as stack:
        yield _makes(stack, lambda: tmp_path_factory.mktemp("shared") / "site", _session_server)
