"""Time said and time kept: servers that refuse, servers that say nothing, and programs that cancel all they know of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import lockline
from lockline import BackendUnavailable, aio
from lockline.core import closing
from lockline.core.claim import Claim
from lockline.runtime.blocking import run
from lockline.runtime.clock import now

from ..renewed import TTL, wait_for_renewal
from ..servers.process import free_port, wait_for
from ..servers.proxy import Proxy

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


@pytest.fixture
def nobody() -> str:
    """Three servers, none of which is there."""
    return "zk://" + ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))


CLAIM = Claim("x", "refused-1", "me", "lock", 1, 1, 60.0, 0.0, "")


def those_that_do_not_insist(backend: Any) -> list[Callable[[float], Any]]:
    """The calls that end soon where every server refuses; each takes its deadline."""
    return [
        lambda until: backend.enter(CLAIM, wait=False, until=until),
        lambda until: backend.look("x", until),
        lambda until: backend.list("", until),
        lambda until: backend.evict("x", until),
        lambda until: backend.examine(until),
    ]


def an_hour() -> float:
    """A deadline: a call that insists until then hangs, for the test."""
    return now() + 3600


def test_servers_that_refuse_are_not_waited_for_until_the_deadline(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "CLOSING", 3600.0)
    client = lockline.connect(nobody)
    with pytest.raises(BackendUnavailable):
        client.lock("x", ttl=3600).acquire(timeout=0.1)
    with pytest.raises(BackendUnavailable):
        client.lock("x", ttl=3600).acquire(timeout=0)
    for call in those_that_do_not_insist(client._engine.backend):
        with pytest.raises(BackendUnavailable):
            run(call(an_hour()))
    client.close()


def test_the_same_in_asyncio(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSING", 3600.0)

    async def story() -> None:
        client = aio.connect(nobody)
        with pytest.raises(BackendUnavailable):
            await client.lock("x", ttl=3600).acquire(timeout=0.1)
        for call in those_that_do_not_insist(client._engine.backend):
            with pytest.raises(BackendUnavailable):
                await call(an_hour())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.lock("x", ttl=3600).acquire()
        await client.close()

    asyncio.run(story())


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
    lease = client.lock("x").acquire(timeout=60)
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
    async def story() -> None:
        async with aio.connect(url) as client:
            lease = await client.lock("x", ttl=TTL).acquire()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.to_thread(wait_for_renewal, lease)
            await lease.release()

    asyncio.run(story())


def test_after_a_refusal_the_client_goes_on_when_the_servers_are_back(
    proxy: Proxy, url: str, client_of: Clients
) -> None:
    client = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}")
    proxy.refuse()
    with pytest.raises(BackendUnavailable):
        run(client._engine.backend.enter(CLAIM, wait=False, until=an_hour()))
    proxy.heal()
    wait_for(lambda: _is_granted(client), 60, "a grant")


def _is_granted(client: lockline.Client) -> bool:
    try:
        client.lock("x").acquire(timeout=2).release()
    except BackendUnavailable:
        return False
    return True
