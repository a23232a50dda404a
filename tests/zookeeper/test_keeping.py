"""What is kept beside a line on ZooKeeper: by the leader's time, and removed by those who write when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from kazoo.client import KazooClient

import lockline
from lockline.backends import kept
from lockline.runtime.blocking import run

from .conftest import chroot

pytestmark = pytest.mark.server


def test_who_writes_removes_what_is_over_and_leaves_the_rest(
    url: str, client_of: Callable[..., lockline.Client], kazoo: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, folder = client_of(url), f"{chroot(url)}/.kept"
    monkeypatch.setattr(kept, "SWEEPERS", 1.0)
    client.once("first", lambda: 1, fresh=0.02)
    client.once("long", lambda: 1, fresh=60)
    kazoo.create(f"{folder}/stranger", b"none of ours")
    time.sleep(0.05)
    client.once("another", lambda: 1, fresh=60)
    kazoo.sync(folder)
    assert sorted(kazoo.get_children(folder)) == [".sweeper", "another.once", "long.once", "stranger"]
    assert client.list() == []


def test_a_value_has_the_leaders_time(url: str, client_of: Callable[..., lockline.Client]) -> None:
    client = client_of(url)
    backend = client._engine.backend
    until = client._engine.runtime.now() + 10
    with client.lock("x") as lease:
        assert run(backend.keep("x", "once", b"value", lease.token, 20, until))  # type: ignore[attr-defined]
        assert not run(backend.keep("x", "once", b"no", lease.token - 1, 20, until))  # type: ignore[attr-defined]
    record = run(backend.kept("x", "once", until))  # type: ignore[attr-defined]
    assert abs(record.written - time.time()) < 60
    assert 0 <= record.now - record.written < 60
    assert record.written_step < record.step
    assert (record.value, record.token) == (b"value", lease.token)
