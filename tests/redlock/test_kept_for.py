"""What outlives its lease at the servers: a name that is kept for a while, and what is left of a lease that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import lockline
from lockline import ConfigError, LeaseLost, aio

from ..servers.process import wait_for
from .servers import Servers, servers

pytestmark = pytest.mark.server


@pytest.fixture
def three() -> Iterator[Servers]:
    with servers(3, longest=60.0) as made:
        yield made


def lease_keys(three: Servers) -> list[list[str]]:
    return three.left_over("lockline:redlock:lease:*")


def test_to_be_kept_for_longer_than_the_cluster_grants_is_refused_before_anything_is_sent(three: Servers) -> None:
    """Else the release could not have it last, and the name would be free after its ttl."""
    with lockline.connect(three.url) as client:
        for call in ("acquire", "try_acquire"):
            with pytest.raises(ConfigError, match="max-ttl"):
                getattr(client.lock("x", keep_for=61), call)()
        assert lease_keys(three) == [[], [], []]
        client.lock("x", keep_for=50).acquire().release()
        (kept,) = client.inspect("x").holders
        assert kept.remaining > 25


def test_it_is_refused_in_asyncio_too(three: Servers) -> None:
    async def refused() -> None:
        async with aio.connect(three.url) as client:
            with pytest.raises(ConfigError, match="max-ttl"):
                await client.lock("x", keep_for=61).acquire()

    asyncio.run(refused())
    assert lease_keys(three) == [[], [], []]


def test_a_name_is_free_when_its_time_is_over_and_not_a_ttl_later(three: Servers) -> None:
    with lockline.connect(three.url) as client:
        client.lock("x", ttl=60, keep_for=20).acquire().release()
        (kept,) = client.inspect("x").holders
        assert kept.remaining <= 20


def test_what_is_left_of_a_lease_that_is_lost_is_removed(three: Servers) -> None:
    """A minority may still hold it for its whole ttl, and be missing to the next holder when another server is away."""
    with lockline.connect(three.url) as client:
        lease = client.lock("x", ttl=50).acquire()
        wait_for(lambda: all(lease_keys(three)), 60, "the lease on every server")
        for node in three.nodes[:2]:
            node.command("DEL", "lockline:redlock:lease:x")
        with pytest.raises(LeaseLost):
            lease.extend(50)
        wait_for(lambda: lease_keys(three) == [[], [], []], 20, "the end of what is left")
        assert not lease.valid
