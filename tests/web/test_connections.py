"""Connections that ask for nothing, take nothing, or are cut: each loses its place, and the others notice nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import lockline
from lockline import web
from lockline.web import asgi_page, server
from lockline.web.server import PageServer, listen

from ..servers.process import wait_for
from ..tier import sample
from .conftest import HANGS


class Running:
    """`lockline web` in this process, without a token, to look inside."""

    def __init__(self, client: lockline.Client) -> None:
        self.page = web.asgi(client, allow_evict=True, user=lambda scope: "ada")
        self.server = PageServer(self.page)
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True)
        self._thread.start()
        wait_for(lambda: self.server.started, HANGS, "the server")

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def connect(self, sends: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), HANGS)
        connection.sendall(sends)
        return connection

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=HANGS, verify=False)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(HANGS)
        assert not self._thread.is_alive()
        self.listener.close()


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
    monkeypatch.setattr(server, "ASKS_WITHIN", 1.0)
    slow = [running.connect(sends) for _ in range(sample(40, 150))]
    assert running.get("/api/about").status_code == 200, "the others are served meanwhile"
    dripping = set(slow)

    def all_are_cut_off() -> bool:
        for one in list(dripping):
            try:
                one.sendall(b"x")
            except OSError:
                dripping.remove(one)
        time.sleep(0.1)
        return not dripping

    wait_for(all_are_cut_off, HANGS, "the end of the slow ones")
    wait_for(lambda: running.connections == 0, HANGS, "their places")
    for one in slow:
        one.close()


def test_whoever_asks_again_and_again_keeps_its_connection(running: Running) -> None:
    def nobody_is_to_be_dropped() -> bool:
        return all(connection._patience is None for connection in running.server.server_state.connections)  # type: ignore[union-attr]

    with httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=HANGS, verify=False) as visitor:
        used = set()
        for _ in range(3):
            with visitor.stream("GET", "/api/about") as answer:
                answer.read()
                used.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
            assert nobody_is_to_be_dropped()
        assert len(used) == 1
        with visitor.stream("GET", "/api/stream") as stream:
            told = stream.iter_text()
            for _ in range(3):
                assert next(told)
                assert nobody_is_to_be_dropped()
            # Before the stream is closed, which ends its connection.
            assert running.connections == 1


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
    # What the kernel keeps for one who does not read; a connection has it from its listener.
    running.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", running.port))
        deaf.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: len(running.page._streams) == 1, HANGS, "the stream")
        for number in range(400):
            hold(client.lock(f"{number:03}-" + "n" * 400))
        wait_for(lambda: not running.page._streams, HANGS, "the end of the stream")


def vanish(connection: socket.socket) -> None:
    """By a reset, as a process that is killed does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()


@pytest.mark.parametrize("end", [vanish, socket.socket.close], ids=["reset", "closed"])
def test_a_browser_that_goes_gives_its_place_back(running: Running, end: Callable[[socket.socket], None]) -> None:
    watching = [running.connect(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(20)]
    wait_for(lambda: len(running.page._streams) == 20, HANGS, "the streams")
    for one in watching:
        end(one)
    wait_for(lambda: not running.page._streams, HANGS, "their end")
    assert running.get("/api/about").status_code == 200


def test_the_server_ends_though_browsers_watch(client: lockline.Client) -> None:
    running = Running(client)
    watching = [running.connect(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(20)]
    wait_for(lambda: len(running.page._streams) == 20, HANGS, "the streams")
    running.stop()
    for one in watching:
        one.close()
