"""Promise 7, where asyncio itself is struck: Ctrl-C between the loop's read and whoever it reads for loses bytes, and nothing else.

A notebook goes on with the same loop after that. What was lost is an answer, and the next one must not be taken for it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lockline import BackendUnavailable, aio

from .scene import Scene

NAMES = tuple("abcdefgh")


class Struck:
    """The nth read of a socket from now on is the last of its run of the loop: what it brought is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nth = 0
        self._thread = threading.get_ident()
        for name in ("recv", "recv_into"):
            monkeypatch.setattr(socket.socket, name, self._striking(getattr(socket.socket, name)))

    def _striking(self, read: Any) -> Any:
        def struck(sock: socket.socket, *args: Any) -> Any:
            got = read(sock, *args)
            # Not what the loop wakes itself by.
            if self.nth and sock.family != socket.AF_UNIX and threading.get_ident() == self._thread:
                self.nth -= 1
                if not self.nth:
                    raise KeyboardInterrupt
            return got

        return struck


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: None)
    yield loop
    loop.close()


@pytest.mark.flavour("asyncio")
@pytest.mark.needs("shares_a_connection")
def test_nobody_is_given_the_answer_to_another_question(
    world: Scene, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = world.party()
    leases = [alice.lock(name, meta={"of": name}).acquire() for name in NAMES]

    async def ask(name: str) -> Any:
        try:
            return [holder.meta for holder in (await client.inspect(name)).holders]
        except BackendUnavailable:
            return None

    async def ask_all() -> list[Any]:
        tasks = [asyncio.ensure_future(ask(name)) for name in NAMES]
        return await asyncio.gather(*tasks)

    async def connect() -> aio.Client:
        client = aio.connect(world.place, **world.world.options())
        await client.inspect("a")
        return client

    client = loop.run_until_complete(connect())
    struck = Struck(monkeypatch)
    right = [[{"of": name}] for name in NAMES]
    answered = 0
    try:
        for nth in range(1, 9):
            struck.nth = nth
            asked = loop.create_task(ask_all())
            while not asked.done():
                try:
                    loop.run_until_complete(asked)
                except KeyboardInterrupt:
                    # The cell is run again, and others ask for something else.
                    loop.run_until_complete(asyncio.wait({loop.create_task(ask("h")), loop.create_task(ask("g"))}))
            struck.nth = 0
            got = asked.result()
            assert all(one in (None, wanted) for one, wanted in zip(got, right, strict=True)), got
            answered += sum(one is not None for one in got)
        assert loop.run_until_complete(ask_all()) == right
        assert answered
    finally:
        struck.nth = 0
        loop.run_until_complete(client.close())
        for lease in leases:
            lease.release()
