"""One session carries no more paths than the servers can end: a larger one takes the ensemble down, and what it held with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import lockline
from lockline import BackendUnavailable
from lockline.backends.zookeeper import session
from lockline.runtime.blocking import run
from lockline.runtime.clock import now

from ..servers.process import wait_for
from ..servers.zookeeper import ZooKeeper
from .conftest import chroot, end_session

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]

LONG = "ü" * 245
"""With a number in front a name of some 500 bytes, which a path spells in three times as many."""
MANY = 1500
"""Locks with such names, which no server survives in one session."""


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeper]:
    """A server that a test may take down."""
    server = ZooKeeper(tmp_path).start()
    yield server
    server.stop()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session carries some fifteen long paths."""
    monkeypatch.setattr(session, "MOST_PATHS", 25_000)


def hold(client: lockline.Client, name: str) -> lockline.Lease | None:
    """A lock with a long name; None where the session is full."""
    try:
        return client.lock(f"{name}-{LONG}", ttl=30).acquire(timeout=60)
    except BackendUnavailable as full:
        if "second client" not in str(full):
            raise
        return None


def fill(client: lockline.Client, beginning: str = "") -> list[lockline.Lease]:
    """As many locks as the session carries."""
    held: list[lockline.Lease] = []
    while len(held) < MANY and (lease := hold(client, f"{beginning}{len(held)}")):
        held.append(lease)
    return held


def test_the_end_of_a_client_that_holds_all_it_can_leaves_the_server_at_work(own_server: ZooKeeper) -> None:
    """Longer than 5 s: hundreds of locks, and a server that is started twice."""
    url = f"{own_server.url}/app"
    kazoo = KazooClient(hosts=f"127.0.0.1:{own_server.port}")
    kazoo.start(timeout=60)
    client = lockline.connect(url)
    try:
        held = fill(client)
        assert len(held) > 500
        end_session(kazoo, client)
        wait_for(lambda: all(lease.lost.is_set() for lease in held), 60, "the end of the leases")
    finally:
        client.close()
        kazoo.stop()
        kazoo.close()
    own_server.stop()
    own_server.start()
    with lockline.connect(url) as other:
        other.lock(f"0-{LONG}").acquire(timeout=60).release()
    assert len(held) < MANY


@pytest.mark.usefixtures("few")
def test_what_a_full_session_carries_is_renewed_and_removed_as_ever(url: str, client_of: Clients) -> None:
    client, other = client_of(url), client_of(url)
    rw = client.rwlock(f"rw-{LONG}", ttl=30)
    writer = rw.write().acquire(timeout=60)
    held = fill(client)
    assert 10 < len(held) < 18
    for lease in held:
        lease.extend(60)
    # The second node, which says that it is lighter now, has its room.
    writer.downgrade()
    with pytest.raises(BackendUnavailable, match="second client"):
        client.lock(f"one-more-{LONG}").try_acquire()
    other.lock(f"one-more-{LONG}").acquire(timeout=60).release()
    held.pop().release()
    client.lock(f"one-more-{LONG}").acquire(timeout=60).release()
    for lease in [*held, writer]:
        lease.release()
    again = fill(client, "again-")
    assert len(again) > 10
    for lease in again:
        lease.release()


def test_the_doctor_tells_how_much_a_session_carries(url: str, client_of: Clients) -> None:
    told = run(client_of(url)._engine.backend.examine(now() + 60))
    assert any(f"at most {session.MOST_PATHS} bytes of paths" in finding.text for finding in told)


@pytest.mark.usefixtures("few")
def test_clients_that_share_a_connection_share_what_its_session_can_carry(
    url: str, server: ZooKeeper, kazoo: KazooClient
) -> None:
    kazoo.ensure_path(chroot(url).rpartition("/")[0])
    own = KazooClient(hosts=f"127.0.0.1:{server.port}/{url.rpartition('/')[2]}")
    own.start()
    with lockline.connect(own) as one, lockline.connect(own) as two:
        first = [one.lock(f"one-{n}-{LONG}").acquire(timeout=60) for n in range(9)]
        second = fill(two, "two-")
        assert 10 < len(first) + len(second) < 20
        for lease in first:
            lease.release()
        more = fill(two, "more-")
        assert len(more) >= len(first)
        for lease in [*second, *more]:
            lease.release()
    own.stop()
    own.close()
