"""A caller's own limit, an alarm that raises, ends its wait for a store that is silent: as what it is, and at once."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import lockline
from lockline.runtime.limits import is_callers, let_out
from tests.cutting import Overtime, SoftLimit, alarm
from tests.tier import sample

URLS = {
    "redis": "redis://127.0.0.1:{port}",
    "redlock": "redlock://127.0.0.1:{port},127.0.0.1:{second},127.0.0.1:{third}",
    "etcd": "etcd://127.0.0.1:{port}",
    "zookeeper": "zk://127.0.0.1:{port}",
    "consul": "consul://127.0.0.1:{port}",
    "postgresql": "postgresql://nobody@127.0.0.1:{port}/nothing",
    "mysql": "mysql://nobody@127.0.0.1:{port}/nothing",
}
PATIENCE = 600.0
"""Seconds that the client itself would wait for the store: longer than a test may take."""
LIMITS: dict[str, Exception] = {
    "SoftLimit": SoftLimit("my time is over"),
    "in the words of a socket": TimeoutError("timed out"),
    "Overtime": Overtime("my time is over"),
    "TimeoutError": TimeoutError("my time is over"),
    "with a number": TimeoutError(errno.ETIME, os.strerror(errno.ETIME)),
    "OSError": OSError("my time is over"),
    "ValueError": ValueError("my time is over"),
}
TRIED = [(store, limit) for store in URLS for limit in (LIMITS if store == "redis" else list(LIMITS)[: sample(2, 7)])]
"""`make test` tries all of them on Redis, and on each other store one that is no OSError and one that looks like the store's own."""


@pytest.fixture
def silent() -> Iterator[dict[str, int]]:
    """Ports where everybody is let in, and nobody answered."""
    with ExitStack() as servers:
        yield {
            name: servers.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64)).getsockname()[1]
            for name in ("port", "second", "third")
        }


@pytest.mark.parametrize(("store", "name"), TRIED)
def test_an_alarm_ends_the_wait_for_a_store_that_is_silent(silent: dict[str, int], store: str, name: str) -> None:
    limit = LIMITS[name]
    with (
        lockline.connect(URLS[store].format_map(silent)) as client,
        alarm(limit, after=0.2),
        pytest.raises(type(limit)) as struck,
    ):
        client.lock("x").acquire(timeout=PATIENCE)
    assert struck.value is limit


def test_an_error_of_before_is_not_told_again() -> None:
    """Who asks while he handles a limit of his own does not get that one for the silence of the store."""
    mine = TimeoutError("mine")
    assert is_callers(mine)
    try:
        raise mine
    except TimeoutError:
        try:
            raise ConnectionResetError("the server closed it")
        except ConnectionResetError as problem:
            let_out(problem, mine)
            with pytest.raises(TimeoutError, match="mine"):
                let_out(problem, None)


@pytest.mark.parametrize("other", [TimeoutError(110, "Connection timed out"), TimeoutError("timed out"), OSError("x")])
def test_what_a_socket_says_is_no_limit_of_the_callers(other: OSError) -> None:
    assert not is_callers(other)
