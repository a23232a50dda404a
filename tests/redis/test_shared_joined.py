"""Requests of threads that are joined on the connection that they share: each gets its own answer, whatever strikes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NoReturn, cast

import pytest

from lockline.backends.redis.connection import Connections
from lockline.backends.redis.target import understand
from lockline.backends.resp import questions, shared_blocking
from lockline.backends.resp.commands import pack
from lockline.backends.resp.errors import NoAnswer
from lockline.backends.resp.joining import Joined, Request
from lockline.backends.resp.shared_blocking import SharedConnection, SharingLink
from lockline.runtime import clock, section
from tests.cutting import in_a_thread_of_its_own
from tests.redis.conftest import silent
from tests.redis.test_pool import Cut, cut_at
from tests.redis.test_shared import Talkers
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

pytestmark = pytest.mark.server

OURS = {shared_blocking.__file__, questions.__file__, section.__file__}
APART = 5
"""Every so many bunches one has to be sent one by one."""


class Word:
    """Wants to hear itself; with others, as one text of many words."""

    patient = True

    def __init__(self, text: str) -> None:
        self.text = text

    def __bytes__(self) -> bytes:
        return pack(("ECHO", self.text))


class Words(Joined):
    made = 0
    sent = 0

    def __init__(self, words: dict[int, str]) -> None:
        self._words = words
        Words.made += 1
        self._apart = Words.made % APART == 0

    @property
    def places(self) -> list[int]:
        return list(self._words)

    def __bytes__(self) -> bytes:
        return pack(("ECHO", " ".join(self._words.values())))

    def spread(self, reply: Any) -> Sequence[Any] | None:
        if self._apart:
            return None
        Words.sent += 1
        return cast(bytes, reply).split(b" ")


def join(requests: Sequence[Request]) -> Sequence[int | Joined] | None:
    words = {place: each.text for place, each in enumerate(requests) if isinstance(each, Word)}
    if len(words) < 2:
        return None
    return [*(place for place in range(len(requests)) if place not in words), Words(words)]


@pytest.fixture
def shared(server: RedisServer) -> Iterator[SharedConnection]:
    # A server that is silent for the sake of a story is not given up, however long that takes.
    target = understand(server.url, "blocking", {"socket_timeout": 60})
    connections = Connections(target, partial(SharingLink, most=2, join=join))
    yield cast(SharingLink, connections.to(server.address))._shared
    connections.close()


def say(shared: SharedConnection, text: str, *, urgent: bool = False, seconds: float = 60.0) -> bytes:
    request: Request = pack(("ECHO", text)) if urgent else Word(text)
    return cast(bytes, shared.ask(request, 1, clock.now() + seconds, urgent=urgent)[0])


class JoinedTalkers(Talkers):
    """The same by words that can be joined, and now and then by one that cannot wait."""

    def _ask(self, text: str, n: int, count: int) -> bytes:
        return say(self._shared, text, urgent=n == 0 and count % 3 == 0)


def test_each_thread_gets_the_answer_to_its_own_part(shared: SharedConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody has to look unasked: who has read sends what waited for it, and calls the next one to read.
    monkeypatch.setattr(shared_blocking, "LOOK_AGAIN", 60.0)
    before = Words.sent
    with JoinedTalkers(shared, 12) as talkers:
        wait_for(lambda: min(talkers.answered) > 50, 60, "answers for everybody")
    assert not talkers.wrong
    assert Words.sent > before + 20


def test_what_is_patient_waits_for_an_answer_and_no_longer(
    shared: SharedConnection, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_blocking, "LOOK_AGAIN", 60.0)
    say(shared, "open")
    sent: list[int] = []
    send = shared_blocking.SharedStream.send

    def note(stream: shared_blocking.SharedStream, asked: Sequence[Any]) -> None:
        sent.append(len(asked))
        send(stream, asked)

    monkeypatch.setattr(shared_blocking.SharedStream, "send", note)
    answers: list[bytes] = []
    first = threading.Thread(target=lambda: answers.append(say(shared, "first")))
    crowd = [threading.Thread(target=lambda n=n: answers.append(say(shared, f"{n}"))) for n in range(6)]
    with silent(server):
        first.start()
        wait_for(lambda: sent == [1], 60, "one under way")
        for each in crowd:
            each.start()
        wait_for(lambda: len(shared._unsent) == 6, 60, "six who wait for its answer")
        assert sent == [1]
    for each in (first, *crowd):
        each.join(60)
    assert sorted(answers) == sorted([b"first", *(f"{n}".encode() for n in range(6))])
    # All six as one; if that one had to be sent apart, six more.
    assert sent in ([1, 1], [1, 1, 6])


def asked(shared: SharedConnection, answers: dict[str, object], text: str, **how: Any) -> threading.Thread:
    """A thread that asks for this, and notes what it heard."""

    def ask() -> None:
        try:
            answers[text] = say(shared, text, **how)
        except NoAnswer as problem:
            answers[text] = problem

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


@pytest.mark.parametrize("hasty", [False, True])
def test_what_is_urgent_takes_along_what_waits_and_somebody_reads_for_all(
    shared: SharedConnection, server: RedisServer, monkeypatch: pytest.MonkeyPatch, hasty: bool
) -> None:
    """Also where those who are not patient give up, the one that reads among them."""
    monkeypatch.setattr(shared_blocking, "LOOK_AGAIN", 60.0 if hasty else 0.05)
    monkeypatch.setattr(Words, "made", 0)
    say(shared, "open")
    stream = shared._stream
    assert stream is not None
    answers: dict[str, object] = {}
    with silent(server):
        threads = [asked(shared, answers, "reader", urgent=True, seconds=3 if hasty else 60)]
        wait_for(lambda: len(stream.pending) == 1, 60, "one under way")
        threads += [asked(shared, answers, f"patient-{n}") for n in range(2)]
        wait_for(lambda: len(shared._unsent) == 2, 60, "two who wait for its answer")
        threads.append(asked(shared, answers, "urgent", urgent=True, seconds=1 if hasty else 60))
        wait_for(lambda: len(stream.pending) == 3 or "urgent" in answers, 60, "all under way")
        assert len(stream.pending) == 3
        wait_for(
            lambda: not hasty or {"reader", "urgent"} <= answers.keys(), 60, "the end of those who have little time"
        )
    for thread in threads:
        thread.join(60)
    assert [answers[f"patient-{n}"] for n in range(2)] == [b"patient-0", b"patient-1"]
    if not hasty:
        assert (answers["reader"], answers["urgent"]) == (b"reader", b"urgent")


def test_who_cannot_send_what_others_want_still_tells_that_its_own_was_sent(
    shared: SharedConnection, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would withdraw what may be in force."""
    say(shared, "open")
    stream = shared._stream
    assert stream is not None
    answers: dict[str, object] = {}

    def refuse(_: float) -> NoReturn:
        raise NoAnswer(server.address, ConnectionRefusedError(), sent=False)

    with silent(server):
        threads = [asked(shared, answers, "sent")]
        wait_for(lambda: len(stream.pending) == 1, 60, "one under way")
        threads += [asked(shared, answers, "unsent", seconds=2)]
        wait_for(lambda: len(shared._unsent) == 1, 60, "one who waits for its answer")
        monkeypatch.setattr(shared, "_opened", refuse)
        stream.connection.sock.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(60)
    assert {text: cast(NoAnswer, problem).sent for text, problem in answers.items()} == {"sent": True, "unsent": False}


