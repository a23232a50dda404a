"""Tasks hear of releases and evictions over the connections that they ask on; where a server cannot do that, over one more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import lockline
from lockline.backends.redlock import backend, connection_asyncio
from lockline.backends.redlock.scripts import SCRIPTS
from lockline.backends.resp.commands import pack
from lockline.backends.resp.connection_asyncio import AsyncioConnection

from ..servers.process import wait_for
from .servers import Servers, servers
from .test_crowds import connections
from .test_rights_and_settings import deaf_url

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def three() -> Iterator[Servers]:
    with servers(3, longest=600) as made:
        yield made


@pytest.fixture
def never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hears nothing waits for ever, as far as these stories go."""
    monkeypatch.setattr(backend, "LOOK_EVERY", 600.0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def a_waiter(client: Any, held: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """Somebody who waits for what is held, and has asked for it after he began to listen."""
    waiter = asyncio.create_task(client.lock(held.name, ttl=50).acquire(timeout=60))
    stood = client._engine.backend._stood
    await until(lambda: any(one.tries > 1 and one.next_try > 0 for one in list(stood.values())))
    await all_up(client)
    try:
        yield waiter
        await (await waiter).release()
    finally:
        waiter.cancel()


def to_servers(client: Any) -> list[Any]:
    return client._engine.backend.channel.connections  # type: ignore[no-any-return]


async def all_up(*clients: Any) -> None:
    """A majority is enough to ask, and the last server may be connected to only after that."""
    await until(lambda: all(one.up for client in clients for one in to_servers(client)))


async def gained(three: Servers, before: list[int], expected: list[int]) -> list[int]:
    """How many connections each server has more than before, once they are as many as expected, or it is given up."""
    found: list[int] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            while sum(found) < sum(expected):
                after = await asyncio.to_thread(connections, three)
                found = [now - then for then, now in zip(before, after, strict=True)]
    return found


async def settled(three: Servers, expected: list[int]) -> list[int]:
    """The number of connections to each server, once those of the clients before are gone."""
    await asyncio.to_thread(wait_for, lambda: connections(three) == expected, 60, "no other connections")
    return expected


async def tell(three: Servers, per_server: int) -> None:
    """One waits, another lets go: it is heard, over so many connections."""
    async with lockline.aio.connect(three.url) as client, lockline.aio.connect(three.url) as other:
        held = await other.lock("x", ttl=50).acquire()
        await all_up(other)
        before = await settled(three, [1] * 3)
        async with a_waiter(client, held):
            expected = [per_server] * 3
            assert await gained(three, before, expected) == expected
            await held.release()


@pytest.mark.usefixtures("never_looks")
def test_a_release_is_heard_over_the_one_connection_to_each_server(three: Servers) -> None:
    asyncio.run(tell(three, 1))


@pytest.mark.usefixtures("never_looks")
def test_a_server_that_does_not_speak_unasked_there_gets_a_second_connection(
    three: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A version that none knows: refused as older servers refuse the third.
    monkeypatch.setattr(connection_asyncio, "FIRST", pack(("HELLO", "4")))
    asyncio.run(tell(three, 2))


@pytest.mark.usefixtures("never_looks")
def test_servers_of_both_kinds_are_heard(three: Servers) -> None:
    async def story() -> None:
        async with lockline.aio.connect(three.url) as client, lockline.aio.connect(three.url) as other:
            for one in (client, other):
                await (await one.lock("warm").acquire()).release()
            await all_up(client, other)
            # As if the first had not understood.
            to_servers(client)[0].pushes = False
            held = await other.lock("x", ttl=50).acquire()
            before = await settled(three, [2] * 3)
            async with a_waiter(client, held):
                assert await gained(three, before, [1, 0, 0]) == [1, 0, 0]
                assert sorted(client._engine.backend._subscriptions._listened_to()) == [0, 1, 2]  # type: ignore[attr-defined]
                await held.release()

    asyncio.run(story())


@pytest.mark.usefixtures("never_looks")
def test_connections_that_were_lost_in_the_middle_of_a_wait_listen_again(three: Servers) -> None:
    async def story() -> None:
        async with lockline.aio.connect(three.url) as client, lockline.aio.connect(three.url) as other:
            held = await other.lock("x", ttl=50).acquire()
            async with a_waiter(client, held):
                then = [one.since for one in to_servers(client)]
                for node in three.nodes:
                    await asyncio.to_thread(node.command, "CLIENT", "KILL", "TYPE", "pubsub")
                await until(lambda: all(one.up and one.since not in then for one in to_servers(client)))
                await held.release()

    asyncio.run(story())


def test_whoever_may_not_listen_keeps_his_connections_and_every_answer(three: Servers) -> None:
    """The refusal of a subscription is an answer among the others: none of them may go to the wrong question."""

    async def story() -> None:
        async with lockline.aio.connect(deaf_url(three), timeout=5) as client, lockline.aio.connect(three.url) as other:
            held = await other.lock("x", ttl=50).acquire()
            async with a_waiter(client, held):
                made = [one.since for one in to_servers(client)]
                names = [f"beside-{number}" for number in range(50)]
                leases = await asyncio.gather(*(client.lock(name).acquire() for name in names))
                assert sorted(await client.list("beside-")) == sorted(names)
                await asyncio.gather(*(lease.release() for lease in leases))
                assert [one.since for one in to_servers(client)] == made
                await held.release()

    asyncio.run(story())


def test_who_listens_is_known_to_the_server_before_it_is_asked_again(
    three: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a release between the two would be heard by nobody."""
    sent: list[bytes] = []
    write = AsyncioConnection.write

    def spy(self: AsyncioConnection, data: bytes) -> None:
        sent.append(data)
        write(self, data)

    async def story() -> None:
        async with lockline.aio.connect(three.url) as client, lockline.aio.connect(three.url) as other:
            held = await other.lock("x", ttl=50).acquire()
            await (await client.lock("warm").acquire()).release()
            monkeypatch.setattr(AsyncioConnection, "write", spy)
            async with a_waiter(client, held):
                await held.release()

    asyncio.run(story())
    asked = SCRIPTS["acquire"].sha.encode()
    about = [data for data in sent if b"\r\nSUBSCRIBE\r\n" in data or asked in data]
    # The first try to each of the three, then three words that one listens, then the next try.
    assert [b"SUBSCRIBE\r\n" in data for data in about[:9]] == [False] * 3 + [True] * 3 + [False] * 3


@pytest.mark.usefixtures("never_looks")
def test_an_evicted_task_is_told_over_the_same_connection(three: Servers) -> None:
    async def story() -> None:
        async with lockline.aio.connect(three.url) as client, lockline.aio.connect(three.url) as operator:
            lease = await client.lock("x", ttl=300).acquire()
            hints = client._engine.backend._subscriptions  # type: ignore[attr-defined]
            await until(lambda: hints._channels and not any(hints._unconfirmed.values()))
            assert await operator.evict("x") == 1
            # Long before the next renewal would find it out.
            async with asyncio.timeout(60):
                await lease.lost.wait()

    asyncio.run(story())
