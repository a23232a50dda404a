"""A leader among tasks: the body is cancelled the moment the lease is lost, and another takes over.

python examples/leader.py
"""

from __future__ import annotations

import asyncio
import tempfile

import lockline


async def candidate(client: lockline.aio.Client, who: str, led: list[str]) -> None:
    """Lead until the lease is lost, then stand in the line again."""
    while len(led) < 3:
        try:
            async with client.lock("leader", ttl=2) as lease:
                led.append(who)
                print(f"{who} leads with token {lease.token}")
                await asyncio.sleep(60)
        except lockline.LeaseLost as lost:
            print(f"{who} was told: {lost.reason}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with lockline.aio.connect(f"local://{folder}/local.db") as client:
            led: list[str] = []
            tasks = [asyncio.create_task(candidate(client, who, led)) for who in ("ada", "ben", "eve")]
            for turn in (1, 2, 3):
                while len(led) < turn:
                    await asyncio.sleep(0.01)
                await client.evict("leader")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
