"""A burst of tasks of one client that takes a slow store longer than a ttl: each is served, and nobody is told that the store is away."""

from __future__ import annotations

import asyncio

from lockline import aio

from .servers.proxy import Proxy


def is_served_whole(url: str, proxy: Proxy, *, delay: float, tasks: int, names: int, ttl: float) -> None:
    """Each way takes so long; those who ask for the same name are served in order."""

    async def story() -> None:
        tokens: list[int] = []

        async def work(number: int) -> None:
            async with client.lock(f"n{number % names}", ttl=ttl) as lease:
                tokens.append(lease.token)
                lease.check()

        async with aio.connect(url) as client:
            await (await client.lock("warm").acquire()).release()
            proxy.delay(delay)
            await asyncio.gather(*map(work, range(tasks)))
            proxy.heal()
            assert len(tokens) == tasks
            assert names > 1 or tokens == sorted(tokens)
            assert await client.list() == []

    asyncio.run(story())
