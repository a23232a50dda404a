"""An acquire that comes late, by a connection that its client has given up long ago: it is refused, and leaves no lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import cast

import pytest

import lockline
from lockline import QuorumNotReached
from lockline.backends.redlock.claims import Attempt
from lockline.backends.redlock.commands import NodeFailure, NodeRequest
from tests.servers.process import wait_for

from .servers import Servers, servers
from .test_late_requests import LEASE, Flavour, both

pytestmark = pytest.mark.server


@pytest.fixture
def three() -> Iterator[Servers]:
    with servers(3) as made:
        yield made


class Delaying:
    """A proxy that, once told to, hangs up on whoever asks for the lease, and passes the request on long after that."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._serving: set[asyncio.Task[None]] = set()
        self.trap = False
        self.let_go = asyncio.Event()
        self.passed_on = asyncio.Event()

    async def __aenter__(self) -> Delaying:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, asking = await asyncio.open_connection("127.0.0.1", self._server_port)
        back = asyncio.create_task(_pass_on(answers, writer))
        self._serving |= {back, cast("asyncio.Task[None]", asyncio.current_task())}
        try:
            while data := await reader.read(65536):
                if self.trap and LEASE.encode() in data:
                    self.trap = False
                    back.cancel()
                    await asyncio.wait([back])
                    await self.let_go.wait()
                    asking.write(data)
                    await answers.read(65536)
                    self.passed_on.set()
                    return
                asking.write(data)
        finally:
            back.cancel()
            await _close(asking)


async def _pass_on(answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await answers.read(65536):
            writer.write(data)
    finally:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def test_an_acquire_that_comes_after_its_undo_by_an_older_connection_is_refused(three: Servers) -> None:
    async def story() -> None:
        async with contextlib.AsyncExitStack() as stack:
            made = [await stack.enter_async_context(Delaying(node.port)) for node in three.nodes]
            target = "redlock://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in made)
            client = await stack.enter_async_context(lockline.aio.connect(target, node_timeout=0.3))
            await (await client.lock("warm").acquire()).release()
            # The third is only there to keep the attempt open until the other two are connected to again.
            three[2].freeze()
            made[0].trap = made[1].trap = True
            with pytest.raises(QuorumNotReached):
                await client.lock("x", ttl=60).try_acquire()
            three[2].thaw()
            for proxy in made[:2]:
                proxy.let_go.set()
                await asyncio.wait_for(proxy.passed_on.wait(), 60)
            assert [node.command("EXISTS", LEASE) for node in three.nodes[:2]] == [0, 0]

    try:
        asyncio.run(story())
    finally:
        three[2].thaw()


@both
def test_an_acquire_that_comes_after_the_release_of_the_lease_is_refused(three: Servers, flavour: str) -> None:
    """Granted by the two others, and given back over another connection, before the third server has heard of it at all."""

    async def story() -> None:
        async with contextlib.AsyncExitStack() as stack:
            late = await stack.enter_async_context(Delaying(three[2].port))
            target = f"redlock://127.0.0.1:{three[0].port},127.0.0.1:{three[1].port},127.0.0.1:{late.port}"
            one = await asyncio.to_thread(Flavour, flavour, target)
            try:
                # Two are enough for a grant: the third is connected once it has seen a lease.
                seen = 0
                while not seen:
                    warm = await asyncio.to_thread(one.do, one.client.lock("warm", ttl=60).acquire)
                    seen = three[2].command("EXISTS", LEASE.replace(":x", ":warm"))
                    await asyncio.to_thread(one.do, warm.release)
                late.trap = True
                lease = await asyncio.to_thread(one.do, one.client.lock("x", ttl=60, renew=False).acquire)
                await asyncio.to_thread(one.do, lease.release)
                buried = partial(three[2].command, "KEYS", "lockline:redlock:gone:*")
                await asyncio.to_thread(wait_for, buried, 60, "the release at the third server")
                late.let_go.set()
                await asyncio.wait_for(late.passed_on.wait(), 60)
                assert not three[2].command("EXISTS", LEASE), "nobody's lease, for thirty seconds"
            finally:
                await asyncio.to_thread(one.close)

    asyncio.run(story())


def test_a_node_that_changes_its_word_is_counted_on_one_side_only() -> None:
    """Who is still to answer, and whose release leaves no trace, is told by these two alone."""
    attempt = Attempt("x", "a-1", 1.0, "")
    acquire, promote = (NodeRequest(op, ("x", "a-1")) for op in ("acquire", "promote"))
    attempt.note((0, acquire, [b"no", b""]))
    attempt.note((1, acquire, NodeFailure("unreachable", "no connection")))
    assert attempt.never_done().keys() == {1}
    for node in (0, 1):
        attempt.note((node, acquire, [b"yes", b"7"]))
    assert attempt.numbers == {0: 7, 1: 7}
    assert not attempt.refusals
    assert not attempt.never_done()
    assert attempt.knows(1)
    attempt.note((0, promote, [b"no", b""]))
    assert (set(attempt.numbers), set(attempt.refusals)) == ({1}, {0})
