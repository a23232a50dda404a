"""What was left behind in an outage is removed when it is over, although the session and its nodes have outlived it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from kazoo.client import KazooClient

import lockline
from lockline import BackendUnavailable, LeaseLost

from ..servers.process import wait_for
from ..servers.proxy import Proxy
from .conftest import chroot

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


@pytest.fixture
def through(proxy: Proxy, url: str) -> str:
    """The same place by way of the proxy, with a session that outlives every outage here."""
    return f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}?session=60"


def session_of(client: lockline.Client) -> int:
    return int(client._engine.backend._channel.client._session_id)  # type: ignore[attr-defined]


def break_connections(proxy: Proxy) -> None:
    """What the black hole has swallowed stays lost, and the way is free again."""
    proxy.cut()
    proxy.heal()


def test_a_lease_that_was_lost_in_a_black_hole_does_not_keep_the_name_locked_after_it(
    proxy: Proxy, through: str, url: str, client_of: Clients
) -> None:
    """Longer than 5 s: so is the ttl, which ends; a shorter one could be over before the way is cut."""
    holder, other = client_of(through), client_of(url)
    lease = holder.lock("x", ttl=5).acquire(timeout=60)
    session = session_of(holder)
    proxy.black_hole()
    assert lease.lost.wait(60)
    with pytest.raises(LeaseLost):
        lease.release()
    # Longer than anybody in the core asks for it.
    time.sleep(1.6)
    assert other.lock("x").try_acquire() is None
    break_connections(proxy)
    other.lock("x").acquire(timeout=60).release()
    assert session_of(holder) == session
    # The name is free before the holder has heard that its removal was done.
    wait_for(lambda: not holder._engine.backend._nodes, 60, "nothing left to remove")  # type: ignore[attr-defined]


def test_a_claim_that_was_lost_and_never_released_is_removed_when_the_connection_is_back(
    proxy: Proxy, through: str, url: str, client_of: Clients
) -> None:
    """Longer than 5 s: so is the ttl, which ends; a shorter one could be over before the way is cut."""
    holder, other = client_of(through), client_of(url)
    lease = holder.semaphore("x", limit=2, ttl=5).acquire(timeout=60)
    session = session_of(holder)
    proxy.black_hole()
    assert lease.lost.wait(60)
    time.sleep(1.6)
    break_connections(proxy)
    wait_for(lambda: not other.inspect("x").claims, 60, "the end of the claim")
    assert session_of(holder) == session


def test_a_create_that_was_applied_unheard_is_withdrawn_after_the_outage(
    proxy: Proxy, through: str, url: str, client_of: Clients
) -> None:
    client, other = client_of(through), client_of(url)
    client.lock("x").acquire(timeout=60).release()
    session = session_of(client)
    # Applied, but nobody hears of it, and there is no way back for longer than the claim's ttl.
    proxy.refuse()
    proxy.drop_reply(b"/lockline/x/1.1.")
    with pytest.raises(BackendUnavailable):
        client.lock("x", ttl=0.5).acquire(timeout=5)  # time to send it
    assert proxy.lost == 1
    time.sleep(0.8)
    assert len(other.inspect("x").claims) == 1
    proxy.heal()
    wait_for(lambda: not other.inspect("x").claims, 60, "the end of the claim")
    assert session_of(client) == session


def test_a_client_that_is_closed_in_an_outage_leaves_nothing_in_the_session_of_the_users_own(
    proxy: Proxy, url: str, client_of: Clients, kazoo: KazooClient
) -> None:
    name = url.rpartition("/")[2]
    kazoo.ensure_path(f"/{name}")
    own = KazooClient(hosts=f"127.0.0.1:{proxy.port}/{name}", timeout=60)
    own.start()
    client = lockline.connect(own)
    leases = [client.lock(held, ttl=60).acquire(timeout=60) for held in ("x", "y")]
    session = own._session_id
    proxy.black_hole()
    client.close()
    assert not any(lease.valid for lease in leases)
    assert len(kazoo.get_children(f"{chroot(url)}/x")) == 1
    break_connections(proxy)
    other = client_of(url)
    for held in ("x", "y"):
        other.lock(held).acquire(timeout=60).release()
    assert own._session_id == session
    wait_for(lambda: not own.state_listeners, 60, "a client that is as it was")
    own.stop()
    own.close()
