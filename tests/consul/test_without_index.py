"""A proxy that removes X-Consul-Index from the answers: an agent keeps no query without it, and answers at once."""

from __future__ import annotations

import time

import pytest

from lockline.backends.consul import connection_blocking
from lockline.backends.consul.connection import ConsulReply, reply

from ..servers.process import wait_for
from .conftest import Clients

pytestmark = pytest.mark.server

WATCHED = 5.0


def test_an_agent_whose_answers_have_no_index_is_asked_once_a_second(
    url: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than 5 s: for so long the queries are counted."""
    numbered: list[float] = []

    def without_index(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> ConsulReply:
        others = [(name, value) for name, value in headers if name.lower() != b"x-consul-index"]
        if len(others) < len(headers):
            numbered.append(time.monotonic())
        return reply(status, others, body)

    monkeypatch.setattr(connection_blocking, "reply", without_index)
    holder, other = client_of(url), client_of(url)
    lease = holder.lock("x", ttl=60).acquire()
    wait_for(lambda: bool(numbered), 60, "the first query")
    time.sleep(WATCHED)
    assert len(numbered) <= 3 * WATCHED
    # An eviction is found by the next query all the same.
    other.evict("x")
    assert lease.lost.wait(60)
