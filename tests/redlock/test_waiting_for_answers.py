"""A conversation wakes its caller when enough has come to decide something; never later than when nothing more can come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockline.backends.redlock.answers import nothing
from lockline.backends.redlock.commands import NodeRequest
from lockline.runtime.blocking import run

from ..tier import sample
from .servers import Servers, servers
from .test_late_requests import both, client_of

pytestmark = pytest.mark.server

PING = NodeRequest("raw", ("PING",))


@pytest.fixture(scope="module")
def three() -> Iterator[Servers]:
    with servers(3) as made:
        yield made


@both
@pytest.mark.parametrize("least", sample([1, 3], [1, 2, 3]))
def test_who_waits_for_more_answers_than_are_due_is_woken_by_the_last(three: Servers, flavour: str, least: int) -> None:
    with client_of(flavour, three.url) as one:
        one.do(one.do(lambda: one.client.lock("warm").acquire()).release)

        async def story() -> tuple[bool, int]:
            until = one.channel.now() + 900  # longer than a test may take
            talk = await one.channel.talk(nothing, until)
            talk.send_all(PING, [0, 2])
            there = await talk.wait(until, least)
            found = len(talk.answers)
            talk.part()
            return there, found

        there, found = one.do(story) if flavour == "asyncio" else run(story())
        assert there
        assert found >= min(least, 2)
