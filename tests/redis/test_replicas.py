"""wait_replicas: a grant that too few replicas have does not count, and waiting for them costs nobody else anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lockline
from tests.redis.renewed import TTL, wait_for_renewal
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer, a_redis

from .conftest import Town

pytestmark = pytest.mark.server


@pytest.fixture
def replica(server: RedisServer) -> Iterator[RedisServer]:
    """A replica of the server."""
    server.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    with a_redis("--replicaof", "127.0.0.1", str(server.port)) as replica:
        with server.client() as primary:
            # Online is not enough: it has to have said once how far it is.
            primary.set("first", "1", px=1)
            assert primary.wait(1, 60000) == 1
        yield replica


def test_a_waiter_whose_grant_no_replica_has_is_told_and_leaves_the_line(town: Town) -> None:
    alice, bob = town.near(), town.near(wait_replicas=1)
    lease = alice.lock("x").acquire()
    waiting = bob.lock("x", ttl=5).acquire.start()
    town.direct.wait_for_line("x", holders=1, waiters=1)
    lease.release()
    with pytest.raises(lockline.BackendUnavailable, match="0 of 1 replicas"):
        waiting.result(60)
    assert not town.direct.line("x").claims


def test_who_waits_for_replicas_holds_up_no_renewal(town: Town, replica: RedisServer) -> None:
    alice = town.near(wait_replicas=1)
    lease = alice.lock("held", ttl=TTL).acquire()
    crowd = [town.direct.sibling(alice) for _ in range(8)]
    replica.freeze()
    try:
        # A renewal that waited for them would come when the lease is over.
        waiting = [each.lock(f"x{n}", ttl=2 * TTL).acquire.start() for n, each in enumerate(crowd)]
        wait_for(
            lambda: town.server.command("INFO", "clients")["blocked_clients"], 60, "one that waits for the replica"
        )
        wait_for_renewal(lease)
    finally:
        replica.thaw()
    for each in waiting:
        each.result(120).release()
    lease.release()
