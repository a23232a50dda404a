"""The end of a client, from wherever it is asked for."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockline
from lockline import ClientClosed
from tests.servers.redis import a_redis


@pytest.fixture(params=["memory", "local", pytest.param("redis", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that nobody else uses."""
    if request.param == "redis":
        with a_redis() as server:
            yield server.url
    else:
        yield f"memory:closing-{time.monotonic_ns()}" if request.param == "memory" else f"local://{tmp_path}/x.db"


def test_a_client_that_a_signal_handler_closes_leaves_nothing_of_the_wait_below_it(url: str) -> None:
    other, client = lockline.connect(url), lockline.connect(url)
    held = other.lock("x", ttl=600).acquire()

    def ask_for_it() -> None:
        until = time.monotonic() + 100
        while len(other.inspect("x").waiters) != 1 and time.monotonic() < until:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, lambda number, frame: client.close())
    asking = threading.Thread(target=ask_for_it)
    try:
        asking.start()
        with pytest.raises(ClientClosed):
            client.lock("x", ttl=600).acquire(timeout=120)
        assert [claim.id for claim in other.inspect("x").claims] == [held.id], "its ttl is ten minutes"
    finally:
        asking.join()
        signal.signal(signal.SIGALRM, before)
        held.release()
        other.close()
        client.close()
