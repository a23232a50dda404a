"""What nobody has any more goes, whoever listens; and what was told of it has an end."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import lockline
from lockline import aio
from lockline.core import keeper
from lockline.observe import Event
from lockline.runtime import delivery

from ..contract.scene import A_MINUTE
from ..servers.process import wait_for
from .heard import Heard

pytestmark = pytest.mark.filterwarnings("ignore::lockline.LeaseDropped")


@pytest.fixture
def room() -> str:
    return f"memory:{random.randrange(1 << 40)}"


@pytest.fixture(autouse=True)
def _threads_go_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LINGER", 0.05)
    monkeypatch.setattr(delivery, "LINGER", 0.05)


def gone(reference: weakref.ref[Any]) -> bool:
    gc.collect()
    return reference() is None


class Program:
    """As many are written: it has a client, and is its listener."""

    def __init__(self, room: str) -> None:
        self.client = lockline.connect(room, on_event=self.hear)
        self.heard = 0

    def hear(self, event: Event) -> None:
        self.heard += 1


@pytest.mark.parametrize("closed", [False, True])
def test_a_listener_that_knows_its_client_does_not_keep_it(room: str, closed: bool) -> None:
    def run() -> weakref.ref[Any]:
        program = Program(room)
        program.client.lock("x").acquire().release()
        wait_for(lambda: program.heard == 3, A_MINUTE, "the story")
        if closed:
            program.client.close()
        return weakref.ref(program.client._engine)

    engine = run()
    wait_for(lambda: gone(engine), A_MINUTE, "the end of the client")


async def gives_its_lease(client: aio.Client) -> object:
    return await client.lock("x").acquire()


async def fails(client: aio.Client) -> object:
    lease = await client.lock("x").acquire()
    raise KeyError(lease.name)


async def drops(client: aio.Client) -> object:
    await client.lock("x").acquire()
    return None


@pytest.mark.parametrize("main", [gives_its_lease, fails, drops])
@pytest.mark.parametrize("listened_to", [False, True])
def test_a_loop_that_ends_without_a_close_leaves_nothing(
    room: str, main: Callable[[aio.Client], Awaitable[object]], listened_to: bool
) -> None:
    heard, engines = Heard(), []

    async def run() -> None:
        client = aio.connect(room, on_event=heard if listened_to else None)
        engines.append(weakref.ref(client._engine))
        try:
            await asyncio.create_task(main(client))  # type: ignore[arg-type]
        except KeyError:
            pass

    asyncio.run(run())
    wait_for(lambda: gone(engines[0]), A_MINUTE, "the end of the client")
    # Collected each time: what was still to be told then had the keeper in hand.
    wait_for(lambda: gone(engines[0]) and (heard.holders, heard.open) == (0, 0), A_MINUTE, "the end of its story")
