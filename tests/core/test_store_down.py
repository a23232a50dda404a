"""What a caller was told about time is kept when nobody listens where the store should be."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import pytest

import lockline
from lockline import BackendUnavailable, aio
from tests.calm import calm
from tests.servers.process import free_port

TTL = 3600.0
TOO_LATE = 120.0
"""A call that does not keep its caller's time goes on for a ttl, which is an hour. `bench/deadlines.py` shows the real figure: below 0.3 s."""
URLS: dict[str, Callable[[], str]] = {
    "redis": lambda: f"redis://127.0.0.1:{free_port()}",
    "redis+sentinel": lambda: f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/mymaster",
    "redis+cluster": lambda: f"redis+cluster://127.0.0.1:{free_port()}",
    "redlock": lambda: "redlock://" + ",".join(f"127.0.0.1:{free_port()}" for _ in range(3)),
    "etcd": lambda: f"etcd://127.0.0.1:{free_port()}",
    "consul": lambda: f"consul://127.0.0.1:{free_port()}",
    "zk": lambda: f"zk://127.0.0.1:{free_port()}",
}


@pytest.fixture(params=list(URLS.values()), ids=list(URLS))
def url(request: pytest.FixtureRequest) -> str:
    return str(request.param())


def test_an_acquire_asks_for_as_long_as_its_timeout_and_no_longer(url: str) -> None:
    client = lockline.connect(url)
    for timeout in (0, 0.1, 0.8):
        began, calmly = time.monotonic(), calm()
        with pytest.raises(BackendUnavailable):
            client.lock("x", ttl=TTL).acquire(timeout=timeout)
        assert calm() - calmly < TOO_LATE
        assert time.monotonic() - began > timeout - 0.2
    client.close()


def test_a_try_ends_at_once(url: str) -> None:
    client = lockline.connect(url)
    began = calm()
    with pytest.raises(BackendUnavailable):
        client.lock("x", ttl=TTL).try_acquire()
    assert calm() - began < TOO_LATE
    client.close()


def test_questions_end_at_once(url: str) -> None:
    client = lockline.connect(url)
    questions: list[Callable[[], object]] = [lambda: client.inspect("x"), client.list, lambda: client.evict("x")]
    for ask in questions:
        began = calm()
        with pytest.raises(BackendUnavailable):
            ask()
        assert calm() - began < TOO_LATE
    client.close()


def test_an_examination_ends_at_once(url: str) -> None:
    client = lockline.connect(url)
    began = calm()
    with contextlib.suppress(BackendUnavailable):
        assert any(finding.level == "error" for finding in client.examine())
    assert calm() - began < TOO_LATE
    client.close()


def test_close_ends_at_once(url: str) -> None:
    client = lockline.connect(url)
    with pytest.raises(BackendUnavailable):
        client.lock("x", ttl=TTL).acquire(timeout=0)
    began = calm()
    client.close()
    assert calm() - began < TOO_LATE


def test_asyncio_keeps_the_same_times(url: str) -> None:
    async def took(call: Callable[[], object]) -> float:
        began = calm()
        with pytest.raises((BackendUnavailable, TimeoutError)):
            await call()  # type: ignore[misc]
        return calm() - began

    async def within(seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await client.lock("x", ttl=TTL).acquire()

    async def story() -> None:
        assert await took(lambda: client.lock("x", ttl=TTL).acquire(timeout=0)) < TOO_LATE
        assert await took(lambda: client.lock("x", ttl=TTL).acquire(timeout=0.1)) < TOO_LATE
        assert await took(lambda: client.lock("x", ttl=TTL).try_acquire()) < TOO_LATE
        assert await took(lambda: within(0.1)) < TOO_LATE
        assert await took(lambda: client.inspect("x")) < TOO_LATE
        began = calm()
        await client.close()
        assert calm() - began < TOO_LATE

    client = aio.connect(url)
    asyncio.run(story())
