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
from tests.etcd.crowd import PatientCrowd
from tests.servers.postgres import PostgresReplica, PostgresServer
from tests.servers.process import wait_for
from tests.tier import sample

from .conftest import Database
from .template import CopiedPostgres

pytestmark = [pytest.mark.server, pytest.mark.slow]

TTL = 2.0
"""Where two holders are possible anyway, and the tokens tell them apart."""
LONG = 30.0
"""Where there is one holder at a time: the server goes by the machine's wall clock, which may be set forward by seconds."""
WORKERS = sample(3, 16)
NAMES = ["a", "b"]
STUCK = 120.0
"""Seconds after which a crowd that was granted nothing counts as stuck."""
OPTIONS = ("-c", "max_connections=200", "-c", "shared_buffers=32MB")


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    server = CopiedPostgres(*OPTIONS).start()
    yield server
    server.remove()


@pytest.fixture
def replica(primary: PostgresServer) -> Iterator[PostgresReplica]:
    server = PostgresReplica(primary, *OPTIONS)
    server.start()
    yield server
    server.remove()


def test_many_processes_survive_a_server_that_is_killed_and_comes_back(spare: Database, tmp_path: Path) -> None:
    """Longer than 5 s: a server is killed and started twice, and the processes go on each time."""
    with PatientCrowd(f"{spare.url}?prefix=killed", tmp_path, WORKERS, NAMES, LONG) as crowd:
        crowd.wait_for_grants(2, seconds=STUCK)
        for _ in range(2):
            spare.server.kill()
            spare.server.start()
            crowd.wait_for_grants(2, since=time.monotonic(), seconds=STUCK)
        crowd.stop()
        crowd.check_tokens()
        crowd.check_resource()
        assert crowd.overlaps() == []


def test_a_replica_is_promoted_while_the_primary_is_frozen_and_then_thaws(
    primary: PostgresServer, replica: PostgresReplica, tmp_path: Path
) -> None:
    """Longer than 5 s: two servers start, and the processes have to find out twice which of them to ask."""
    url = f"postgresql://lockline@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/postgres?timeout=0.5"
    with PatientCrowd(url, tmp_path, WORKERS, NAMES, TTL) as crowd:
        crowd.wait_for_grants(2, seconds=STUCK)
        frozen_at = time.monotonic()
        primary.freeze()
        replica.promote()
        crowd.wait_for_grants(2, since=frozen_at + 1, seconds=STUCK)
        primary.thaw()
        crowd.wait_for_grants(2, since=time.monotonic(), seconds=STUCK)
        crowd.stop()
        # Two holders are possible: their tokens tell them apart, and the fence lets no older one in.
        crowd.check_tokens()
        crowd.check_resource()


def test_a_standby_says_what_it_is_and_a_grant_that_it_never_saw_is_followed_by_a_higher_token(
    primary: PostgresServer, replica: PostgresReplica
) -> None:
    with lockline.connect(replica.url) as client:

        def is_named() -> bool:
            with pytest.raises(BackendUnavailable) as told:
                client.lock("standby").acquire(timeout=1)
            return "read-only standby" in str(told.value)

        # A server that is busy may need longer than that to answer.
        wait_for(is_named, 60, "the reason")
        _promote_without_its_last_grants(primary, replica)
        # Now that it is promoted, the same client goes on.
        client.lock("standby").acquire(timeout=60).release()


def _promote_without_its_last_grants(primary: PostgresServer, replica: PostgresReplica) -> None:
    both = f"postgresql://lockline@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/postgres?timeout=0.5"
    with lockline.connect(both) as client, lockline.connect(both) as other:
        before = client.lock("x", ttl=120).acquire()
        wait_for(lambda: _replayed(primary, replica), 60, "the replica to follow")
        # From now on it hears of nothing.
        with psycopg.connect(replica.url, autocommit=True) as there:
            there.execute("ALTER SYSTEM SET primary_conninfo = ''")
            there.execute("SELECT pg_reload_conf()")
            wait_for(lambda: not there.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchall(), 60, "its deafness")
        unseen = [client.lock(f"y{n}", ttl=120).acquire() for n in range(5)]
        primary.freeze()
        replica.promote()
        for lease in unseen:
            again = other.lock(lease.name).acquire(timeout=60)
            assert again.token > lease.token
            again.release()
        assert other.lock("x").try_acquire() is None, "what it had seen it knows"
        assert before.valid
        primary.thaw()


def _replayed(primary: PostgresServer, replica: PostgresServer) -> bool:
    with psycopg.connect(primary.url) as one, psycopg.connect(replica.url) as two:
        rows = "SELECT count(*) FROM lockline.claim"
        return one.execute(rows).fetchall() == two.execute(rows).fetchall() == [(1,)]


def test_a_release_that_a_crash_forgets_lets_nobody_else_in_and_ends_with_its_ttl(spare: Database) -> None:
    """A release does not wait for the disk: after a crash in that moment its claim is there again, and nobody's.

    Longer than 5 s: a server is killed and started, and a forgotten release ends with its ttl, of 5 s.
    """
    url = f"{spare.url}?prefix=forgotten"
    # So that what did not have to wait for the disk is not there when the crash comes.
    spare.ask("ALTER SYSTEM SET wal_writer_delay = '10s'")
    spare.ask("SELECT pg_reload_conf()")
    with (
        lockline.connect(url) as first,
        lockline.connect(url) as next_one,
        lockline.connect(url) as last,
    ):
        lease = first.lock("x", ttl=5).acquire()
        got: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: got.append(next_one.lock("x", ttl=60).acquire(timeout=60)))
        thread.start()
        wait_for(lambda: len(last.inspect("x").waiters) == 1, 60, "a waiter")
        lease.release()
        thread.join(60)
        spare.server.kill()
        spare.server.start()
        # Whether it was forgotten or not: the one that was let in holds on, alone, and the next comes after it.
        assert last.lock("x").try_acquire() is None
        got[0].extend(60)
        got[0].release()
        after = last.lock("x").acquire(timeout=60)
        assert after.token > got[0].token > lease.token
        after.release()
    spare.ask("ALTER SYSTEM RESET wal_writer_delay")
    spare.ask("SELECT pg_reload_conf()")
