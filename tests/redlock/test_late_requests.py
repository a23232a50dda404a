"""Requests that come late, are refused or get no answer: what is left behind, and what the caller is told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockline
from lockline import ConfigError, QuorumNotReached
from lockline.backends.redlock import commands
from lockline.backends.redlock.answers import nothing
from lockline.backends.redlock.connection_asyncio import NodeConnection
from lockline.backends.redlock.scripts import SCRIPTS
from lockline.core import engine
from lockline.runtime.blocking import run
from tests.calm import calm
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy as Cutting

from .proxy import Proxy, proxies
from .servers import Servers, servers, tells_of_silence
from .test_faulty_servers import Loop, held_by_all, url

pytestmark = pytest.mark.server

LEASE = "lockline:redlock:lease:x"
LONG = 600.0
"""A ttl may be longer than anybody here waits, so that nothing ends because it has expired."""


@pytest.fixture(scope="module")
def started() -> Iterator[Servers]:
    with servers(3, longest=LONG) as made:
        yield made


@pytest.fixture
def three(started: Servers) -> Iterator[Servers]:
    yield started
    for node in started.nodes:
        for key in node.command("KEYS", "lockline:redlock:gone:*"):
            node.command("DEL", key)


@pytest.fixture
def proxied(three: Servers) -> Iterator[list[Proxy]]:
    with proxies([node.port for node in three.nodes]) as made:
        yield made


class Flavour:
    """A client of either flavour, called in one way."""

    def __init__(self, flavour: str, target: str) -> None:
        self._loop = Loop(target) if flavour == "asyncio" else None
        self.client: Any = self._loop.client if self._loop is not None else lockline.connect(target)

    def do(self, call: Callable[[], Any]) -> Any:
        return self._loop.run(call) if self._loop is not None else call()

    @property
    def asynchronous(self) -> bool:
        return self._loop is not None

    @property
    def channel(self) -> Any:
        return self.client._engine.backend.channel

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
        else:
            self.client.close()


@contextlib.contextmanager
def client_of(flavour: str, target: str) -> Iterator[Flavour]:
    made = Flavour(flavour, target)
    try:
        yield made
    finally:
        made.close()


both = pytest.mark.parametrize("flavour", ["sync", "asyncio"])


@both
def test_a_release_that_a_server_refuses_for_a_while_is_repeated(three: Servers, flavour: str) -> None:
    with client_of(flavour, three.url) as one:
        lease = held_by_all(three, one.client, "x", one.do, ttl=300, renew=False)
        three[2].command("CONFIG", "SET", "min-replicas-to-write", "1")
        try:
            one.do(lease.release)
            assert three[2].command("EXISTS", LEASE)
        finally:
            three[2].command("CONFIG", "SET", "min-replicas-to-write", "0")
        wait_for(lambda: not three[2].command("EXISTS", LEASE), 60, "the lease's end, long before its ttl")
    assert three.left_over() == [[], [], []]


@both
def test_answers_that_are_lost_at_a_majority_do_not_keep_the_caller_out_of_its_own_lock(
    three: Servers, flavour: str
) -> None:
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(Cutting(node.address)) for node in three.nodes]
        one = stack.enter_context(
            client_of(flavour, f"redlock://{','.join(f'127.0.0.1:{line.port}' for line in lines)}")
        )
        one.do(one.do(lambda: one.client.lock("warm").acquire()).release)
        for number in range(6):
            name = f"lost-{number}"
            for line in lines[:2]:
                line.drop_reply(name.encode())
            # Behind a lease that nobody knew of it would wait for as long as that lasts: longer than a test may.
            lease = one.do(one.client.lock(name, ttl=LONG).acquire)
            one.do(lease.release)


def test_what_is_owed_to_a_server_only_when_there_is_a_connection_to_it_again_arrives(three: Servers) -> None:
    with client_of("sync", three.url) as one:
        one.do(one.do(lambda: one.client.lock("warm").acquire()).release)
        three[0].command("SET", LEASE, "a-1.1 5 ")
        one.channel.owe(0, commands.release("x", "a-1.1", 5, 0))
        one.channel.look_after()
        wait_for(lambda: not three[0].command("EXISTS", LEASE), 60, "the end of the lease")


def test_what_is_owed_while_a_loop_pays_what_was_owed_before_arrives(
    three: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay = NodeConnection._pay

    async def pays(self: Any, pipeline: Any) -> None:
        await pay(self, pipeline)
        if self.node == 0 and not paid:
            paid.append(True)
            self._owed.add(commands.release("x", "a-1.1", 5, 0))

    with client_of("asyncio", three.url) as one:
        one.do(one.do(lambda: one.client.lock("warm").acquire()).release)
        three[0].command("SET", LEASE, "a-1.1 5 ")
        paid: list[bool] = []
        monkeypatch.setattr(NodeConnection, "_pay", pays)

        async def story() -> None:
            connection, until = one.channel.connections[0], calm() + 60
            while not connection.up:
                assert calm() < until
                await asyncio.sleep(0.01)
            connection.greet_again()
            while await asyncio.to_thread(three[0].command, "EXISTS", LEASE):
                assert calm() < until
                await asyncio.sleep(0.01)

        one.do(story)
        assert paid


def test_a_cancelled_acquire_of_a_taken_lock_leaves_no_key(three: Servers) -> None:
    async def story() -> None:
        async with lockline.aio.connect(three.url) as client:
            await (await client.lock("warm").acquire()).release()
            for number in range(24):
                lock = client.lock("x")
                asked = asyncio.create_task(lock.try_acquire() if number % 2 else lock.acquire(timeout=1))
                for _ in range(number % 8):
                    await asyncio.sleep(0)
                asked.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asked

    with lockline.connect(three.url) as holder:
        held = held_by_all(three, holder, "x")
        asyncio.run(story())
        wait_for(lambda: three.left_over() == [[LEASE]] * 3, 60, "nothing but the holder's own")
        held.release()


def test_the_next_attempt_of_a_waiter_is_not_taken_for_the_one_before(three: Servers, proxied: list[Proxy]) -> None:
    """A majority remembers that an attempt was withdrawn; the waiter comes again under another id, and is served."""
    with lockline.connect(three.url) as holder, lockline.connect(url(proxied)) as client:
        held = holder.lock("x", ttl=300).acquire()
        won = threading.Event()

        def wait() -> None:
            with client.lock("x", ttl=300):
                won.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        backend: Any = client._engine.backend
        wait_for(lambda: "x" in backend.lines._lines, 60, "the wait")
        for proxy in proxied[:2]:
            proxy.lose_answers()
        backend._freed("x")
        wait_for(lambda: any(backend.channel._owed), 60, "an attempt without answers")
        for proxy in proxied:
            proxy.heal()
        gone = "lockline:redlock:gone:*"
        wait_for(lambda: all(three.left_over(gone)[:2]), 60, "a tombstone at a majority")
        held.release()
        assert won.wait(60), "refused for as long as the tombstones last"
        waiter.join(60)


@both
def test_an_acquire_whose_script_was_flushed_is_not_sent_again_after_its_release(three: Servers, flavour: str) -> None:
    with client_of(flavour, three.url) as one:
        one.do(held_by_all(three, one.client, "warm", one.do).release)

        async def story() -> list[Any]:
            until = one.channel.now() + 60
            talk = await one.channel.talk(nothing, until)
            three[2].command("SCRIPT", "FLUSH")
            three[2].command("SCRIPT", "LOAD", SCRIPTS["release"].body)
            talk.send(2, commands.acquire("x", "a-1.1", 30_000, 0, ""))
            talk.send(2, commands.release("x", "a-1.1", 0, -30_000))
            answers = [await talk.next(until) for _ in range(2)]
            talk.part()
            return answers

        answers = one.do(story) if flavour == "asyncio" else run(story())
        assert [request.op for _, request, _ in answers] == ["acquire", "release"]
    assert three.left_over() == [[], [], []]


@both
def test_with_a_majority_silent_the_others_are_heard_and_no_time_is_wasted(
    three: Servers, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A try that took all of the time that it has would take more than a test may.
    monkeypatch.setattr(engine, "A_TRY", 900.0)
    # So that a busy machine does not make the third one silent, too.
    with client_of(flavour, f"{three.url}?timeout=3") as one:
        lease = held_by_all(three, one.client, "x", one.do, renew=False, ttl=300)
        for node in three.nodes[:2]:
            node.freeze()
        try:
            calls: list[tuple[Callable[[], Any], str]] = [
                (lambda: one.client.lock("y").acquire(timeout=4), "free"),
                (lambda: one.client.lock("y").try_acquire(), "free"),
            ]
            for call, said in calls:
                with pytest.raises(QuorumNotReached) as caught:
                    one.do(call)
                *silent, third = caught.value.nodes.values()
                assert all(tells_of_silence(text) for text in silent), silent
                assert third == said
        finally:
            for node in three.nodes[:2]:
                node.thaw()
        one.do(lease.release)


@both
def test_a_greeting_that_makes_no_sense_is_not_the_end_of_connecting(three: Servers, flavour: str) -> None:
    size = three[2].command("HGET", "lockline:redlock:node", "size")
    three[2].command("HSET", "lockline:redlock:node", "size", "a few")
    with client_of(flavour, three.url) as one:

        def pair() -> None:
            one.do(one.do(lambda: one.client.lock("x").acquire()).release)

        def asked() -> bool:
            before = three[2].command("ZSCORE", "lockline:redlock:counters", "x")
            pair()
            return bool(three[2].command("ZSCORE", "lockline:redlock:counters", "x") != before)

        try:
            pair()
            wait_for(lambda: 2 in one.channel.membership.problems, 60, "a greeting that was not understood")
        finally:
            three[2].command("HSET", "lockline:redlock:node", "size", size)
        wait_for(asked, 60, "the third server's part")


def test_a_lease_never_outlives_the_time_for_which_a_restarted_server_refuses(three: Servers) -> None:
    """The servers are told a longer ttl where the drift is large; that one has to be within the cluster's longest."""
    with lockline.connect(three.url, drift=0.5) as client:
        with pytest.raises(ConfigError, match="drift"):
            client.lock("x", ttl=LONG * 2 / 3).acquire()
        lease = client.lock("x", ttl=LONG * 0.4).acquire()
        with pytest.raises(ConfigError, match="drift"):
            lease.extend(LONG * 2 / 3)
        lease.release()


@both
def test_a_server_that_speaks_nonsense_counts_as_one_that_fails(
    three: Servers, proxied: list[Proxy], flavour: str
) -> None:
    with client_of(flavour, url(proxied)) as one, client_of("sync", three.url) as other:

        def pair() -> None:
            one.do(one.do(lambda: one.client.lock("x").acquire(timeout=60)).release)

        pair()
        proxied[0].speak_nonsense()
        for _ in range(3):
            pair()
        proxied[1].speak_nonsense()
        with pytest.raises(QuorumNotReached) as caught:
            one.do(lambda: one.client.lock("x").try_acquire())
        assert sum(said == "free" for said in caught.value.nodes.values()) == 1
        assert any("rotocol" in said for said in caught.value.nodes.values()), caught.value.nodes
        with pytest.raises(QuorumNotReached):
            one.do(lambda: one.client.list())
        for proxy in proxied:
            proxy.heal()
        pair()
        # Nor does it matter where only hints are listened for.
        held = other.client.lock("x", ttl=300).acquire()
        back = threading.Timer(0.6, held.release)
        back.start()
        nonsense = threading.Timer(0.2, proxied[0].speak_nonsense)
        nonsense.start()
        try:
            pair()
        finally:
            back.join()
            nonsense.join()
