"""`lease.guard()`: the user's own transaction on ZooKeeper fails once the lease is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import lockline
from lockline import ConfigError, LeaseLost, NotHeld

from ..servers.zookeeper import ZooKeeper

pytestmark = pytest.mark.server


@pytest.fixture
def inside(server: ZooKeeper, url: str, kazoo: KazooClient) -> KazooClient:
    """A plain client with the same chroot."""
    name = url.rpartition("/")[2]
    kazoo.ensure_path(f"/{name}")
    client = KazooClient(hosts=f"127.0.0.1:{server.port}/{name}")
    client.start(timeout=60)
    yield client
    client.stop()
    client.close()


def test_a_guarded_transaction_passes_while_the_lease_holds_and_never_after(
    client_of: Callable[..., lockline.Client], url: str, inside: KazooClient
) -> None:
    inside.create("/balance", b"1")
    client, operator = client_of(url), client_of(url)
    lease = client.lock("balance", ttl=60).acquire()
    guard = lease.guard()
    transaction = inside.transaction()
    transaction.check(*guard)
    transaction.set_data("/balance", b"2")
    assert not any(isinstance(result, Exception) for result in transaction.commit())
    operator.evict("balance")
    transaction = inside.transaction()
    transaction.check(*guard)
    transaction.set_data("/balance", b"3")
    assert any(isinstance(result, NoNodeError) for result in transaction.commit())
    assert inside.get("/balance")[0] == b"2"
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_lease_that_was_released_or_lost_gives_no_guard(client_of: Callable[..., lockline.Client], url: str) -> None:
    client = client_of(url)
    lease = client.lock("x").acquire()
    lease.release()
    with pytest.raises(NotHeld):
        lease.guard()


def test_where_there_are_no_transactions_there_is_no_guard() -> None:
    with lockline.connect("memory:guard") as client:
        lease = client.lock("x").acquire()
        with pytest.raises(ConfigError, match="fence"):
            lease.guard()
        lease.release()
