"""Somebody else listens where the store should be: a mail server, a proxy that lost the thread, one who only sends zeros."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable

import pytest

import lockline
from lockline import BackendUnavailable, aio
from lockline.backends.postgresql.tables import PostgresqlTables
from lockline.backends.postgresql.target import parse
from lockline.core import engine
from lockline.fence.rule import Offer
from lockline.fence.sql import marks
from tests.calm import calm
from tests.strange_servers import a_server_that, says_nothing, says_nothing_else_than
from tests.tier import sample

pytestmark = pytest.mark.slow

WORDS = {
    "zeros": b"\0",
    "a mail server": b"220 mail.example ESMTP\r\n",
    "a web server": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "letters": bytes(range(256)),
    "half a greeting of MySQL": b"\x05\0\0\0\x0a1.1\0",
}
URLS: dict[str, Callable[[int], str]] = {
    "redis": lambda port: f"redis://127.0.0.1:{port}",
    "redis+cluster": lambda port: f"redis+cluster://127.0.0.1:{port}",
    "etcd": lambda port: f"etcd://127.0.0.1:{port}",
    "consul": lambda port: f"consul://127.0.0.1:{port}",
    "zk": lambda port: f"zk://127.0.0.1:{port}",
    "postgresql": lambda port: f"postgresql://me:secret@127.0.0.1:{port}/db",
    "mysql": lambda port: f"mysql://me:secret@127.0.0.1:{port}/db",
}


MEET = [
    pytest.param(url, words, id=f"{words}-{url}")
    for number, url in enumerate(URLS)
    for words in sample([list(WORDS)[(number + more) % len(WORDS)] for more in (0, 2)], list(WORDS))
]
"""Each store's client beside two kinds of strangers, and in the full run beside each kind."""


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown is how it ends, and not when."""
    for ask in (engine.Engine.ask, aio._LoopEngine.ask):
        monkeypatch.setattr(ask, "__defaults__", (0.5,))


@pytest.fixture(autouse=True)
def no_thread_dies(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    return died


@pytest.mark.parametrize(("url", "words"), MEET)
def test_it_is_an_error_of_ours_for_a_thread(url: str, words: str, no_thread_dies: list[object]) -> None:
    with a_server_that(says_nothing_else_than(WORDS[words])) as port:
        client = lockline.connect(URLS[url](port))
        with pytest.raises(BackendUnavailable) as refused:
            client.lock("x", ttl=2).acquire(timeout=0.3)
        assert "secret" not in str(refused.value)
        with pytest.raises(BackendUnavailable):
            client.inspect("x")
        client.close()
    assert no_thread_dies == []


def test_a_silent_database_is_given_up_by_what_makes_its_tables_and_keeps_its_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[PostgresqlTables.__module__], "A_LOGIN", 2)
    monkeypatch.setattr(marks, "A_CONNECTION", 2)
    with a_server_that(says_nothing) as port:
        url = f"postgresql://me:secret@127.0.0.1:{port}/db"
        with pytest.raises(BackendUnavailable):
            marks.SqlMarks(url).admit("x", Offer("x", 7, ""), writes=False, patience=1)
        with pytest.raises(BackendUnavailable):
            PostgresqlTables(parse(url)).make()


def test_the_tables_of_a_database_wait_for_it_as_long_as_the_url_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[PostgresqlTables.__module__], "A_LOGIN", 3600)
    with a_server_that(says_nothing) as port:
        began = calm()
        with pytest.raises(BackendUnavailable):
            PostgresqlTables(parse(f"postgresql://me:secret@127.0.0.1:{port}/db?connect_timeout=1")).make()
        assert calm() - began < 600


@pytest.mark.parametrize("words", [b"+OK\r\n", b"$-1\r\n", b":5\r\n", b"#t\r\n", b"*1\r\n:1\r\n"])
def test_an_answer_to_a_login_that_is_none_is_an_error_of_ours(words: bytes, no_thread_dies: list[object]) -> None:
    with a_server_that(says_nothing_else_than(words)) as port:
        client = lockline.connect(f"redis://127.0.0.1:{port}")
        with pytest.raises(BackendUnavailable, match="is it a Redis server"):
            client.lock("x", ttl=2).acquire(timeout=2)  # with time for one answer, also of a busy machine
        client.close()
    assert no_thread_dies == []


@pytest.mark.parametrize(("url", "words"), MEET)
def test_it_is_an_error_of_ours_for_a_task(url: str, words: str) -> None:
    unheard: list[object] = []

    async def story(port: int) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
        client = aio.connect(URLS[url](port))
        with pytest.raises(BackendUnavailable) as refused:
            await client.lock("x", ttl=2).acquire(timeout=0.3)
        assert "secret" not in str(refused.value)
        with pytest.raises(BackendUnavailable):
            await client.inspect("x")
        await client.close()

    with a_server_that(says_nothing_else_than(WORDS[words])) as port:
        asyncio.run(story(port))
    assert unheard == []
