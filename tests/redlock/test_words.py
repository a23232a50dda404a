"""Numbers go to hiredis as text: it does not survive an exception while it makes text of them itself."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import hiredis
import pytest

import lockline
from lockline import aio
from lockline.backends.resp import commands
from tests.redis.renewed import TTL, wait_for_renewal
from tests.servers.process import wait_for
from tests.tier import sample

from .servers import Servers, servers

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def three() -> Iterator[Servers]:
    with servers(3) as made:
        yield made


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[type]:
    """The types of all words that are packed."""
    types: set[type] = set()

    def pack(words: tuple[Any, ...]) -> bytes:
        types.update(map(type, words))
        return bytes(hiredis.pack_command(words))

    monkeypatch.setattr(commands, "_pack", pack)
    return types


def test_hiredis_is_given_texts_alone_by_threads(three: Servers, seen: set[type]) -> None:
    with lockline.connect(three.url, node_timeout=5.0) as client:
        lease = client.lock("x", ttl=TTL).acquire()

        def wait() -> None:
            with pytest.raises(lockline.AcquireTimeout):
                client.lock("x").acquire(timeout=1)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_for(lambda: len(client.inspect("x").waiters) == 1, 60, "a waiter")
        thread.join(60)
        wait_for_renewal(lease)
        assert client.list() == ["x"]
        assert client.evict("x") == 1
        assert lease.lost.wait(60)
    assert seen == {str}


def test_hiredis_is_given_texts_alone_by_tasks(three: Servers, seen: set[type]) -> None:
    async def main() -> None:
        async with aio.connect(three.url) as client, aio.connect(three.url, node_timeout=5.0) as other:
            async with client.lock("x", ttl=TTL) as held:
                with pytest.raises(lockline.AcquireTimeout):
                    await other.lock("x").acquire(timeout=1)
                await asyncio.to_thread(wait_for_renewal, held)
                assert await client.list() == ["x"]
                assert len((await client.inspect("x")).holders) == 1
            lease = await client.lock("x", ttl=60).acquire()
            assert await client.evict("x") == 1
            await lease.lost.wait()

    asyncio.run(asyncio.wait_for(main(), 120))
    assert seen == {str}


INTERRUPTED = """
import signal, sys, time
import lockline
from lockline.backends.redlock.commands import acquire, packed

class Interrupt(BaseException):
    pass

def strike(*_):
    raise Interrupt

signal.signal(signal.SIGALRM, strike)
client = lockline.connect(sys.argv[1])
client.lock("x").acquire().release()
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    try:
        for _ in range(2000):
            packed(acquire("x", "id", 12345678, 10**12, ""), "cluster")
        with client.lock("x", ttl=0.6):
            pass
    except Interrupt:
        pass
    except Exception:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
print("alive")
"""


@pytest.mark.slow
def test_an_exception_in_the_midst_of_a_request_never_brings_the_interpreter_down(three: Servers) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, three.url, str(sample(0.7, 3.0))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode != -signal.SIGSEGV, ran.stderr
    # The last alarm may strike where nobody catches it: that is an ordinary end.
    assert "alive" in ran.stdout or "Interrupt" in ran.stderr
