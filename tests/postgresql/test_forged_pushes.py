"""A notification is only a hint: every role that may connect may send one, on any channel."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import lockline
from lockline import aio
from tests.servers.process import wait_for

from .conftest import Database

pytestmark = pytest.mark.server
FORGED = 2**63 - 1


def forge_a_grant(database: Database) -> None:
    """Read a waiting claim's id and channel, and notify it as an old release of Lockline would on a grant."""
    for claim_id, channel in database.ask("SELECT id, channel FROM lockline.claim WHERE channel IS NOT NULL"):
        database.ask("SELECT pg_notify(%s, %s)", channel, f"{claim_id} {FORGED}")


def looks(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that this client asks the database for from now on, each once it was answered."""
    asked: list[str] = []
    channel = client._engine.backend.channel
    run = channel.run

    async def noted(call: Any, *args: Any, **how: Any) -> Any:
        answer = await run(call, *args, **how)
        asked.append(call.routine)
        return answer

    monkeypatch.setattr(channel, "run", noted)
    return asked


def listening_waiters(database: Database) -> int:
    ((count,),) = database.ask("SELECT count(*) FROM lockline.claim WHERE channel IS NOT NULL AND NOT told")
    return int(count)


def test_a_forged_notification_grants_nothing(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with lockline.connect(shared.url) as holder, lockline.connect(shared.url) as waiter:
        held = holder.lock("forged", ttl=60).acquire()
        got: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: got.append(waiter.lock("forged", ttl=60).acquire()))
        thread.start()
        wait_for(lambda: listening_waiters(shared) == 1, 60)
        asked = looks(waiter, monkeypatch)
        forge_a_grant(shared)
        # The waiter has asked the database, which has refused.
        wait_for(lambda: "place" in asked, 60, "a look of the waiter")
        thread.join(0.2)
        assert not got
        held.release()
        thread.join(60)
        assert held.token < got[0].token < FORGED
        got[0].release()


def test_asyncio_a_forged_notification_grants_nothing(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with aio.connect(shared.url) as holder, aio.connect(shared.url) as waiter:
            held = await holder.lock("forged", ttl=60).acquire()
            waits = asyncio.create_task(waiter.lock("forged", ttl=60).acquire())
            await asyncio.to_thread(wait_for, lambda: listening_waiters(shared) == 1, 60)
            asked = looks(waiter, monkeypatch)
            await asyncio.to_thread(forge_a_grant, shared)
            await asyncio.to_thread(wait_for, lambda: "place" in asked, 60, "a look of the waiter")
            await asyncio.wait([waits], timeout=0.2)
            assert not waits.done()
            await held.release()
            lease = await asyncio.wait_for(waits, 60)
            assert held.token < lease.token < FORGED
            await lease.release()

    asyncio.run(story())
