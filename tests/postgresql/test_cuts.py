"""The connection breaks at each step, before and after the commit; sessions are ended; answers are late."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockline
from lockline import BackendUnavailable
from lockline.core.shells import engine_of
from lockline.runtime.blocking import run
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy

from .conftest import Database

pytestmark = pytest.mark.server


@pytest.fixture
def proxy(shared: Database) -> Iterator[Proxy]:
    proxy = Proxy(("127.0.0.1", shared.server.port))
    yield proxy
    proxy.close()


def through(proxy: Proxy, prefix: str) -> str:
    return f"postgresql://lockline@127.0.0.1:{proxy.port}/postgres?prefix={prefix}&timeout=0.5"


async def now(outcome: Any) -> Any:
    return await outcome if inspect.isawaitable(outcome) else outcome


@pytest.fixture(params=["sync", "asyncio"])
def tell(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs a story with a client of either flavour."""

    def tell(url: str, story: Callable[[Any], Any]) -> Any:
        async def on_a_loop() -> Any:
            async with lockline.aio.connect(url) as client:
                return await story(client)

        if request.param == "asyncio":
            return asyncio.run(on_a_loop())
        with lockline.connect(url) as client:
            return run(story(client))

    return tell


def test_an_acquire_whose_answer_is_lost_after_the_commit_holds_once(
    shared: Database, proxy: Proxy, tell: Callable[..., Any]
) -> None:
    async def story(client: Any) -> None:
        await now((await now(client.lock("warm").acquire())).release())
        proxy.drop_reply(b"enter_v1")
        lease = await now(client.lock("x").acquire(timeout=60))
        assert proxy.lost == 1
        (claim,) = (await now(client.inspect("x"))).claims
        assert claim.token == lease.token
        await now(lease.release())
        assert not (await now(client.inspect("x"))).claims

    tell(through(proxy, "enter"), story)


def test_a_release_whose_answer_is_lost_after_the_commit_is_no_loss(
    shared: Database, proxy: Proxy, tell: Callable[..., Any]
) -> None:
    async def story(client: Any) -> None:
        lease = await now(client.lock("x").acquire(timeout=60))
        proxy.drop_reply(b"leave_v1")
        await now(lease.release())
        assert proxy.lost == 1
        assert not (await now(client.inspect("x"))).claims

    tell(through(proxy, "leave"), story)


def test_a_renewal_whose_answer_is_lost_is_no_loss(shared: Database, proxy: Proxy, tell: Callable[..., Any]) -> None:
    async def story(client: Any) -> None:
        lease = await now(client.lock("x", ttl=30).acquire(timeout=60))
        proxy.drop_reply(b"renew_v1")
        await now(lease.extend(30))
        assert proxy.lost == 1
        assert lease.valid
        await now(lease.release())

    tell(through(proxy, "renew"), story)


def test_a_look_of_a_waiter_whose_answer_is_lost_costs_no_place(
    shared: Database, proxy: Proxy, tell: Callable[..., Any]
) -> None:
    with lockline.connect(f"{shared.url}?prefix=place") as holder:
        held = holder.lock("x").acquire()

        def release_after_the_loss() -> None:
            # Not by the clock: a client that is slow would find it free, and never have to look.
            wait_for(lambda: proxy.lost, 60, "the lost answer")
            held.release()

        async def story(client: Any) -> None:
            proxy.drop_reply(b"place_v1")
            releases = threading.Thread(target=release_after_the_loss)
            releases.start()
            lease = await now(client.lock("x").acquire(timeout=60))
            releases.join(60)
            assert proxy.lost == 1
            await now(lease.release())

        tell(through(proxy, "place"), story)
        assert holder.list() == []


