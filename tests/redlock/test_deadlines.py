"""What a caller's deadline means on a cluster without a majority; many leases released at once; one holder evicted and no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

import lockline
from lockline import BackendUnavailable
from lockline.backends.redlock.scripts import SCRIPTS
from lockline.core import engine
from lockline.runtime import clock
from lockline.runtime.blocking import run
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer, a_folder

from ..tier import sample
from .servers import Servers, servers
from .test_late_requests import Flavour, both, client_of

pytestmark = pytest.mark.server

MANY = sample(60, 1000)


@pytest.fixture(scope="module")
def three() -> Iterator[Servers]:
    with servers(3, keeps_data=True) as made:
        yield made


@pytest.mark.parametrize(
    ("flavour", "met"),
    sample(
        [("sync", True), ("asyncio", False)],
        [("sync", True), ("sync", False), ("asyncio", True), ("asyncio", False)],
    ),
)
def test_an_acquire_goes_on_until_its_deadline_and_is_granted_when_a_majority_is_back(
    three: Servers, flavour: str, met: bool
) -> None:
    with client_of(flavour, three.url) as one:
        if met:
            warm = one.do(lambda: one.client.lock("x").try_acquire())
            one.do(lambda: warm.release())
        for node in three.nodes[:2]:
            node.kill()
        back = [threading.Timer(1.0, node.start) for node in three.nodes[:2]]
        for timer in back:
            timer.start()
        try:
            lease = one.do(lambda: one.client.lock("y").acquire(timeout=120))
            one.do(lambda: lease.release())
        finally:
            for timer in back:
                timer.join()


@both
def test_calls_that_do_not_insist_say_soon_that_nobody_is_there_and_that_nothing_was_sent(
    flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that insisted would take all of the time that it has: more than a test may.
    for time_of_a_call in ("PATIENCE", "A_TRY"):
        monkeypatch.setattr(engine, time_of_a_call, 900.0)
    with a_folder("redlock") as folder:
        # Nobody listens on these ports.
        nobody = Servers(folder, 3)
        with client_of(flavour, nobody.url) as one:
            for call in (
                lambda: one.client.lock("x").try_acquire(),
                lambda: one.client.inspect("x"),
                lambda: one.client.list(),
                lambda: one.client.evict("x"),
            ):
                with pytest.raises(BackendUnavailable) as caught:
                    one.do(call)
                assert caught.value.unsent


@both
def test_closing_releases_many_leases_at_once(three: Servers, flavour: str) -> None:
    with client_of(flavour, three.url) as one:
        held = [
            one.do(partial(lambda number: one.client.lock(f"many-{number}", ttl=50).acquire(), number))
            for number in range(MANY)
        ]
    assert not any(lease.valid for lease in held)
    assert not any(three.left_over("lockline:redlock:lease:many-*"))


@both
def test_an_eviction_by_token_concerns_that_holder_or_nobody(three: Servers, flavour: str) -> None:
    with client_of(flavour, three.url) as one:
        lease = one.do(lambda: one.client.lock("x", ttl=60).acquire())
        assert one.do(lambda: one.client.evict("x", token=lease.token - 1)) == 0
        assert one.do(lambda: one.client.evict("x", token=lease.token + 1)) == 0
        one.do(lambda: lease.extend(60))
        assert one.do(lambda: one.client.evict("x", token=lease.token)) == 1
        with pytest.raises(lockline.LeaseLost):
            one.do(lambda: lease.extend(60))


def number_at(three: Servers, node: RedisServer, name: str, number: int) -> None:
    """Let the node have the lease under that number: as one has that had fallen behind and was never lifted."""
    key = f"lockline:redlock:lease:{name}"
    # From any of them: a node that was still being connected to has none yet.
    attempt, _, info = next(filter(None, (one.command("GET", key) for one in three.nodes))).split(" ", 2)
    node.command("SET", key, f"{attempt} {number} {info}", "PX", 60_000)


def lease_at_all(one: Flavour, three: Servers, name: str, *, renew: bool = True) -> Any:
    """A lease that every node has under its number: no acquire has anything more to say that would overwrite what is planted."""
    key = f"lockline:redlock:lease:{name}"

    def have(token: int) -> bool:
        return all((node.command("GET", key) or "").split(" ")[1:2] == [str(token)] for node in three.nodes)

    for _ in range(50):
        lease = one.do(lambda: one.client.lock(name, ttl=60, renew=renew).acquire())
        for _ in range(10):
            if have(lease.token):
                return lease
            time.sleep(0.02)
        # An acquire is over at a majority; perhaps one of them was still being connected to.
        one.do(lease.release)
    raise AssertionError("no lease at all three servers")


def evict_soon(one: Flavour, name: str, token: int) -> int:
    """An eviction with little more time than one server may take."""

    def call() -> Any:
        return one.client._engine.backend.evict(name, clock.now() + 5.0, token)

    return int(one.do(call) if one.asynchronous else run(call()))


@pytest.mark.parametrize(
    ("flavour", "change"),
    sample([("sync", -1), ("asyncio", 1)], [("sync", -1), ("sync", 1), ("asyncio", -1), ("asyncio", 1)]),
)
def test_the_token_of_a_holder_is_the_number_that_a_majority_has(three: Servers, flavour: str, change: int) -> None:
    # A server that is starved by other tests is not the story here.
    with client_of(flavour, f"{three.url}?timeout=4") as one:
        lease = lease_at_all(one, three, "behind")
        for node, number in zip(three.nodes, (lease.token + change, lease.token, lease.token), strict=True):
            number_at(three, node, "behind", number)
        assert one.do(lambda: one.client.evict("behind", token=lease.token + change)) == 0
        assert one.do(lambda: one.client.inspect("behind")).holders[0].token == lease.token
        three[2].freeze()
        try:
            # Either number may be the one that the third has too.
            with pytest.raises(lockline.QuorumNotReached, match="which token"):
                evict_soon(one, "behind", lease.token)
        finally:
            three[2].thaw()
        assert one.do(lambda: one.client.evict("behind", token=lease.token)) == 1


@both
def test_an_eviction_is_repeated_where_its_answers_were_lost(three: Servers, flavour: str) -> None:
    """The servers have done it in the first round; the second one finds nothing, and the eviction counts."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(("127.0.0.1", node.port))) for node in three.nodes]
        url = three.url
        for node, proxy in zip(three.nodes, proxies, strict=True):
            url = url.replace(f":{node.port}", f":{proxy.port}")
        one = stack.enter_context(client_of(flavour, f"{url}?timeout=4"))
        lease = one.do(lambda: one.client.lock("lost", ttl=60).acquire())
        for proxy in proxies:
            proxy.drop_reply(SCRIPTS["evict"].sha.encode())
        assert one.do(lambda: one.client.evict("lost", token=lease.token)) == 1
        assert [proxy.lost for proxy in proxies] == [1, 1, 1]


