"""What etcd keeps beside a line: it ends by itself, and the time is the member's."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import lockline
from lockline import BackendUnavailable, ConfigError
from lockline.backends.etcd.clock import MemberClock
from lockline.backends.etcd.target import parse
from lockline.backends.keyed.clock import Reading
from lockline.runtime.blocking import run

from ..servers.etcd import EtcdCluster
from .conftest import backend_of, keys_under, post, text

pytestmark = pytest.mark.server


def lease_of(etcd: EtcdCluster, url: str, name: str) -> int:
    """What the value of this key hangs on."""
    prefix = url.rpartition("/")[2]
    (kv,) = post(etcd, "kv/range", key=text(f"{prefix}/kept/{name}/once"))["kvs"]
    return int(kv["lease"])


def lasts(etcd: EtcdCluster, lease: int) -> int:
    """How long it was given; 0 if it is no more."""
    return int(post(etcd, "lease/timetolive", ID=lease).get("grantedTTL", 0))


def test_a_value_ends_by_itself_and_writing_it_anew_leaves_no_lease_behind(
    etcd: EtcdCluster, url: str, client_of: Callable[..., lockline.Client]
) -> None:
    alice, bob = client_of(url), client_of(url)
    alice.once("report", lambda: 1, fresh=20)
    first = lease_of(etcd, url, "report")
    assert 20 <= lasts(etcd, first) <= 25
    time.sleep(0.01)
    assert bob.once("report", lambda: 2, fresh=0.001) == 2
    second = lease_of(etcd, url, "report")
    assert first != second
    assert lasts(etcd, first) == 0
    assert alice.list() == []
    assert [key for key in keys_under(etcd, url.rpartition("/")[2]) if "/kept/" in key] == [
        f"{url.rpartition('/')[2]}/kept/report/once"
    ]


def test_a_value_that_etcd_refuses_leaves_no_lease_behind(
    etcd: EtcdCluster, url: str, client_of: Callable[..., lockline.Client]
) -> None:
    client = client_of(url)
    backend = backend_of(client)
    with client.lock("report") as lease:
        # A little too large for etcd, and too large for gRPC itself. To ask for it again and again would hang here.
        for size in (1600 << 10, 3 << 20):
            with pytest.raises(ConfigError, match="takes no value of"):
                run(backend.keep("report", "once", bytes(size), lease.token, 86400, backend._runtime.now() + 3600))
    # Others may come and go meanwhile; what this one leaves would last for a day.
    there = [int(found["ID"]) for found in post(etcd, "lease/leases")["leases"]]
    assert [each for each in there if lasts(etcd, each) >= 86400] == []


def test_the_time_is_the_members(url: str, client_of: Callable[..., lockline.Client]) -> None:
    backend = backend_of(client_of(url))
    until = backend._runtime.now() + 60
    before = time.time()
    run(backend.tell_time(1.0, until))
    record = run(backend.kept("x", "once", until))
    assert before - 1 < record.now < time.time() + 1
    assert record.value is None
    assert record.step > 0


def test_who_serves_no_http_says_what_to_look_at(url: str, client_of: Callable[..., lockline.Client]) -> None:
    backend = backend_of(client_of(url))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.listen()
        target = parse(f"etcd://127.0.0.1:{silent.getsockname()[1]}")
        clock = MemberClock(target, backend._channel, backend._runtime)
        with pytest.raises(BackendUnavailable, match="does not tell the time"):
            run(clock.time(backend._runtime.now() + 0.2))


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_where_one_member_is_silent_another_one_tells_the_time(
    etcd: EtcdCluster, url: str, client_of: Callable[..., lockline.Client], flavour: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = parse(f"etcd://127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{etcd.members[0].port}")

        async def ask(backend: Any) -> Reading:
            return await MemberClock(target, backend._channel, backend._runtime).time(backend._runtime.now() + 10)

        async def ask_on_a_loop() -> Reading:
            async with lockline.aio.connect(url) as client:
                return await ask(client._engine.backend)

        before = time.time()
        told = asyncio.run(ask_on_a_loop()) if flavour == "asyncio" else run(ask(backend_of(client_of(url))))
        assert before - 2 < told.now < time.time() + 2


def test_close_ends_the_wait_for_a_member_that_does_not_tell_the_time(url: str) -> None:
    client, told = lockline.connect(url), []
    backend = backend_of(client)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = parse(f"etcd://127.0.0.1:{silent.getsockname()[1]}")
        clock = MemberClock(target, backend._channel, backend._runtime)

        def ask() -> None:
            try:
                run(clock.time(backend._runtime.now() + 60))
            except lockline.ClientClosed as problem:
                told.append(problem)

        asks = threading.Thread(target=ask)
        asks.start()
        taken, _ = silent.accept()
        with taken:
            assert taken.recv(1)
            client.close()
            asks.join(60)
    assert len(told) == 1
