"""A client without Redis, and a way to call the command line as people do."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner, Result

from redsched.cli.base import State
from redsched.cli.main import cli

from .fake_client import Call, FakeClient


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient()
    monkeypatch.setattr(State, "client", lambda _self: client)
    return client


@pytest.fixture
def call() -> Call:
    """`call("run", "list")`: the command line in this process."""

    def invoke(*args: str, **more: Any) -> Result:
        return CliRunner().invoke(cli, [str(a) for a in args], prog_name="redsched", **more)

    return invoke
