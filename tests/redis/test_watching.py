"""One who stands in no line is told by the server who leads, whatever becomes of the connection that this comes by."""

from __future__ import annotations

from typing import Any

import pytest

import lockline
from lockline.core import watching
from tests.contract.watcher import Watcher, sees_by_looking
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer

from .conftest import Town

pytestmark = pytest.mark.server


def trackers(server: RedisServer) -> int:
    """Connections on which the server remembers what was read."""
    told: str = server.command("CLIENT", "LIST")
    return sum("t" in word.removeprefix("flags=") for word in told.split() if word.startswith("flags="))


def test_it_needs_one_more_connection_and_only_while_somebody_watches(town: Town) -> None:
    bob = town.near()
    first, second = Watcher(bob), Watcher(bob)
    assert trackers(town.server) == 0
    assert first.next().result() is None
    assert second.next().result() is None
    assert trackers(town.server) == 1
    first.stop()
    assert trackers(town.server) == 1
    second.stop()
    wait_for(lambda: trackers(town.server) == 0, 60, "no connection of one who watches")


@pytest.mark.parametrize("cut", ["killed", "proxy"])
def test_after_a_cut_it_is_told_as_before(town: Town, cut: str) -> None:
    alice, bob = town.near(), town.far()
    watcher = Watcher(bob, every=0.05)
    assert watcher.next().result() is None
    told = watcher.next()
    if cut == "proxy":
        town.proxy.cut()
    else:
        town.server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    # The connection is made anew, and what was missed meanwhile is seen.
    wait_for(lambda: trackers(town.server) == 1, 60, "a new connection")
    lease = alice.lock("boss", ttl=60).acquire()
    assert told.result().token == lease.token
    lease.release()


def test_a_server_that_hears_and_does_not_answer_is_noticed(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "NET", 3600)
    alice, bob = town.near(), town.far()
    watcher = Watcher(bob, every=0.05)
    assert watcher.next().result() is None
    told = watcher.next()
    wait_for(lambda: trackers(town.server) == 1, 60, "a connection")
    town.proxy.strand()
    lease = alice.lock("boss", ttl=60).acquire()
    assert told.result().token == lease.token
    lease.release()


def test_a_user_without_that_right_looks_now_and_then(server: RedisServer, connect: Any) -> None:
    server.command("ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-client|tracking")
    try:
        alice = connect(server.url)
        bob = connect(f"redis://plain:pw@127.0.0.1:{server.port}")
        sees_by_looking(alice, bob, "boss")
    finally:
        server.command("ACL", "DELUSER", "plain")


def test_a_leader_that_died_is_missed_when_its_lease_is_over(town: Town) -> None:
    """Five seconds: it has to be seen before it is over."""
    alice, bob = town.near(), town.near()
    watcher = Watcher(bob)
    lease = alice.lock("boss", ttl=5, renew=False).acquire()
    assert watcher.next().result() is not None
    assert watcher.next().result() is None
    with pytest.raises(lockline.LeaseLost):
        lease.release()


def test_whoever_only_looks_at_a_line_tells_nobody_of_a_change(town: Town) -> None:
    """Else each look of one who watches would be a change that has to be looked at."""
    alice, bob = town.near(), town.near()
    lease = alice.lock("boss", ttl=60).acquire()
    waiting = town.near().lock("boss", ttl=60).acquire.start()
    wait_for(lambda: len(town.direct.line("boss").claims) == 2, 60, "one who waits")
    bob.client.inspect("boss")
    with town.server.client() as reader:
        connection = reader.connection_pool.get_connection()
        for words in (("HELLO", "3"), ("CLIENT", "TRACKING", "ON"), ("HGET", town.key("boss"), "last")):
            connection.send_command(*words)
            connection.read_response()
        bob.client.inspect("boss")
        assert not connection.can_read(0.1)
        waiting.cancel() if town.flavour == "asyncio" else lease.release()
        assert connection.can_read(60)
        connection.disconnect()
    if town.flavour == "asyncio":
        lease.release()
    else:
        waiting.result().release()
