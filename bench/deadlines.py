"""How long a call takes when nobody listens where the store should be, beside the time that it was given.

python bench/deadlines.py
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable

from report import Report

import lockline
from lockline import aio

ROUNDS = 5


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def urls() -> dict[str, str]:
    """A store of each kind that is not there."""
    return {
        "redis": f"redis://127.0.0.1:{closed_port()}",
        "sentinel": f"redis+sentinel://127.0.0.1:{closed_port()}/mymaster",
        "cluster": f"redis+cluster://127.0.0.1:{closed_port()}",
        "redlock": "redlock://" + ",".join(f"127.0.0.1:{closed_port()}" for _ in range(3)),
        "etcd": f"etcd://127.0.0.1:{closed_port()}",
        "zk": f"zk://127.0.0.1:{closed_port()}",
    }


def longest(given: float, call: Callable[[], object]) -> float:
    """How much longer than it was given the slowest of several calls took."""
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with contextlib.suppress(lockline.LocklineError, TimeoutError):
            call()
        took.append(time.perf_counter() - began - given)
    return max(took)


def blocking(url: str) -> dict[str, float]:
    client = lockline.connect(url)
    lock = client.lock("x")
    found = {
        "acquire(timeout=0)": longest(0, lambda: lock.acquire(timeout=0)),
        "acquire(timeout=0.5)": longest(0.5, lambda: lock.acquire(timeout=0.5)),
        "try_acquire()": longest(0, lock.try_acquire),
        "inspect()": longest(0, lambda: client.inspect("x")),
    }
    return {**found, "close()": longest(0, client.close)}


def looping(url: str) -> dict[str, float]:
    async def measure() -> dict[str, float]:
        async def over(given: float, call: Callable[[], Awaitable[object]]) -> float:
            began = time.perf_counter()
            with contextlib.suppress(lockline.LocklineError, TimeoutError):
                await call()
            return time.perf_counter() - began - given

        async def within() -> None:
            async with asyncio.timeout(0.5):
                await client.lock("x").acquire()

        client = aio.connect(url)
        found = {"asyncio.timeout(0.5)": max([await over(0.5, within) for _ in range(ROUNDS)])}
        return {**found, "aio close()": await over(0, client.close)}

    return asyncio.run(measure())


def main() -> None:
    rows = []
    for name, url in urls().items():
        for call, late in {**blocking(url), **looping(url)}.items():
            rows.append({"store": name, "call": call, "late ms": round(late * 1000, 1), "limit ms": 300})
    report = Report("deadlines", {"lockline": lockline.__version__})
    report.table("how much later than its time a call ends when no store is there (the slowest of five)", rows)
    report.write()


if __name__ == "__main__":
    main()
