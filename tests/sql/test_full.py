"""A database that takes no more connections keeps those that are open, and so no lease is lost for that."""

from __future__ import annotations

import asyncio

import pytest

import lockline
from tests.renewed import renewal_of
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy

from .conftest import Store

pytestmark = pytest.mark.server

TTL = 12.0
"""These servers go by the machine's wall clock, which may be set forward by seconds."""


def test_a_lease_is_renewed_although_no_more_connections_are_to_be_had(store: Store) -> None:
    """Its holder has one already, even if its keeper has none of its own yet."""
    with Proxy(("127.0.0.1", store.port)) as line, lockline.connect(store.through(line)) as client:
        leases = [client.lock(f"x{n}", ttl=TTL).acquire(timeout=60) for n in range(3)]
        line.refuse()
        for kept in [renewal_of(lease) for lease in leases]:
            wait_for(kept, 60, "a renewal")
        for lease in leases:
            lease.release()


def test_the_same_in_asyncio(store: Store) -> None:
    async def story() -> None:
        with Proxy(("127.0.0.1", store.port)) as line:
            async with lockline.aio.connect(store.through(line)) as client:
                leases = [await client.lock(f"x{n}", ttl=TTL).acquire(timeout=60) for n in range(3)]
                line.refuse()
                for kept in [renewal_of(lease) for lease in leases]:
                    await asyncio.to_thread(wait_for, kept, 60, "a renewal")
                for lease in leases:
                    await lease.release()

    asyncio.run(story())