def test_an_eviction_whose_answer_is_lost_says_so_and_hits_nobody_else(shared: Database, proxy: Proxy) -> None:
    url = f"{shared.url}?prefix=evict"
    with (
        lockline.connect(url) as holder,
        lockline.connect(url) as other,
        lockline.connect(through(proxy, "evict")) as operator,
    ):
        held = holder.lock("x").acquire()
        got: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: got.append(other.lock("x").acquire(timeout=60)))
        thread.start()
        wait_for(lambda: len(other.inspect("x").waiters) == 1, 60, "a waiter")
        proxy.drop_reply(b"evict_v1")
        with pytest.raises(BackendUnavailable):
            operator.evict("x")
        thread.join(60)
        assert held.lost.wait(60)
        assert other.inspect("x").holders[0].token == got[0].token
        got[0].release()


@pytest.mark.parametrize("step", ["acquire", "release"])
def test_a_line_that_is_dead_before_the_commit_is_gone_round(
    shared: Database, proxy: Proxy, tell: Callable[..., Any], step: str
) -> None:
    async def story(client: Any) -> None:
        lease = await now(client.lock("x", ttl=60).acquire(timeout=60))
        if step == "acquire":
            await now(lease.release())
            proxy.strand()
            lease = await now(client.lock("x").acquire(timeout=60))
        else:
            proxy.strand()
        await now(lease.release())
        assert not (await now(client.inspect("x"))).claims

    tell(through(proxy, f"before-{step}"), story)


def test_a_request_that_arrives_after_its_withdrawal_finds_that(shared: Database, proxy: Proxy) -> None:
    with lockline.connect(through(proxy, "late")) as client:
        client.lock("warm").acquire().release()
        proxy.black_hole()
        with pytest.raises(BackendUnavailable):
            client.lock("x").acquire(timeout=0.4)
        owed = engine_of(client)._keeper.removals
        proxy.heal()  # now it arrives, and so does the withdrawal, in whichever order
        # Both: an empty line alone may be one that neither has come to.
        wait_for(lambda: not owed and not proxy.unanswered, 60, "what was under way")
        assert client.list() == []
        assert shared.ask("SELECT 1 FROM lockline.claim WHERE encode(name, 'escape') = 'late:x'") == []


def test_sessions_that_the_server_ends_cost_nothing(shared: Database, tell: Callable[..., Any]) -> None:
    end_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lockline'"

    async def story(client: Any) -> None:
        lease = await now(client.lock("x", ttl=60).acquire(timeout=60))
        shared.ask(end_all)
        await now(lease.extend(60))
        shared.ask(end_all)
        await now(lease.release())
        shared.ask(end_all)
        await now((await now(client.lock("x").acquire(timeout=60))).release())

    tell(f"{shared.url}?prefix=ended", story)


def test_a_timeout_for_idle_transactions_never_meets_one_of_ours(shared: Database, tell: Callable[..., Any]) -> None:
    async def story(client: Any) -> None:
        lease = await now(client.lock("x", ttl=30).acquire(timeout=60))
        await asyncio.sleep(0.1) if asyncio._get_running_loop() else threading.Event().wait(0.1)
        await now(lease.extend(30))
        await now(lease.release())

    tell(f"{shared.url}?prefix=idle&options=-c%20idle_in_transaction_session_timeout%3D20", story)


def test_a_pooler_that_hides_itself_is_noticed_when_a_session_forgets_what_was_prepared(shared: Database) -> None:
    with lockline.connect(f"{shared.url}?prefix=hidden") as client:
        for _ in range(5):
            client.lock("x").acquire().release()
        assert client.guarantees.push
        backend: Any = client._engine.backend
        (connection,) = backend._link.free
        connection.query(b"DEALLOCATE ALL", client._engine.runtime.now() + 60)
        client.lock("x").acquire(timeout=60).release()
        assert not client.guarantees.push


def test_tokens_rise_when_the_clock_is_behind_the_last_ticket(shared: Database) -> None:
    ahead = 2**61
    with lockline.connect(shared.url) as client:
        backend: Any = client._engine.backend
        slot = int(backend._places("clock").at) & 1023
        shared.ask("UPDATE lockline.slot SET last = %s WHERE number = %s", ahead, slot)
        for number in (1, 2):
            with client.lock("clock") as lease:
                assert lease.token == ahead + number
