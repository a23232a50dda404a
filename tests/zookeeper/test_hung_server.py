"""A server that hangs while the others are well: the client goes to another one, and loses nothing on the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import lockline
from lockline import LocklineError

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
        client.lock("warm-up", ttl=60).acquire(timeout=60).release()
        server = server_of(client, ensemble)
        if server.mode == "follower":
            return client, server


def was_left(client: lockline.Client, server: ZooKeeper) -> bool:
    """Whether the client left this server for its silence, before kazoo noticed anything."""
    left = client._engine.backend._channel._hooks._silent  # type: ignore[attr-defined]
    return server.port in {port for _, port in left}


# A fifth of this, and the client leaves the server: 3 s, where kazoo takes 10, and the session's ceiling is 5 s away or more.
SESSION = 15


@pytest.mark.slow
def test_a_hung_server_is_left_before_the_lease_is_lost_and_the_work_goes_on(
    ensemble: Ensemble, client_of: Clients
) -> None:
    client, server = client_of_a_follower(client_of, ensemble, f"{ensemble.url}/hung?session={SESSION}")
    lease = client.lock("x", ttl=60).acquire(timeout=60)
    server.freeze()
    try:
        client.lock("y", ttl=60).acquire(timeout=60).release()
        lease.extend(60)
        assert lease.valid
        assert was_left(client, server)
    finally:
        server.thaw()
        server.wait_ready()
    lease.release()


@pytest.mark.slow
def test_a_hung_server_is_left_by_a_client_that_holds_nothing_and_only_asks(
    ensemble: Ensemble, client_of: Clients
) -> None:
    client, server = client_of_a_follower(client_of, ensemble, f"{ensemble.url}/asks?session={SESSION}")
    server.freeze()
    try:
        # No lease, no heartbeat: each question alone has to find out.
        wait_for(lambda: _answers(client), 60, "an answer of another server")
        assert was_left(client, server)
    finally:
        server.thaw()
        server.wait_ready()


def _answers(client: lockline.Client) -> bool:
    try:
        client.lock("z", ttl=60).acquire(timeout=1).release()
    except LocklineError:
        return False
    return True


@pytest.mark.slow
def test_a_slow_server_is_not_left_and_a_lease_on_it_stays_good(proxy: Proxy, url: str, client_of: Clients) -> None:
    """Every answer takes two seconds, a thirtieth of the session: that is a slow server, and no silent one.

    Longer than 5 s: there are four such answers. A session of a minute: the client leaves after 12 s, also on a busy machine.
    That a slow session lasts is shown in test_session.py, on a virtual clock.
    """
    client = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}?session=60")
    lease = client.lock("held", ttl=60).acquire(timeout=60)
    before = proxy.accepted
    proxy.delay(1.0)
    for _ in range(2):
        client.lock("x", ttl=60).acquire(timeout=60).release()
    assert lease.valid
    proxy.heal()
    assert proxy.accepted == before
    lease.release()
