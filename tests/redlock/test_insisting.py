"""A majority that is away for longer than a node may take, and back before the caller's time is over: one call is enough."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockline import LeaseLost, QuorumNotReached
from lockline.core.claim import Gone, Grant, Unanswered
from lockline.runtime.blocking import run

from ..servers.process import wait_for
from ..tier import sample
from .proxy import Proxy, proxies
from .servers import Servers, servers, tells_of_silence
from .test_deadlines import lease_at_all
from .test_faulty_servers import url
from .test_late_requests import Flavour, both, client_of

pytestmark = pytest.mark.server

AWAY = 0.8
"""Several times as long as a node may take."""
FAULTS = ("frozen", "dead", "black-holed", "answers lost")

faulty = pytest.mark.parametrize(
    ("fault", "flavour"),
    sample(
        [("frozen", "sync"), ("dead", "asyncio"), ("black-holed", "sync"), ("answers lost", "asyncio")],
        [(fault, flavour) for fault in FAULTS for flavour in ("sync", "asyncio")],
    ),
)


@pytest.fixture(scope="module")
def three() -> Iterator[Servers]:
    with servers(3) as made:
        yield made


@pytest.fixture
def proxied(three: Servers) -> Iterator[list[Proxy]]:
    with proxies([node.port for node in three.nodes]) as made:
        yield made


def ask(one: Flavour, call: Callable[[Any, float], Any], seconds: float = 60.0) -> Any:
    """One call of the backend, with so much time."""
    backend = one.client._engine.backend

    async def asked() -> Any:
        return await call(backend, one.channel.now() + seconds)

    return one.do(asked) if one.asynchronous else run(asked())


def strike(three: Servers, proxied: list[Proxy], fault: str) -> None:
    for node, proxy in zip(three.nodes[:2], proxied[:2], strict=True):
        match fault:
            case "frozen":
                node.freeze()
            case "dead":
                proxy.refuse()
            case "black-holed":
                proxy.black_hole()
            case "answers lost":
                proxy.lose_answers()


def mend(three: Servers, proxied: list[Proxy], fault: str) -> None:
    for node, proxy in zip(three.nodes[:2], proxied[:2], strict=True):
        if fault == "frozen":
            node.thaw()
        else:
            proxy.heal()


@contextlib.contextmanager
def majority_away(three: Servers, proxied: list[Proxy], fault: str, seconds: float = AWAY) -> Iterator[None]:
    """Two of the three are not themselves for so long."""
    strike(three, proxied, fault)
    back = threading.Timer(seconds, mend, (three, proxied, fault))
    back.start()
    try:
        yield
    finally:
        back.join()


@faulty
def test_a_release_waits_for_the_majority_and_is_told_the_truth(
    three: Servers, proxied: list[Proxy], fault: str, flavour: str
) -> None:
    with client_of(flavour, url(proxied)) as one:
        lease = lease_at_all(one, three, "x", renew=False)
        with majority_away(three, proxied, fault):
            assert ask(one, lambda backend, until: backend.leave(lease._live.claim, until)) is True
    assert three.left_over("lockline:redlock:lease:*") == [[], [], []]


@both
def test_a_holder_whose_release_was_repeated_is_not_told_that_it_was_evicted(
    three: Servers, proxied: list[Proxy], flavour: str
) -> None:
    with client_of(flavour, url(proxied)) as one:
        lease = lease_at_all(one, three, "x", renew=False)
        with majority_away(three, proxied, "answers lost"):
            one.do(lambda: lease.release())


@both
def test_a_holder_that_was_evicted_is_told_so_by_a_minority_that_is_silent_at_first_or_not(
    three: Servers, proxied: list[Proxy], flavour: str
) -> None:
    with client_of(flavour, url(proxied)) as one, client_of("sync", three.url) as operator:
        # The operator is connected to all three, so that its eviction, which is over at a majority, is sent to each.
        warm = lease_at_all(operator, three, "warm", renew=False)
        operator.do(warm.release)
        lease = lease_at_all(one, three, "x", renew=False)
        assert operator.client.evict("x") == 1
        wait_for(lambda: not any(three.left_over("lockline:redlock:lease:x")), 60, "the end of the lease everywhere")
        three[0].freeze()
        try:
            with pytest.raises(LeaseLost, match="evicted"):
                one.do(lambda: lease.release())
        finally:
            three[0].thaw()


@both
def test_a_server_that_never_had_the_lease_need_not_say_so_for_an_evicted_holder_to_know(
    three: Servers, proxied: list[Proxy], flavour: str
) -> None:
    proxied[0].refuse()
    # The third has to answer the first request in time, however busy the machine is: after a repeat its "no" says nothing.
    with client_of(flavour, f"{url(proxied)}?timeout=10") as one, client_of("sync", three.url) as operator:
        lease = one.do(lambda: one.client.lock("x", ttl=60, renew=False).acquire())
        assert operator.client.evict("x") == 1
        three[1].freeze()
        try:
            # One that insisted on an answer that nobody needs would take all of the time that it has: more than a test may.
            assert ask(one, lambda backend, until: backend.leave(lease._live.claim, until), 900) is False
        finally:
            three[1].thaw()
        with pytest.raises(LeaseLost, match="evicted"):
            one.do(lambda: lease.release())


@faulty
def test_a_renewal_waits_for_the_majority(three: Servers, proxied: list[Proxy], fault: str, flavour: str) -> None:
    with client_of(flavour, url(proxied)) as one:
        lease = lease_at_all(one, three, "x", renew=False)
        with majority_away(three, proxied, fault):
            fates = ask(one, lambda backend, until: backend.renew([lease._live.claim], until))
        assert fates == [None]
        one.do(lambda: lease.release())


@faulty
def test_who_asks_for_a_lock_and_may_wait_waits_for_the_majority(
    three: Servers, proxied: list[Proxy], fault: str, flavour: str
) -> None:
    with client_of(flavour, url(proxied)) as one:
        lease = one.do(lambda: one.client.lock("warm", ttl=20, renew=False).acquire())
        claim = lease._live.claim._replace(name="x", id=f"{lease._live.claim.id}0")
        with majority_away(three, proxied, fault):
            grant = ask(one, lambda backend, until: backend.enter(claim, wait=True, until=until))
        assert isinstance(grant, Grant)
        assert ask(one, lambda backend, until: backend.leave(claim, until)) is True
        one.do(lambda: lease.release())


@both
def test_a_majority_that_stays_away_is_told_of_when_the_time_is_over(
    three: Servers, proxied: list[Proxy], flavour: str
) -> None:
    # The third has to answer in time, however busy the machine is.
    with client_of(flavour, f"{url(proxied)}?timeout=2") as one:
        lease = lease_at_all(one, three, "x", renew=False)
        claim = lease._live.claim

        def told(call: Callable[[Any, float], Any], said: str, seconds: float = 4.0) -> None:
            began = time.monotonic()
            try:
                (fate,) = ask(one, call, seconds)
                assert isinstance(fate, Unanswered)
                problem: Any = fate.problem
            except QuorumNotReached as raised:
                problem = raised
            assert time.monotonic() - began > seconds - 0.1
            *silent, third = problem.nodes.values()
            assert third == said
            assert all(tells_of_silence(text) for text in silent), silent

        strike(three, proxied, "frozen")
        try:
            other = claim._replace(name="y", id=f"{claim.id}0")
            told(lambda backend, until: backend.enter(other, wait=True, until=until), "free")
            told(lambda backend, until: backend.renew([claim], until), "confirmed")
            told(lambda backend, until: backend.leave(claim, until), "removed")
        finally:
            mend(three, proxied, "frozen")


@both
def test_who_knows_of_one_lease_tells_it_although_of_another_nothing_can_be_said(
    three: Servers, proxied: list[Proxy], flavour: str
) -> None:
    with client_of(flavour, url(proxied)) as one:
        held = [lease_at_all(one, three, name, renew=False) for name in "xyz"]
        lost, doubtful, sound = [lease._live.claim for lease in held]
        for node in three.nodes:
            node.command("DEL", "lockline:redlock:lease:x")
        three[1].command("DEL", "lockline:redlock:lease:y")
        three[0].freeze()
        try:
            fates = ask(one, lambda backend, until: backend.renew([lost, doubtful, sound], until), 900)
        finally:
            three[0].thaw()
        assert isinstance(fates[0], Gone)
        assert isinstance(fates[1], Unanswered)
        assert fates[2] is None