def test_what_is_patient_and_was_not_sent_in_time_is_told_as_such(
    shared: SharedConnection, server: RedisServer
) -> None:
    say(shared, "open")
    stream = shared._stream
    assert stream is not None
    answers: dict[str, object] = {}
    with silent(server):
        first = asked(shared, answers, "sent")
        wait_for(lambda: len(stream.pending) == 1, 60, "one under way")
        asked(shared, answers, "unsent", seconds=0.1).join(30)
    first.join(60)
    assert answers["sent"] == b"sent"
    assert not cast(NoAnswer, answers["unsent"]).sent


def test_what_is_patient_is_read_for_when_all_have_given_up_whom_it_waits_for(
    shared: SharedConnection, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_blocking, "LOOK_AGAIN", 60.0)
    say(shared, "open")
    stream = shared._stream
    assert stream is not None
    answers: dict[str, object] = {}
    with silent(server):
        hasty = asked(shared, answers, "hasty", seconds=2)
        wait_for(lambda: len(stream.pending) == 1, 60, "one under way")
        patient = asked(shared, answers, "patient")
        wait_for(lambda: len(shared._unsent) == 1, 60, "one who waits for its answer")
        hasty.join(60)
    patient.join(60)
    assert cast(NoAnswer, answers["hasty"]).sent
    assert answers["patient"] == b"patient"


@in_a_thread_of_its_own
def test_an_exception_between_any_two_bytecodes_gives_nobody_the_answer_of_another(shared: SharedConnection) -> None:
    step = 0
    with JoinedTalkers(shared, 4) as talkers:
        wait_for(lambda: min(talkers.answered) > 0, 60, "answers for everybody")
        missed = 0
        while missed < sample(8, 25) and step < 1500:
            step += sample(3, 1)
            seen: Any = [0]
            try:
                with cut_at(step, OURS) as seen:
                    assert say(shared, f"cut-{step}") == f"cut-{step}".encode()
            except (Cut, NoAnswer):
                pass
            # How far it gets depends on who else reads and sends.
            missed = missed + 1 if seen[0] < step else 0
        before = list(talkers.answered)
        wait_for(
            lambda: all(now > then for now, then in zip(talkers.answered, before, strict=True)), 60, "answers for all"
        )
    assert step > 100, "the tracer saw the threads at work"
    assert not talkers.wrong
