"""A proxy between a client and Redis that does to replies what networks do: cuts, holds, delays them.

A fault is armed for the next reply that comes after `command` was seen going up, so that handshakes pass unharmed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import unquote, urlsplit, urlunsplit

Fault = Literal["cut", "hold"]


@dataclass(frozen=True, eq=False)
class Arm:
    """One fault that waits for its command."""

    fault: Fault
    command: bytes
    struck: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """`url` is the server's, through the proxy. As a context manager it closes everything."""

    def __init__(self, server_url: str) -> None:
        self._parts = urlsplit(server_url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._links: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._armed: Arm | None = None
        self._closed = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self.delay_s = 0.0
        self.refuse = False
        self.connections = 0
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def url(self) -> str:
        login = self._parts.netloc.rpartition("@")[0]
        host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        path = "" if self._parts.scheme == "unix" else self._parts.path
        return urlunsplit(("redis", f"{login}@{host}" if login else host, path, self._parts.query, ""))

    def cut_next_reply(self, command: str = "") -> threading.Event:
        """The call reaches the server and runs; its reply is lost and the connection closed."""
        return self._arm("cut", command)

    def hold_next_reply(self, command: str = "") -> threading.Event:
        """The call reaches the server and runs; its reply never comes, and the connection stays open."""
        return self._arm("hold", command)

    def hang(self) -> None:
        """Nothing passes, on old connections and on new ones, and none is closed; until `go_on`."""
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    def cut_all(self) -> None:
        """Close every connection, as a restart of a load balancer does."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            _close(link)

    def close(self) -> None:
        self._closed.set()
        self._open.set()
        _close(self._listener)
        self.cut_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _arm(self, fault: Fault, command: str) -> threading.Event:
        self._armed = arm = Arm(fault, command.upper().encode())
        return arm.struck

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.refuse:
                _close(near)
                continue
            self.connections += 1
            try:
                far = self._far()
            except OSError:
                _close(near)
                continue
            with self._lock:
                self._links |= {near, far}
            seen: list[Arm] = []
            for source, target, change in ((near, far, self._up(seen)), (far, near, self._down(seen))):
                threading.Thread(
                    target=_pump, args=(source, target, change), name="proxy", daemon=True
                ).start()

    def _far(self) -> socket.socket:
        if self._parts.scheme == "unix":
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.connect(unquote(self._parts.path))
            return link
        return socket.create_connection((self._parts.hostname or "", self._parts.port or 6379), 5)

    def _up(self, seen: list[Arm]) -> Callable[[bytes], bool]:
        """Remember on which connection the armed command goes up."""

        def change(data: bytes) -> bool:
            self._open.wait()
            if (arm := self._armed) is not None and arm.command in data.upper():
                seen.append(arm)
            return True

        return change

    def _down(self, seen: list[Arm]) -> Callable[[bytes], bool]:
        def change(data: bytes) -> bool:
            self._open.wait()
            if self.delay_s:
                self._closed.wait(self.delay_s)
            arm = self._armed
            if arm is None or arm not in seen:
                return True
            self._armed = None
            arm.struck.set()
            if arm.fault == "hold":
                self._closed.wait(60)
            return False

        return change


def _pump(source: socket.socket, target: socket.socket, change: Callable[[bytes], bool]) -> None:
    with contextlib.suppress(OSError):
        source.settimeout(None)
        while data := source.recv(65536):
            if not change(data):
                break
            target.sendall(data)
    _close(source)
    _close(target)


def _close(link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    link.close()
