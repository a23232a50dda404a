"""The server is killed under a crowd; a replica is promoted while the old primary is frozen, and then thaws."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import lockline
from lockline import BackendUnavailable
from lockline.backends.postgresql import tables
from tests.calm import Busy, calm
from tests.redis.crowd import Crowd
from tests.servers.postgres import PostgresReplica, PostgresServer
from tests.servers.process import wait_for

pytestmark = [pytest.mark.server, pytest.mark.slow]

TTL = 2.0
OPTIONS = ("-c", "max_connections=200", "-c", "shared_buffers=32MB")


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    # With a flush for each commit: what was answered is there after a kill.
    server = PostgresServer(*OPTIONS).start()
    tables(server.url).make()
    yield server
    server.remove()


@pytest.fixture
def replica(primary: PostgresServer) -> Iterator[PostgresReplica]:
    server = PostgresReplica(primary, *OPTIONS)
    server.start()
    yield server
    server.remove()


def longest_wait_after(crowd: Crowd, moment: float) -> float:
    """How long it took after that moment until each name was granted again, the slowest of them."""
    return (
        max(
            min(held.began for held in crowd.history() if held.name == name and held.began > moment)
            for name in crowd.names
        )
        - moment
    )


@pytest.mark.timeout(180)
def test_sixteen_processes_survive_a_server_that_is_killed_and_comes_back(
    primary: PostgresServer, tmp_path: Path
) -> None:
    with Crowd(primary.url, tmp_path, 16, ["a", "b", "c"], TTL) as crowd:
        crowd.wait_for_grants(2)
        for _ in range(2):
            primary.kill()
            primary.start()
            back, busy = time.monotonic(), Busy()
            crowd.wait_for_grants(2, since=back)
            assert longest_wait_after(crowd, back) < TTL + 2.0 + busy()
        crowd.stop()
        crowd.check_tokens()
        crowd.check_resource()
        assert crowd.overlaps() == []


@pytest.mark.timeout(180)
def test_a_replica_is_promoted_while_the_primary_is_frozen_and_then_thaws(
    primary: PostgresServer, replica: PostgresReplica, tmp_path: Path
) -> None:
    url = f"postgresql://lockline@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/postgres?timeout=0.5"
    with Crowd(url, tmp_path, 16, ["a", "b", "c"], TTL) as crowd:
        crowd.wait_for_grants(2)
        frozen_at = time.monotonic()
        primary.freeze()
        replica.promote()
        crowd.wait_for_grants(2, since=frozen_at + 1)
        primary.thaw()
        crowd.wait_for_grants(2, since=time.monotonic())
        crowd.stop()
        # Two holders are possible: their tokens tell them apart, and the fence lets no older one in.
        crowd.check_tokens()
        crowd.check_resource()


def test_a_grant_that_the_replica_never_saw_is_followed_by_a_higher_token(
    primary: PostgresServer, replica: PostgresReplica
) -> None:
    both = f"postgresql://lockline@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/postgres?timeout=0.5"
    with lockline.connect(both) as client, lockline.connect(both) as other:
        before = client.lock("x").acquire()
        wait_for(lambda: _replayed(primary, replica), 10, "the replica to follow")
        # From now on it hears of nothing.
        with psycopg.connect(replica.url, autocommit=True) as there:
            there.execute("ALTER SYSTEM SET primary_conninfo = ''")
            there.execute("SELECT pg_reload_conf()")
            wait_for(lambda: not there.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchall(), 10, "its deafness")
        unseen = [client.lock(f"y{n}", ttl=20).acquire() for n in range(5)]
        primary.freeze()
        replica.promote()
        for lease in unseen:
            again = other.lock(lease.name).acquire(timeout=20)
            assert again.token > lease.token
            again.release()
        assert other.lock("x").try_acquire() is None, "what it had seen it knows"
        assert before.valid
        primary.thaw()


def _replayed(primary: PostgresServer, replica: PostgresServer) -> bool:
    with psycopg.connect(primary.url) as one, psycopg.connect(replica.url) as two:
        rows = "SELECT count(*) FROM lockline.claim"
        return one.execute(rows).fetchall() == two.execute(rows).fetchall() == [(1,)]


def test_a_standby_given_as_url_says_what_it_is(primary: PostgresServer, replica: PostgresReplica) -> None:
    with lockline.connect(replica.url) as client:
        with pytest.raises(BackendUnavailable, match="read-only standby"):
            client.lock("x").acquire(timeout=3)
        # Once it is promoted, the same client goes on.
        replica.promote()
        client.lock("x").acquire(timeout=20).release()


def test_a_release_that_a_crash_forgets_lets_nobody_else_in_and_ends_with_its_ttl(primary: PostgresServer) -> None:
    """A release does not wait for the disk: after a crash in that moment its claim is there again, and nobody's."""
    with psycopg.connect(primary.url, autocommit=True) as connection:
        # So that what did not have to wait for the disk is not there when the crash comes.
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        connection.execute("SELECT pg_reload_conf()")
    with (
        lockline.connect(primary.url) as first,
        lockline.connect(primary.url) as next_one,
        lockline.connect(primary.url) as last,
    ):
        lease = first.lock("x", ttl=TTL).acquire()
        got: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: got.append(next_one.lock("x", ttl=30).acquire(timeout=60)))
        thread.start()
        wait_for(lambda: len(last.inspect("x").waiters) == 1, 20, "a waiter")
        lease.release()
        thread.join(60)
        primary.kill()
        primary.start()
        began = calm()
        # Whether it was forgotten or not: the one that was let in holds on, alone, and the next comes after it.
        assert last.lock("x").try_acquire() is None
        got[0].extend(30)
        got[0].release()
        after = last.lock("x").acquire(timeout=30)
        assert calm() - began < TTL + 2
        assert after.token > got[0].token > lease.token
        after.release()
