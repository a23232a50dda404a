"""A list is complete or an error, also where the server is busy or gone; for one after a failover see test_failover.py."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import redis

import lockline
from lockline import BackendUnavailable
from lockline.core import engine
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer, a_redis

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]


def test_a_server_that_is_busy_for_a_moment_is_waited_for(connect: Connect) -> None:
    """As every other call does: BUSY passes by itself."""
    with a_redis("--busy-reply-threshold", "10") as server:
        client = connect(server.url)
        lease = client.lock("x", ttl=60).acquire()
        assert client.list() == ["x"]
        busy = threading.Thread(target=_run_until_killed, args=(server,))
        busy.start()
        wait_for(lambda: _is_busy(server), 60, "a busy server")
        killing = threading.Timer(0.3, server.command, ("SCRIPT", "KILL"))
        killing.start()
        assert client.list() == ["x"]
        killing.join()
        busy.join(60)
        lease.release()


def _run_until_killed(server: RedisServer) -> None:
    with pytest.raises(redis.RedisError):
        server.command("EVAL", "while true do end", 0)


def _is_busy(server: RedisServer) -> bool:
    try:
        server.command("TIME")
    except redis.RedisError as problem:
        return "BUSY" in str(problem)
    return False


def test_where_nobody_is_a_list_says_so_soon(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    # One that insisted would take all of the time that it has: more than a test may.
    monkeypatch.setattr(engine, "PATIENCE", 900.0)
    with a_redis() as server:
        client = connect(server.url)
        assert client.list() == []
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        client.list()
