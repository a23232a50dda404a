"""The connection that threads share, when one of them is struck, gives up or is interrupted, or the line itself goes dead."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest

from lockline.backends.redis.connection import Connections
from lockline.backends.redis.target import understand
from lockline.backends.resp import shared_blocking
from lockline.backends.resp.commands import pack
from lockline.backends.resp.errors import NoAnswer
from lockline.backends.resp.shared_blocking import SharedConnection, SharedStream, SharingLink
from lockline.runtime import clock
from lockline.runtime.blocking import run
from tests.redis.conftest import silent
from tests.redis.test_pool import Cut
from tests.redis.test_shared import Share, Talkers, echo
from tests.redis.test_shared import share as share
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.server

BOTH = {signal.SIGUSR1, signal.SIGUSR2}


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Have this done by a handler of either signal."""
    before = {each: signal.getsignal(each) for each in BOTH}

    def install(act: Callable[[], object]) -> None:
        for each in BOTH:
            signal.signal(each, lambda *_: act())

    yield install
    for each, handler in before.items():
        signal.signal(each, handler)


def struck() -> None:
    raise Cut


def send_both() -> None:
    """Two signals while another thread runs: the second handler runs in the first instructions after what the first one raised."""
    waits: list[bool] = []

    def send() -> None:
        while not waits:
            pass
        for each in BOTH:
            os.kill(os.getpid(), each)

    threading.Thread(target=send).start()
    waits.append(True)
    # Awake: whoever sleeps is woken by the first one alone.
    until = time.monotonic() + 10
    while time.monotonic() < until:
        pass


