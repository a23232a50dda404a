"""A server under load is flushed, paused, frozen, restarted, and loses its connections: the same clients go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import lockline
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

from .crowd import Crowd

pytestmark = [pytest.mark.server, pytest.mark.slow]


def flush_scripts(server: RedisServer) -> None:
    server.command("SCRIPT", "FLUSH")


def kill_connections(server: RedisServer) -> None:
    for kind in ("normal", "pubsub"):
        server.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def pause(server: RedisServer) -> None:
    server.command("CLIENT", "PAUSE", 300)
    time.sleep(0.3)


def sleep(server: RedisServer) -> None:
    server.command("DEBUG", "SLEEP", "0.5")


def restart(server: RedisServer) -> None:
    server.kill()
    server.start()


TTL = 10.0
DISTURBANCES = (flush_scripts, kill_connections, pause, sleep, restart)


def test_a_crowd_goes_on_through_every_disturbance(own_server: RedisServer, tmp_path: Path) -> None:
    """The server keeps its data (fsync always), so there is no excuse: never two holders."""
    with Crowd(own_server.url, tmp_path, sample(2, 6), sample(["a"], ["a", "b"]), ttl=30.0) as crowd:
        crowd.wait_for_grants(2)
        for disturb in DISTURBANCES:
            for _ in range(3):
                disturb(own_server)
                time.sleep(0.1)
            crowd.wait_for_grants(2, since=time.monotonic())
        crowd.stop()
        crowd.check_tokens()
        crowd.check_resource()
        assert crowd.overlaps() == []


def test_a_restart_without_data_forgets_holders_but_never_lowers_a_token(tmp_path: Path) -> None:
    from tests.servers.redis import a_redis

    with a_redis() as server, Crowd(server.url, tmp_path, sample(2, 4), ["a"], ttl=TTL) as crowd:
        crowd.wait_for_grants(5)
        deaths = []
        for _ in range(sample(2, 3)):
            began = time.monotonic()
            server.kill()
            deaths.append((began, time.monotonic()))
            server.start()
            crowd.wait_for_grants(2, since=time.monotonic())
        crowd.stop()
        crowd.check_tokens()
        crowd.check_resource()
        for earlier, later in crowd.overlaps():
            # By when the earlier one was last confirmed: when its process noted the grant says more of the machine.
            assert any(earlier.until <= end + TTL and later.began > began for began, end in deaths), (
                "only a restart may forget a holder"
            )


@pytest.mark.parametrize("disturb", DISTURBANCES)
def test_a_held_lease_and_a_waiter_survive(
    own_server: RedisServer, connect: Callable[..., lockline.Client], disturb: Callable[[RedisServer], None]
) -> None:
    holder, waiter = connect(own_server.url), connect(own_server.url)
    # Nobody would look for a minute and more unless it is told.
    lease = holder.lock("x", ttl=300).acquire()
    got: list[lockline.Lease] = []

    def wait() -> None:
        with waiter.lock("x", ttl=300) as mine:
            got.append(mine)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_for(lambda: len(holder.inspect("x").waiters) == 1, 60, "the waiter")
    for _ in range(2):
        disturb(own_server)
        time.sleep(0.3)
    lease.validate()
    assert not got
    lease.release()
    thread.join(60)
    assert got[0].token > lease.token
