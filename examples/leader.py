"""A leader among tasks: the body is cancelled the moment the lease is lost, and another takes over.

python examples/leader.py
"""

from __future__ import annotations

import asyncio
import tempfile

import lockline


async def candidate(client: lockline.aio.Client, who: str, elected: asyncio.Queue[str]) -> None:
    """Lead until the lease is lost, then stand in the line again."""
    while True:
        try:
            async with client.lock("leader", ttl=2) as lease:
                elected.put_nowait(who)
                print(f"{who} leads with token {lease.token}")
                await asyncio.sleep(60)
        except lockline.LeaseLost as lost:
            print(f"{who} was told: {lost.reason}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with lockline.aio.connect(f"local://{folder}/local.db") as client:
            elected: asyncio.Queue[str] = asyncio.Queue()
            tasks = [asyncio.create_task(candidate(client, who, elected)) for who in ("ada", "ben", "eve")]
            for _ in range(3):
                await elected.get()
                await client.evict("leader")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