@both
def test_an_eviction_by_token_waits_for_a_server_that_is_about_to_be_connected_again(
    three: Servers, flavour: str
) -> None:
    with client_of(flavour, f"{three.url}?timeout=4") as one:
        lease = lease_at_all(one, three, "apart")
        for node, number in zip(three.nodes, (lease.token + 1, lease.token, lease.token), strict=True):
            number_at(three, node, "apart", number)
        # As after a pause: the server is there, the connection is not, and the other two do not agree.
        for kind in ("normal", "pubsub"):
            three[2].command("CLIENT", "KILL", "TYPE", kind)
        assert one.do(lambda: one.client.evict("apart", token=lease.token)) == 1


@both
def test_a_holder_is_not_called_gone_because_a_server_that_has_its_lease_is_away(three: Servers, flavour: str) -> None:
    """Held by the first and the third; only the first can be asked. Nobody knows more than that it may be held."""
    with client_of(flavour, f"{three.url}?timeout=4") as one:
        lease = one.do(lambda: one.client.lock("two-of-three", ttl=60).acquire())
        for node in (three[0], three[2]):
            number_at(three, node, "two-of-three", lease.token)
        three[1].command("DEL", "lockline:redlock:lease:two-of-three")
        three[2].freeze()
        try:
            assert one.do(lambda: one.client.list("two")) == ["two-of-three"]
            assert one.do(lambda: one.client.inspect("two-of-three")).holders[0].token == lease.token
            with pytest.raises(lockline.QuorumNotReached, match="which token"):
                evict_soon(one, "two-of-three", lease.token)
            assert one.do(lambda: one.client.evict("two-of-three")) == 1
        finally:
            three[2].thaw()
        with pytest.raises(lockline.LeaseLost):
            one.do(lambda: lease.extend(60))


@both
def test_a_question_is_asked_again_where_a_majority_was_silent_for_a_moment(three: Servers, flavour: str) -> None:
    with client_of(flavour, f"{three.url}?timeout=4") as one:
        lease = one.do(lambda: one.client.lock("silent", ttl=60).acquire())

        def given_up() -> bool:
            channel = one.channel
            return any(node.silent for node in channel.connections) if one.asynchronous else bool(channel.silent)

        def wake_up() -> None:
            wait_for(given_up, 60, "a server that is called silent")
            for node in three.nodes[:2]:
                node.thaw()

        for node in three.nodes[:2]:
            node.freeze()
        watching = threading.Thread(target=wake_up)
        watching.start()
        try:
            assert one.do(lambda: one.client.inspect("silent")).holders[0].token == lease.token
        finally:
            watching.join(60)
        one.do(lambda: lease.release())


@both
def test_the_time_that_the_servers_take_to_answer_is_not_trusted(three: Servers, flavour: str) -> None:
    with client_of(flavour, three.url) as one:
        engine = one.client._engine
        protocol, runtime = engine.backend.protocol, engine.runtime
        acquire = protocol.acquire

        async def slowly(*args: Any) -> bool:
            granted: bool = await acquire(*args)
            await runtime.sleep(1.0)
            return granted

        protocol.acquire = slowly
        lease = one.do(lambda: one.client.lock("slow", ttl=30, renew=False).acquire(timeout=60))
        assert lease.remaining() <= 29.0
        one.do(lambda: lease.release())
