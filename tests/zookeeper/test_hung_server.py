"""A server that hangs while the others are well: the client goes to another one, and loses nothing on the way."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import lockline
from lockline import LocklineError
from lockline.runtime.clock import now

from ..calm import calm
from ..servers.process import wait_for
from ..servers.proxy import Proxy
from ..servers.zookeeper import Ensemble, ZooKeeper

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


def server_of(client: lockline.Client, ensemble: Ensemble) -> ZooKeeper:
    """The one that this client is connected to."""
    port = client._engine.backend._channel.client._connection._socket.getpeername()[1]  # type: ignore[attr-defined]
    return next(server for server in ensemble.servers if server.port == port)


def client_of_a_follower(client_of: Clients, ensemble: Ensemble, url: str) -> tuple[lockline.Client, ZooKeeper]:
    while True:
        client = client_of(url)
        client.lock("warm-up", ttl=4).acquire(timeout=10).release()
        server = server_of(client, ensemble)
        if server.mode == "follower":
            return client, server


@pytest.mark.slow
def test_a_hung_server_is_left_before_the_lease_is_lost_and_the_work_goes_on(
    ensemble: Ensemble, client_of: Clients
) -> None:
    client, server = client_of_a_follower(client_of, ensemble, f"{ensemble.url}/hung?session=4")
    lease = client.lock("x", ttl=30).acquire(timeout=10)
    time.sleep(2)
    server.freeze()
    # Longer than the session would last by itself.
    failed, granted, slowest, end = 0, 0, 0.0, time.monotonic() + 5.5
    try:
        while time.monotonic() < end:
            began = calm()
            try:
                client.lock("y", ttl=4).acquire(timeout=10).release()
                granted += 1
            except LocklineError:
                failed += 1
            slowest = max(slowest, calm() - began)
            time.sleep(0.05)
        print(f"{granted} granted, {failed} failed, the slowest after {slowest:.2f} s; lease valid: {lease.valid}")
        assert lease.valid
        assert failed == 0
        assert slowest < 2
    finally:
        server.thaw()
        server.wait_ready()
    lease.release()


@pytest.mark.slow
def test_a_hung_server_is_left_by_a_client_that_holds_nothing_and_only_asks(
    ensemble: Ensemble, client_of: Clients
) -> None:
    client, server = client_of_a_follower(client_of, ensemble, f"{ensemble.url}/asks?session=4")
    server.freeze()
    try:
        # No lease, no heartbeat: each question alone has to find out.
        wait_for(lambda: _answers(client), 6, "an answer of another server")
    finally:
        server.thaw()
        server.wait_ready()


def _answers(client: lockline.Client) -> bool:
    try:
        client.lock("z", ttl=4).acquire(timeout=1).release()
    except LocklineError:
        return False
    return True


@pytest.mark.slow
def test_a_slow_server_is_not_left_and_a_lease_on_it_stays_good(proxy: Proxy, url: str, client_of: Clients) -> None:
    """Every answer takes 0.7 s, a ninth of the session: that is a slow server, and no silent one."""
    client = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}?session=6")
    lease = client.lock("held", ttl=30).acquire(timeout=10)
    proxy.delay(0.35)
    before, granted, end = proxy.accepted, 0, now() + 9
    while now() < end:
        client.lock("x", ttl=30).acquire(timeout=10).release()
        granted += 1
    print(f"{granted} granted over {proxy.accepted - before} new connections")
    assert lease.valid
    proxy.heal()
    assert proxy.accepted == before
    assert granted >= 3
    lease.release()
