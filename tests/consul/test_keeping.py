"""What is kept beside a line on Consul: some of those who write remove what is over, and nothing else."""

from __future__ import annotations

import time

import pytest

from lockline.backends import kept
from lockline.runtime.blocking import run

from ..servers.consul import ConsulCluster
from .conftest import Clients, backend_of, keys_under, put

pytestmark = pytest.mark.server


def test_who_writes_removes_what_is_over_and_leaves_the_rest(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(url)
    monkeypatch.setattr(kept, "SWEEPERS", 0.0)
    client.once("short", lambda: 1, fresh=0.05)
    client.once("long", lambda: 1, fresh=60)
    put(consul, f"kv/{prefix}/kept/stranger", "none of ours")
    time.sleep(0.1)
    assert len(keys_under(consul, f"{prefix}/kept/")) == 3
    monkeypatch.setattr(kept, "SWEEPERS", 1.0)
    client.once("another", lambda: 1, fresh=60)
    assert keys_under(consul, f"{prefix}/kept/") == [
        f"{prefix}/kept/another/once.",
        f"{prefix}/kept/long/once.",
        f"{prefix}/kept/stranger",
    ]
    assert client.list() == []


def test_a_claim_that_was_moved_to_another_session_still_writes(url: str, client_of: Clients) -> None:
    client = client_of(url)
    backend = backend_of(client)
    with client.lock("x", ttl=10) as lease:
        (own,) = backend._claims.standing()
        before = own.carrier
        lease.extend(30)
        assert own.carrier is not before
        after, own.carrier = own.carrier, before  # as known by one who was about to write
        until = backend._runtime.now() + 60
        assert run(backend.keep("x", "once", b"value", lease.token, 20, until))
        own.carrier = after
        assert run(backend.kept("x", "once", until)).value == b"value"
        assert not run(backend.keep("x", "once", b"no", lease.token - 1, 20, until))