class Interrupted:
    """The socket that threads share; something happens once, to the main thread, when it has read or before it sends."""

    def __init__(self, shared: SharedConnection, at: str, happens: Callable[[], object]) -> None:
        assert shared._stream is not None
        self._connection = shared._stream.connection
        self._socket = self._connection.sock
        self._at = at
        self._happens = happens
        self.happened = False
        self._connection.sock = cast(socket.socket, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def recv(self, size: int) -> bytes:
        if self._at == "reading" and not self.happened:
            # One answer alone, so that there is something left that could be taken for another's.
            length, text, _ = self._socket.recv(size, socket.MSG_PEEK).split(b"\r\n", 2)
            size = len(length) + len(text) + 4
        data = self._socket.recv(size)
        self._act("reading")
        return data

    def sendall(self, data: bytes) -> None:
        self._act("sending")
        self._socket.sendall(data)

    def _act(self, at: str) -> None:
        if at == self._at and not self.happened and threading.current_thread() is threading.main_thread():
            self.happened = True
            self._happens()


@pytest.mark.parametrize("at", ["reading", "sending"])
def test_two_signals_at_once_give_nobody_the_answer_of_another(share: Share, on_signal: Any, at: str) -> None:
    shared = share()
    on_signal(struck)
    with Talkers(shared, 3) as talkers:
        wait_for(lambda: min(talkers.answered) > 5, 60, "answers for everybody")
        both = Interrupted(shared, at, send_both)
        try:
            while not both.happened:
                echo(shared, "main")
        except Cut:
            pass
        before = list(talkers.answered)
        wait_for(
            lambda: talkers.wrong or all(now > then + 5 for now, then in zip(talkers.answered, before, strict=True)),
            60, "answers for all",
        )  # fmt: skip
    assert not talkers.wrong


class GivenUpMeanwhile(deque[Any]):
    """Those who wait for an answer; at one step of their reader's, another thread gives the stream up, and gets no further than one."""

    def __init__(self, stream: SharedStream, step: str) -> None:
        super().__init__(stream.pending)
        self._step = step
        self._stream = stream
        self._first = threading.Event()
        self._rest = threading.Event()
        self._other = threading.Thread(target=stream.fail, args=(ConnectionAbortedError("given up"),))

    def __getitem__(self, at: Any) -> Any:
        one = super().__getitem__(at)
        self._at("look")
        return one

    def popleft(self) -> Any:
        if threading.current_thread() is not self._other:
            self._at("take")
            return super().popleft()
        if self._first.is_set():
            self._rest.wait(1.0)
        try:
            return super().popleft()
        finally:
            self._first.set()

    def _at(self, step: str) -> None:
        if step == self._step and len(self) == 4 and not self._other.ident:
            self._other.start()
            assert self._first.wait(60)


@pytest.mark.parametrize("step", ["look", "take"])
def test_a_stream_that_is_given_up_while_its_answers_are_read_gives_nobody_the_answer_of_another(
    share: Share, server: RedisServer, step: str
) -> None:
    """As when a sender finds the connection broken on which the last answers of a server that stops have just come."""
    shared = share()
    echo(shared, "open")
    stream = shared._stream
    assert stream is not None
    stream.pending = GivenUpMeanwhile(stream, step)
    answers: dict[str, object] = {}

    def ask(text: str) -> None:
        try:
            answers[text] = echo(shared, text)
        except NoAnswer as problem:
            answers[text] = problem

    threads = [threading.Thread(target=ask, args=(f"{n}",)) for n in range(4)]
    # So that all answers come at once.
    with silent(server):
        for thread in threads:
            thread.start()
        wait_for(lambda: len(stream.pending) == 4, 60, "four under way")
    for thread in threads:
        thread.join(60)
    assert len(answers) == 4
    wrong = {text: got for text, got in answers.items() if not isinstance(got, NoAnswer) and got != text.encode()}
    assert not wrong
    assert any(isinstance(got, NoAnswer) for got in answers.values()), "it was given up in the middle"


@pytest.mark.parametrize("at", ["reading", "sending"])
def test_a_signal_handler_may_ask_in_the_middle_of_a_question(share: Share, on_signal: Any, at: str) -> None:
    shared = share()
    echo(shared, "open")
    heard: list[bytes] = []
    on_signal(lambda: heard.append(echo(shared, "inside")))
    Interrupted(shared, at, lambda: signal.raise_signal(signal.SIGUSR1))
    assert echo(shared, "outside") == b"outside"
    assert heard == [b"inside"]


def test_whoever_gave_up_is_not_called_to_read_for_the_others(
    share: Share, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_blocking, "LOOK_AGAIN", 60.0)
    shared = share(socket_timeout=60)
    echo(shared, "open")
    stream = shared._stream
    assert stream is not None
    answers: dict[str, object] = {}

    def ask(text: str, seconds: float) -> None:
        try:
            answers[text] = echo(shared, text, seconds)
        except NoAnswer as problem:
            answers[text] = problem

    asked = [("hasty reader", 3.0), ("patient", 60.0), ("hasty", 1.0)]
    threads = [threading.Thread(target=ask, args=each) for each in asked]
    with silent(server):
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_for(partial(lambda number: len(stream.pending) == number, number), 60, "a question under way")
        wait_for(lambda: len(answers) == 2, 60, "the end of those who have little time")
    for thread in threads:
        thread.join(60)
    assert answers["patient"] == b"patient"


def test_a_line_that_went_dead_is_left_also_where_nobody_has_much_time(server: RedisServer) -> None:
    with Proxy(server.address) as proxy:
        target = understand(f"redis://127.0.0.1:{proxy.port}", "blocking", {"socket_timeout": 0.5})
        connections = Connections(target, partial(SharingLink, most=2))
        shared = cast(SharingLink, connections.to(("127.0.0.1", proxy.port)))._shared
        echo(shared, "open")
        proxy.strand()
        accepted = proxy.accepted

        def answered() -> bool:
            try:
                return echo(shared, "well", 0.2) == b"well"
            except NoAnswer:
                return False  # on the line that is dead

        wait_for(answered, 60, "an answer on a new line")
        connections.close()
    assert proxy.accepted > accepted


@pytest.mark.parametrize("way", ["ask", "ask_in_order", "ask_along"])
def test_a_connection_that_was_in_use_when_the_client_was_closed_is_closed_after_it(
    server: RedisServer, way: str
) -> None:
    connections = Connections(understand(server.url, "blocking", {"socket_timeout": 60}), partial(SharingLink, most=2))
    link = cast(SharingLink, connections.to(server.address))
    probe = server.client()
    mine = int(probe.execute_command("CLIENT", "ID"))
    answers: list[object] = []

    def others() -> set[int]:
        return {int(each["id"]) for each in probe.client_list()} - {mine}

    before = others()
    # A list that stays empty until the client is closed.
    request, until = pack(("BLPOP", "never", "60")), clock.now() + 60
    thread = threading.Thread(target=lambda: answers.append(run(getattr(link, way)(request, until))))
    thread.start()
    wait_for(lambda: probe.info("clients")["blocked_clients"] == 1, 60, "a question under way")
    connections.close()
    probe.rpush("never", "now")
    thread.join(60)
    assert answers == [[b"never", b"now"]]
    wait_for(lambda: others() <= before, 60, "the end of its connection, though the link is still known")
    assert link._closed
