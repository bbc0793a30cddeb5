"""`make`: installations for one test alone; `start_shared` is what a module builds the one from that its tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server

from .processes import Installation

Make = Callable[..., Installation]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and not sys.platform.startswith("linux"):
            item.add_marker(pytest.mark.skip(reason="reads /proc"))


def _makes(stack: ExitStack, base: Callable[[], Path], default_url: str) -> Make:
    def make(url: str = default_url, **options: Any) -> Installation:
        made = Installation(base(), url, **options)
        if url == default_url:
            stack.callback(made.forget)
        stack.callback(made.close)
        return made

    return make


@pytest.fixture
def make(tmp_path: Path, redis_url: str) -> Iterator[Make]:
    count = iter(range(1000))
    with ExitStack() as stack:
        yield _makes(stack, lambda: tmp_path / f"installation{next(count)}", redis_url)


@pytest.fixture(scope="module")
def make_shared(_session_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """The same, for as long as a module's tests take. They kill nothing and keep to DAGs and pools of their own."""
    with ExitStack() as stack:
        yield _makes(stack, lambda: tmp_path_factory.mktemp("shared"), _session_server.url)
