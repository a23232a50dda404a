"""Connections that ask for nothing, take nothing, or are cut: each loses its place, and the others notice nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import lockline
from lockline import web
from lockline.web import asgi_page, server
from lockline.web.server import PageServer, listen

from ..servers.process import wait_for


class Running:
    """`lockline web` in this process, without a token, to look inside."""

    def __init__(self, client: lockline.Client) -> None:
        self.page = web.asgi(client, allow_evict=True, user=lambda scope: "ada")
        self.server = PageServer(self.page)
        self._listener = listen("127.0.0.1", 0)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._listener]}, daemon=True)
        self._thread.start()
        wait_for(lambda: self.server.started, 20, "the server")

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def connect(self, sends: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), 20)
        connection.sendall(sends)
        return connection

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=20)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._listener.close()


@pytest.fixture
def client() -> Iterator[lockline.Client]:
    with lockline.connect("memory:connections") as client:
        yield client


@pytest.fixture
def running(client: lockline.Client) -> Iterator[Running]:
    running = Running(client)
    yield running
    running.stop()


HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
WHOLE = b"GET /api/about HTTP/1.1\r\nHost: localhost\r\n\r\n"
UNREAD = b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx"


@pytest.mark.parametrize("sends", [b"", HALF, WHOLE + HALF, UNREAD], ids=["nothing", "half", "second", "unread"])
def test_whoever_drips_a_request_in_loses_its_place(
    running: Running, monkeypatch: pytest.MonkeyPatch, sends: bytes
) -> None:
    # Time enough for all of them to come, on a busy machine too, before the first has to go.
    monkeypatch.setattr(server, "ASKS_WITHIN", 1.2)
    slow = [running.connect(sends) for _ in range(150)]
    wait_for(lambda: running.connections >= 150, 20, "the slow ones")
    assert running.get("/api/about").status_code == 200, "the others are served meanwhile"
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.1):
            for one in slow:
                try:
                    one.sendall(b"x")
                except OSError:
                    pass

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        wait_for(lambda: running.connections == 0, 20, "the end of the slow ones")
    finally:
        over.set()
        dripping.join(20)
        for one in slow:
            one.close()


def test_whoever_asks_again_and_again_keeps_its_connection(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ASKS_WITHIN", 1.0)
    with httpx.Client(base_url=f"http://127.0.0.1:{running.port}") as visitor:
        used = set()
        for _ in range(4):
            with visitor.stream("GET", "/api/about") as answer:
                answer.read()
                used.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
            threading.Event().wait(0.4)
        assert len(used) == 1
        with visitor.stream("GET", "/api/stream") as stream:
            told = stream.iter_text()
            for _ in range(3):
                assert next(told)


def test_an_eviction_whose_body_does_not_come_is_given_up(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_page, "SLOWEST", 0.3)
    csrf = running.get("/api/about").json()["csrf"]
    head = f"POST /api/evict HTTP/1.1\r\nHost: localhost\r\nX-Lockline-CSRF: {csrf}\r\nContent-Length: 500\r\n\r\n{{"
    with running.connect(head.encode()) as slow:
        assert slow.recv(1000).split(b" ")[1] == b"413"


def test_a_browser_that_does_not_read_is_dropped_and_its_place_is_free(
    running: Running, client: lockline.Client, monkeypatch: pytest.MonkeyPatch, hold: Any
) -> None:
    monkeypatch.setattr(asgi_page, "SLOWEST", 0.5)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", running.port))
        deaf.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: len(running.page._streams) == 1, 20, "the stream")
        number = iter(range(100_000))

        def dropped() -> bool:
            for _ in range(50):
                hold(client.lock(f"{next(number):05}-" + "n" * 400))
            return not running.page._streams

        wait_for(dropped, 60, "the end of the stream")


def vanish(connection: socket.socket) -> None:
    """By a reset, as a process that is killed does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()


@pytest.mark.parametrize("end", [vanish, socket.socket.close], ids=["reset", "closed"])
def test_a_browser_that_goes_gives_its_place_back(running: Running, end: Callable[[socket.socket], None]) -> None:
    watching = [running.connect(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(50)]
    wait_for(lambda: len(running.page._streams) == 50, 20, "the streams")
    for one in watching:
        end(one)
    wait_for(lambda: not running.page._streams, 20, "their end")
    assert running.get("/api/about").status_code == 200


def test_the_server_ends_though_browsers_watch(client: lockline.Client) -> None:
    running = Running(client)
    watching = [running.connect(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(20)]
    wait_for(lambda: len(running.page._streams) == 20, 20, "the streams")
    running.stop()
    for one in watching:
        one.close()
