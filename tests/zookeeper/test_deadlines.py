"""Time said and time kept: servers that refuse, servers that say nothing, and programs that cancel all they know of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import lockline
from lockline import BackendUnavailable, aio
from lockline.runtime.blocking import run
from lockline.runtime.clock import now

from ..calm import calm
from ..servers.process import free_port, wait_for
from ..servers.proxy import Proxy

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


@pytest.fixture
def nobody() -> str:
    """Three servers, none of which is there."""
    return "zk://" + ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))


def took(call: Callable[[], object]) -> float:
    began = calm()
    with pytest.raises(BackendUnavailable):
        call()
    return calm() - began


def test_servers_that_refuse_cost_no_more_than_the_timeout_and_a_moment(nobody: str) -> None:
    client = lockline.connect(nobody)
    assert took(lambda: client.lock("x").acquire(timeout=0.1)) < 0.4
    assert took(lambda: client.lock("x").acquire(timeout=0)) < 0.4
    assert took(lambda: client.lock("x").try_acquire()) < 0.5
    assert took(lambda: client.inspect("x")) < 0.5
    assert took(client.list) < 0.5
    assert took(lambda: client.evict("x")) < 0.5
    assert took(client.examine) < 0.5
    began = calm()
    client.close()
    assert calm() - began < 0.5


def test_the_same_in_asyncio(nobody: str) -> None:
    async def story() -> list[float]:
        client = aio.connect(nobody)
        times = []
        for call in (
            lambda: client.lock("x").acquire(timeout=0.1),
            lambda: client.lock("x").try_acquire(),
            lambda: client.inspect("x"),
        ):
            began = calm()
            with pytest.raises(BackendUnavailable):
                await call()
            times.append(calm() - began)
        began = calm()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.lock("x").acquire()
        times.append(calm() - began)
        began = calm()
        await client.close()
        return [*times, calm() - began]

    assert max(asyncio.run(story())) < 0.5


def test_what_was_never_sent_says_so_and_leaves_nothing_to_remember(nobody: str) -> None:
    client = lockline.connect(nobody)
    backend = client._engine.backend
    with pytest.raises(BackendUnavailable) as refused:
        client.lock("x").acquire(timeout=0.1)
    assert refused.value.unsent
    assert not backend._nodes  # type: ignore[attr-defined]
    with pytest.raises(BackendUnavailable) as tried:
        client.lock("x").try_acquire()
    assert tried.value.unsent
    client.close()


def test_what_may_have_been_sent_does_not_say_that_it_was_not(proxy: Proxy, url: str, client_of: Clients) -> None:
    client = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}?session=20")
    lease = client.lock("x").acquire(timeout=10)
    claim = lease._live.claim
    lease.release()
    proxy.black_hole()
    with pytest.raises(BackendUnavailable) as silent:
        run(client._engine.backend.enter(claim._replace(id="other"), wait=True, until=now() + 0.3))
    assert not silent.value.unsent
    proxy.heal()


def test_a_silent_server_is_waited_for_and_not_taken_for_one_that_refuses(
    proxy: Proxy, url: str, client_of: Clients
) -> None:
    """Slow to connect is not refused: the first try of all may take longer than a moment."""
    client_of(url).lock("x").acquire().release()
    client = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}")
    proxy.delay(0.2)
    lease = client.lock("x").try_acquire()
    assert lease is not None
    proxy.heal()
    lease.release()


def test_a_program_that_cancels_all_other_tasks_keeps_its_lease(url: str) -> None:
    async def story() -> bool:
        async with aio.connect(url) as client:
            lease = await client.lock("x", ttl=2).acquire()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(2.5)
            held = lease.valid
            await lease.release()
            return held

    assert asyncio.run(story())


def test_after_a_refusal_the_client_goes_on_when_the_servers_are_back(
    proxy: Proxy, url: str, client_of: Clients
) -> None:
    client = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}")
    proxy.refuse()
    assert took(lambda: client.lock("x").try_acquire()) < 0.6
    proxy.heal()
    began = calm()
    wait_for(lambda: _is_granted(client), 5, "a grant")
    assert calm() - began < 5


def _is_granted(client: lockline.Client) -> bool:
    try:
        client.lock("x").acquire(timeout=2).release()
    except BackendUnavailable:
        return False
    return True
