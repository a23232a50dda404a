"""A server that takes only short statements: no lease of a batch is lost for the length of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import lockline
from lockline.core.claim import Claim, Grant
from lockline.runtime.blocking import run

from .conftest import Database

pytestmark = pytest.mark.server


@pytest.fixture
def terse(shared: Database) -> Iterator[str]:
    """For sessions that begin now, the shortest that can be set."""
    ((usual,),) = shared.ask("SELECT @@global.max_allowed_packet")
    shared.ask("SET GLOBAL max_allowed_packet = 1024")
    yield f"{shared.url}?prefix=t"
    with shared.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL max_allowed_packet = {usual}")


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_a_batch_that_is_too_large_is_halved_and_no_lease_of_it_is_lost(terse: str, flavour: str) -> None:
    claims = [
        Claim(f"{number:0100}", f"packets-{flavour}-{number}", "me", "lock", 1, 1, 600.0, 0.0, "")
        for number in range(90)
    ]

    async def story(backend: Any) -> None:
        for claim in claims:
            assert isinstance(await backend.enter(claim, wait=False, until=backend.now() + 60), Grant)
        assert list(await backend.renew(claims, backend.now() + 60)) == [None] * len(claims)
        assert list(await backend.leave_all(claims, backend.now() + 60)) == [True] * len(claims)

    async def in_tasks() -> None:
        async with lockline.aio.connect(terse) as client:
            await story(client._engine.backend)

    if flavour == "asyncio":
        asyncio.run(in_tasks())
    else:
        with lockline.connect(terse) as client:
            run(story(client._engine.backend))
