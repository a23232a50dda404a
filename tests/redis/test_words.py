"""Numbers go to hiredis as text: it does not survive an exception while it makes text of them itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

import lockline
from lockline.backends.resp import commands as commands_module
from lockline.fence import RedisFence
from lockline.runtime import clock
from lockline.runtime.blocking import run
from tests.redis.renewed import TTL, wait_for_renewal
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]


def test_hiredis_is_given_texts_and_bytes_alone(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[type] = []
    real = commands_module._pack

    def watched(words: Any) -> Any:
        seen.extend(map(type, words))
        return real(words)

    monkeypatch.setattr(commands_module, "_pack", watched)
    client = connect(server.url)
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
    backend = client._engine.backend
    assert run(backend.examine(clock.now() + 60))
    assert client.evict("x") == 1
    assert lease.lost.wait(60)
    assert seen
    assert set(seen) <= {str, bytes}


def test_a_fence_gives_its_client_no_numbers(server: RedisServer) -> None:
    seen: list[type] = []
    with redis.Redis(port=server.port) as client:
        fence = RedisFence(client)
        send = fence._sender.send

        async def watched(*words: object) -> object:
            seen.extend(map(type, words))
            return await send(*words)

        fence._sender.send = watched  # type: ignore[method-assign]
        fence.enter("counter", 1, lock="x")
        assert fence.incr("counter", 1, 7, lock="x") == 7
        fence.set("ratio", 1, 2.5, ttl=10, lock="x")
        assert fence.get("ratio", 1, lock="x") == b"2.5"
        fence.hset("table", 1, {1: 2, "three": 4.0}, lock="x")
        assert client.hgetall("table") == {b"1": b"2", b"three": b"4.0"}
        assert fence.eval("counter", 1, "return ARGV[1] + 1", args=[41], lock="x") == 42
    assert seen
    assert set(seen) <= {str, bytes}


INTERRUPTED = """
import signal, sys, time
import redis
from lockline.backends.resp.commands import pack
from lockline.fence import RedisFence

class Interrupt(BaseException):
    pass

def strike(*_):
    raise Interrupt

signal.signal(signal.SIGALRM, strike)
# RESP2: redis-py's own greeting of RESP3 is packed with a number, and that crashes without Lockline too.
fence = RedisFence(redis.Redis(port=int(sys.argv[1]), protocol=2))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
end = time.monotonic() + float(sys.argv[2])
token = 0
while time.monotonic() < end:
    try:
        try:
            for _ in range(100):
                pack(("EVALSHA", "x", 1, b"key", 12345678, "id", 10**12))
            token += 1
            fence.incr("counter", token, 7, lock="x")
        except (Interrupt, Exception):
            pass
    except Interrupt:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
print("alive")
"""


def test_an_exception_in_the_midst_of_a_request_never_brings_the_interpreter_down(server: RedisServer) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(server.port), str(sample(0.7, 3.0))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode != -signal.SIGSEGV, ran.stderr
    # The last alarm may strike where nobody catches it: that is an ordinary end.
    assert "alive" in ran.stdout or "Interrupt" in ran.stderr
