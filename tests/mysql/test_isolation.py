"""A server or a user whose default isolation level is weaker than the steps need."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

import lockline
from tests.servers.process import wait_for

from .conftest import Database

pytestmark = pytest.mark.server


@pytest.fixture
def uncommitted(shared: Database) -> Iterator[Database]:
    """New sessions see what is not committed, unless they say otherwise."""
    ((before,),) = shared.ask("SELECT @@global.tx_isolation")
    shared.ask("SET GLOBAL tx_isolation = 'READ-UNCOMMITTED'")
    yield shared
    shared.ask("SET GLOBAL tx_isolation = %s", before)


def calls(database: Database) -> int:
    """How many steps of clients the server has run."""
    query = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'COM_CALL_PROCEDURE'"
    return int(database.ask(query)[0][0])


def test_a_removal_that_is_not_committed_lets_no_waiter_in(uncommitted: Database) -> None:
    """It waits for two looks of the waiter, which come some seconds apart."""
    url = f"{uncommitted.url}?prefix=uncommitted"
    with lockline.connect(url) as client, lockline.connect(url) as other:
        lease = client.lock("x", ttl=600).acquire()
        waiting = threading.Thread(target=lambda: other.lock("x", ttl=600).acquire(timeout=60).release())
        waiting.start()
        wait_for(lambda: client.inspect("x").waiters, 60, "a waiter")
        with contextlib.closing(uncommitted.connect()) as operator:
            operator.begin()
            operator.cursor().execute("DELETE FROM lockline_claim WHERE ticket = %s", [lease.token])
            before = calls(uncommitted)
            # Nothing else calls: no lease is due for renewal.
            wait_for(lambda: calls(uncommitted) >= before + 2 or not waiting.is_alive(), 60, "two looks of the waiter")
            assert waiting.is_alive()
            assert len(client.inspect("x").claims) == 2
            assert client.list() == ["x"]
            operator.rollback()
        lease.release()
        waiting.join(60)
        assert not waiting.is_alive()
