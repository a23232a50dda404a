"""The proxy does to a connection what it says."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from lockline.lab.verify.proxy import FaultProxy
from tests.servers.process import wait_for

A_WHILE = 0.3


class Echo:
    """A server that answers each word with itself, and counts what it heard."""

    def __init__(self, word: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.heard: list[bytes] = []
        self._word = word
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError), line:
            while data := line.recv(100):
                self.heard.append(data)
                line.sendall(self._word or data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", echo.port) as made:
        yield made


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=60)


def ask(line: socket.socket, word: bytes = b"x", within: float = 60.0) -> bytes:
    line.settimeout(within)
    line.sendall(word)
    return line.recv(100)


def broken(line: socket.socket) -> bool:
    """Whether it has ended; which call finds out is the kernel's choice."""
    try:
        return not ask(line)
    except ConnectionError:
        return True


def test_all_passes(proxy: FaultProxy) -> None:
    with connect(proxy) as line:
        assert ask(line, b"hello") == b"hello"


def test_a_cut_breaks_what_is_there_and_lets_new_ones_in(proxy: FaultProxy) -> None:
    with connect(proxy) as line:
        ask(line)
        proxy.cut()
        assert broken(line)
    with connect(proxy) as line:
        assert ask(line) == b"x"


def test_a_delay_is_one_each_way_and_on_every_second_connection(proxy: FaultProxy) -> None:
    with connect(proxy) as line:
        ask(line)
        proxy.delay(600)
        with connect(proxy) as other:
            ask(other)
        proxy.delay(A_WHILE)
        began = time.monotonic()
        ask(line)
        assert time.monotonic() - began >= 2 * A_WHILE


@pytest.mark.parametrize("lost", ["replies", "requests"])
def test_one_way_is_lost(proxy: FaultProxy, echo: Echo, lost: str) -> None:
    with connect(proxy) as line:
        ask(line)
        (proxy.lose_replies if lost == "replies" else proxy.lose_requests)()
        with pytest.raises(TimeoutError):
            ask(line, b"y", A_WHILE)
        if lost == "replies":
            wait_for(lambda: b"y" in echo.heard, 60, "the request at the server")
        else:
            assert b"y" not in echo.heard
        proxy.heal()
    with connect(proxy) as line:
        assert ask(line) == b"x"


def test_what_is_held_comes_late(proxy: FaultProxy, echo: Echo) -> None:
    with connect(proxy) as line:
        ask(line)
        proxy.hold()
        with pytest.raises(TimeoutError):
            ask(line, b"late", A_WHILE)
        assert b"late" not in echo.heard
        proxy.heal()
        line.settimeout(60)
        assert line.recv(100) == b"late"


def test_answers_alone_come_late(proxy: FaultProxy, echo: Echo) -> None:
    with connect(proxy) as line:
        ask(line)
        proxy.hold_replies()
        with pytest.raises(TimeoutError):
            ask(line, b"done", A_WHILE)
        wait_for(lambda: b"done" in echo.heard, 60, "the request at the server")
        proxy.heal()
        line.settimeout(60)
        assert line.recv(100) == b"done"


def test_another_server_at_the_same_address(proxy: FaultProxy) -> None:
    other = Echo(b"the other")
    with connect(proxy) as line:
        ask(line)
    proxy.move("127.0.0.1", other.port)
    with connect(proxy) as line:
        assert ask(line) == b"the other"
    other.close()


def test_refused_and_closed(proxy: FaultProxy) -> None:
    proxy.refuse()
    with connect(proxy) as line:
        assert broken(line)
    proxy.heal()
    with connect(proxy) as line:
        assert ask(line) == b"x"
