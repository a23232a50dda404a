"""One connection that threads share: each gets its own answers, whatever becomes of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self, cast

import pytest

from lockline.backends.redis.connection import Connections
from lockline.backends.redis.target import understand
from lockline.backends.resp import shared_blocking
from lockline.backends.resp.commands import pack
from lockline.backends.resp.errors import NoAnswer
from lockline.backends.resp.shared_blocking import SharedConnection, SharingLink
from lockline.runtime import clock, section
from tests.cutting import in_a_thread_of_its_own
from tests.redis.conftest import silent
from tests.redis.test_pool import Cut, cut_at
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

pytestmark = pytest.mark.server

OURS = {shared_blocking.__file__, section.__file__}
Share = Callable[..., SharedConnection]


@pytest.fixture
def share(server: RedisServer) -> Iterator[Share]:
    """What threads share who find no connection of their own free."""
    opened: list[Connections] = []

    def make(**options: object) -> SharedConnection:
        opened.append(Connections(understand(server.url, "blocking", options), partial(SharingLink, most=2)))
        return cast(SharingLink, opened[-1].to(server.address))._shared

    yield make
    for connections in opened:
        connections.close()


def echo(shared: SharedConnection, text: str, seconds: float = 60.0) -> bytes:
    return cast(bytes, shared.ask(pack(("ECHO", text)), 1, clock.now() + seconds)[0])


class Talkers:
    """Threads that ask for something of their own again and again, and note whoever got what was not his."""

    def __init__(self, shared: SharedConnection, number: int) -> None:
        self.wrong: list[tuple[str, bytes]] = []
        self.answered = [0] * number
        self._stop = threading.Event()
        self._shared = shared
        self._threads = [threading.Thread(target=self._talk, args=(n,)) for n in range(number)]

    def _ask(self, text: str, n: int, count: int) -> bytes:
        return echo(self._shared, text)

    def _talk(self, n: int) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            text = f"{n}-{count}"
            try:
                answer = self._ask(text, n, count)
            except NoAnswer:
                continue
            if answer != text.encode():
                self.wrong.append((text, answer))
            self.answered[n] += 1

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)


def test_each_thread_gets_the_answer_to_its_own_question(share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody has to look unasked: who has its answer calls the next one to read.
    monkeypatch.setattr(shared_blocking, "LOOK_AGAIN", 60.0)
    with Talkers(share(), 16) as talkers:
        wait_for(lambda: min(talkers.answered) > 50, 60, "answers for everybody")
    assert not talkers.wrong


def test_several_commands_of_one_thread_are_answered_together(share: Share) -> None:
    shared = share()
    with Talkers(shared, 4) as talkers:
        for n in range(50):
            texts = [f"batch-{n}-{at}" for at in range(5)]
            request = b"".join(pack(("ECHO", text)) for text in texts)
            assert shared.ask(request, 5, clock.now() + 60) == [text.encode() for text in texts]
    assert not talkers.wrong


def test_many_threads_ask_in_few_packets(share: Share, server: RedisServer) -> None:
    shared = share(socket_timeout=60)
    echo(shared, "open")
    answers: list[bytes] = []
    crowd = [threading.Thread(target=lambda n=n: answers.append(echo(shared, f"{n}"))) for n in range(20)]
    with silent(server):
        for each in crowd:
            each.start()
        # All are under way at the same time, on one connection.
        wait_for(lambda: shared._stream is not None and len(shared._stream.pending) == 20, 60, "twenty under way")
    for each in crowd:
        each.join(60)
    assert sorted(answers) == sorted(f"{n}".encode() for n in range(20))


def test_whoever_has_no_more_time_does_not_cost_the_others_their_answers(
    share: Share, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_blocking, "LOOK_AGAIN", 60.0)
    shared = share(socket_timeout=60)
    echo(shared, "open")
    stream = shared._stream
    assert stream is not None
    patient: list[bytes] = []
    other = threading.Thread(target=lambda: patient.append(echo(shared, "patient")))
    with silent(server):
        other.start()
        wait_for(lambda: len(stream.pending) == 1, 60, "the patient one under way")
        with pytest.raises(NoAnswer) as refusal:
            echo(shared, "hasty", 0.1)
    assert refusal.value.sent
    other.join(60)
    assert patient == [b"patient"]
    assert echo(shared, "again") == b"again", "the answer to the hasty one is nobody's"


def test_a_server_that_stays_silent_is_given_up_by_all_and_asked_anew(share: Share, server: RedisServer) -> None:
    shared = share(socket_timeout=0.3)
    echo(shared, "open")
    with silent(server), pytest.raises(NoAnswer, match="no answer in time") as refusal:
        echo(shared, "lost")
    assert refusal.value.sent
    assert echo(shared, "found") == b"found"


def test_a_connection_that_died_idle_is_replaced_before_anything_is_sent(share: Share, server: RedisServer) -> None:
    shared = share()
    echo(shared, "open")
    stream = shared._stream
    assert stream is not None
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    wait_for(stream.connection.was_closed, 60, "the end of the connection")
    stream.used -= 1.0
    assert echo(shared, "new") == b"new"


def test_a_server_that_is_gone_is_told_to_each_at_once(share: Share, server: RedisServer) -> None:
    shared = share()
    echo(shared, "open")
    server.stop()
    problems: list[NoAnswer] = []

    def ask() -> None:
        try:
            echo(shared, "x")
        except NoAnswer as problem:
            problems.append(problem)

    crowd = [threading.Thread(target=ask) for _ in range(8)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join(60)
    assert len(problems) == 8
    assert not shared.busy, "what was given up is not sent later"
    server.start()
    assert echo(shared, "back") == b"back"


@pytest.mark.parametrize("situation", ["warm", "cold"])
@in_a_thread_of_its_own
def test_an_exception_between_any_two_bytecodes_gives_nobody_the_answer_of_another(
    share: Share, situation: str
) -> None:
    shared = share()
    step = 0
    with Talkers(shared, 3) as talkers:
        wait_for(lambda: min(talkers.answered) > 0, 60, "answers for everybody")
        while True:
            step += sample(3, 1)
            if situation == "cold" and shared._stream is not None:
                shared._stream.fail(ConnectionAbortedError("by the test"))
            seen: Any = [0]
            try:
                with cut_at(step, OURS) as seen:
                    assert echo(shared, f"cut-{step}") == f"cut-{step}".encode()
            except (Cut, NoAnswer):
                pass
            if seen[0] < step:
                break
            if situation == "warm":
                assert echo(shared, "after") == b"after"
        before = list(talkers.answered)
        wait_for(
            lambda: all(now > then for now, then in zip(talkers.answered, before, strict=True)), 60, "answers for all"
        )
    assert step > 100, "the tracer saw the threads at work"
    assert not talkers.wrong
