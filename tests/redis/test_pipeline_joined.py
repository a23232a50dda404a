"""Requests of tasks that are joined on their one connection: each gets its own answer, and whoever is gone costs the others none."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import pytest

from lockline.backends.redis.connection import Connections
from lockline.backends.redis.target import understand
from lockline.backends.resp.commands import pack
from lockline.backends.resp.errors import NoAnswer
from lockline.backends.resp.link_asyncio import AsyncioLink
from lockline.backends.resp.target import Server
from lockline.runtime import clock
from tests.cutting import Cut, CutAt, at_each_instruction, in_a_thread_of_its_own
from tests.redis.test_shared_joined import APART, Word, Words, join
from tests.redis.test_together import on_a_loop
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.server

WORDS = [f"word-{n}" for n in range(6)]


class Talk:
    """Tasks that ask together for a word each, beside one that asks for something else; and what the loop complains of."""

    def __init__(self, server: RedisServer) -> None:
        self._connections = Connections(understand(server.url, "asyncio", {}), partial(AsyncioLink, join=join))
        self.link = cast(AsyncioLink, self._connections.to(server.address))
        self.complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.complaints.append(context))

    async def begin(self) -> list[asyncio.Task[Any]]:
        """All under way, as one packet."""
        until = clock.now() + 60
        await self.link.ask(pack(("ECHO", "open")), until)
        requests: list[Any] = [*map(Word, WORDS[:3]), pack(("ECHO", "plain")), *map(Word, WORDS[3:])]
        tasks = [asyncio.create_task(self.link.ask_along(request, until)) for request in requests]
        pipeline = self.link._pipeline
        assert pipeline is not None
        # In one turn of the loop they ask, in the next one all of it is sent.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert pipeline._pending
        assert not pipeline._unsent
        return tasks

    async def end(self) -> None:
        self._connections.close()
        await asyncio.sleep(0)
        assert not self.complaints


HEARD = [b"word-0", b"word-1", b"word-2", b"plain", b"word-3", b"word-4", b"word-5"]


@pytest.mark.parametrize("apart", [False, True])
@on_a_loop
async def test_each_task_gets_its_own_answer_also_where_it_had_to_be_asked_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    monkeypatch.setattr(Words, "made", APART - 1 if apart else 0)
    talk = Talk(server)
    assert await asyncio.gather(*await talk.begin()) == HEARD
    assert Words.made == (APART if apart else 1)
    await talk.end()


@pytest.mark.parametrize("apart", [False, True])
@on_a_loop
async def test_whoever_is_cancelled_on_the_way_leaves_the_others_their_answers(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    monkeypatch.setattr(Words, "made", APART - 1 if apart else 0)
    talk = Talk(server)
    tasks = await talk.begin()
    for gone in (1, 3):
        tasks[gone].cancel()
    heard = await asyncio.gather(*tasks, return_exceptions=True)
    assert [each for each in heard if isinstance(each, bytes)] == [
        told for n, told in enumerate(HEARD) if n not in (1, 3)
    ]
    await talk.end()


@on_a_loop
async def test_a_connection_that_breaks_is_told_to_each(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Words, "made", 0)
    talk = Talk(server)
    tasks = await talk.begin()
    pipeline = talk.link._pipeline
    assert pipeline is not None
    pipeline.connection.close(ConnectionResetError("by the test"))
    heard = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, NoAnswer) and each.sent for each in heard)
    assert len({id(each) for each in heard}) == len(heard), "each has an error of its own, which it may mark"
    await talk.end()


@on_a_loop
async def test_what_has_to_be_asked_again_goes_before_what_was_asked_later(server: RedisServer) -> None:
    """Who came first stands first: nobody of the same client overtakes one whose joined request was not done."""
    talk = Talk(server)
    until = clock.now() + 60
    await talk.link.ask(pack(("ECHO", "open")), until)
    pipeline = talk.link._pipeline
    assert pipeline is not None
    written: list[bytes] = []
    write = pipeline.connection.write

    def note(data: bytes) -> None:
        written.append(data)
        write(data)

    pipeline.connection.write = note  # type: ignore[method-assign]
    first = [asyncio.get_running_loop().create_future() for _ in range(2)]
    later = pipeline.ask(pack(("ECHO", "later")), until)
    pipeline.ask_apart([(pack(("ECHO", f"first-{n}")), answer, until, until) for n, answer in enumerate(first)])
    assert await asyncio.gather(*first, later) == [b"first-0", b"first-1", b"later"]
    assert written == [b"".join(pack(("ECHO", word)) for word in ("first-0", "first-1", "later"))]
    await talk.end()


@on_a_loop
async def test_a_connection_that_breaks_before_they_are_sent_is_told_to_each_and_is_no_news_for_the_loop(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hands on is held back for others, by some turns of the loop: in these the connection may end."""
    monkeypatch.setattr(Words, "made", 0)
    talk = Talk(server)
    until = clock.now() + 60
    await talk.link.ask(pack(("ECHO", "open")), until)
    tasks = [asyncio.create_task(talk.link.ask_in_order(Word(word), until)) for word in WORDS]
    await asyncio.sleep(0)
    pipeline = talk.link._pipeline
    assert pipeline is not None
    assert len(pipeline._unsent) == len(WORDS)
    pipeline.connection.close(ConnectionResetError("by the test"))
    heard = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, NoAnswer) for each in heard)
    await asyncio.sleep(0.01)
    await talk.end()


@on_a_loop
async def test_whoever_is_late_makes_no_connection_first(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes milliseconds to make one: a crowd of which nobody has time left would cost each other theirs, for half a minute."""
    made: list[Server] = []
    make = Server.connection

    def note(server: Server) -> Any:
        made.append(server)
        return make(server)

    talk = Talk(server)
    monkeypatch.setattr(Server, "connection", note)
    with pytest.raises(NoAnswer, match="no time left to connect"):
        await talk.link.ask(pack(("ECHO", "late")), clock.now())
    assert not made
    assert await talk.link.ask(pack(("ECHO", "in time")), clock.now() + 60) == b"in time"
    assert len(made) == 1
    await talk.end()


@pytest.mark.parametrize("held", [False, True])
@in_a_thread_of_its_own
def test_nobody_gets_the_answer_of_another_after_an_exception_in_the_middle_of_asking(
    server: RedisServer, held: bool
) -> None:
    """A signal handler that raises, Ctrl-C in a notebook: it may strike the loop's thread between any two instructions."""

    async def story(nth: int) -> str:
        talk = Talk(server)
        until = clock.now() + 60
        await talk.link.ask(pack(("ECHO", "open")), until)
        ask = talk.link.ask_in_order if held else talk.link.ask

        async def hear(word: str) -> None:
            try:
                heard = await ask(pack(("ECHO", word)), clock.now() + 2)
            except (Cut, NoAnswer):
                return
            assert heard == word.encode(), f"after a cut at {cut.where}"

        cut = CutAt(nth, inside="resp/connection_asyncio")
        cut.begin()
        try:
            tasks = [asyncio.create_task(hear(word)) for word in WORDS[:3]]
            while not (cut.where or all(task.done() for task in tasks)):  # noqa: ASYNC110 - each turn of the loop counts
                await asyncio.sleep(0)
        finally:
            cut.end()
        async with asyncio.timeout(120):
            await asyncio.gather(*tasks)
            for word in WORDS:
                await hear(word)
        talk._connections.close()
        await asyncio.sleep(0)
        return cut.where

    at_each_instruction(story, 25)
