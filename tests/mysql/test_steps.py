"""The steps of a line as the database sees them: how many trips, at which level, by which clock, and in whose way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import aiomysql
import pymysql
import pytest

import lockline
from lockline import AcquireTimeout, BackendUnavailable
from lockline.backends.mysql.schema import RIGHTS
from lockline.backends.sql import backend
from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.cutting import SoftLimit
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy

from .conftest import Database

pytestmark = pytest.mark.server


@pytest.fixture
def proxy(shared: Database) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", shared.server.port)) as proxy:
        yield proxy


def through(proxy: Proxy, prefix: str) -> str:
    return f"mysql://root@127.0.0.1:{proxy.port}/lockline?prefix={prefix}"


def slot_of(client: lockline.Client, name: str) -> int:
    backend: Any = client._engine.backend
    return int(backend._places(name).at) & 1023


def test_an_uncontended_lock_is_one_trip_and_its_release_another(proxy: Proxy) -> None:
    with lockline.connect(through(proxy, "trips")) as client:
        client.lock("x").acquire(timeout=60).release()
        before = proxy.requests
        for _ in range(10):
            client.lock("x").acquire(timeout=60).release()
        assert proxy.requests - before == 20


def test_the_same_in_asyncio(proxy: Proxy) -> None:
    async def story() -> None:
        async with lockline.aio.connect(through(proxy, "aiotrips")) as client:
            await (await client.lock("x").acquire(timeout=60)).release()
            before = proxy.requests
            for _ in range(10):
                await (await client.lock("x").acquire(timeout=60)).release()
            assert proxy.requests - before == 20

    asyncio.run(story())


def test_who_waits_does_not_write(shared: Database) -> None:
    with lockline.connect(f"{shared.url}?prefix=quiet") as one, lockline.connect(f"{shared.url}?prefix=quiet") as two:
        # No claim is due for renewal before the end of the test.
        with one.lock("x", ttl=600), shared.connect() as session, session.cursor() as cursor:
            waiter = threading.Thread(target=lambda: two.lock("x", ttl=600).acquire(timeout=120).release())
            waiter.start()
            wait_for(lambda: one.inspect("x").waiters, 60, "a waiter")

            def counted(what: str) -> int:
                cursor.execute(f"SHOW GLOBAL STATUS LIKE '{what}'")
                return int(cursor.fetchall()[0][1])

            looks, transactions = counted("Com_call_procedure"), counted("Com_begin")
            wait_for(lambda: counted("Com_call_procedure") >= looks + 20, 60, "twenty looks")
            assert counted("Com_begin") == transactions
        waiter.join(60)


@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ", "READ UNCOMMITTED"])
def test_the_level_that_sessions_begin_with_does_not_matter(shared: Database, level: str) -> None:
    shared.ask(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {level}")
    shared.ask("SET GLOBAL autocommit = 0")
    try:
        tokens: list[int] = []

        def work() -> None:
            with lockline.connect(f"{shared.url}?prefix=level") as client:
                for _ in range(8):
                    with client.lock("crowd", timeout=60) as lease:
                        tokens.append(lease.token)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        assert len(tokens) == 32
        assert tokens == sorted(set(tokens))
    finally:
        shared.ask("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        shared.ask("SET GLOBAL autocommit = 1")


def test_a_time_zone_changes_nothing(shared: Database) -> None:
    with lockline.connect(f"{shared.url}?prefix=zone") as one, one.lock("x", ttl=60) as lease:
        shared.ask("SET GLOBAL time_zone = '+13:00'")
        try:
            with lockline.connect(f"{shared.url}?prefix=zone") as two:
                (holder,) = two.inspect("x").holders
                assert holder.token == lease.token
                assert 0 < holder.remaining <= 60
                assert two.lock("x").try_acquire() is None
        finally:
            shared.ask("SET GLOBAL time_zone = SYSTEM")


def test_a_ttl_counts_from_when_the_claim_got_its_place_and_not_from_when_it_began_to_wait_for_the_row(
    shared: Database,
) -> None:
    with lockline.connect(f"{shared.url}?prefix=late") as client, shared.connect(autocommit=False) as other:
        # Somebody else's step that takes long.
        other.query(f"SELECT last FROM lockline_slot WHERE number = {slot_of(client, 'x')} FOR UPDATE")
        ends: list[int] = []

        def take() -> None:
            with client.lock("x", ttl=60, renew=False, timeout=60):
                ends.extend(shared.ask("SELECT expires FROM lockline_claim WHERE name = 'late:x'")[0])

        thread = threading.Thread(target=take)
        thread.start()
        shared.who_waits()
        ((then,),) = shared.ask("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
        other.rollback()
        thread.join(60)
        assert ends[0] - 60_000_000 >= then


def test_a_step_in_the_way_for_long_is_asked_again_and_leaves_nothing_behind(shared: Database) -> None:
    with (
        lockline.connect(f"{shared.url}?prefix=way&timeout=0.5") as client,
        shared.connect(autocommit=False) as other,
    ):
        other.query(f"SELECT last FROM lockline_slot WHERE number = {slot_of(client, 'x')} FOR UPDATE")
        with pytest.raises(BackendUnavailable):
            client.lock("x", ttl=300).acquire(timeout=1.2)
        other.rollback()
        # What was asked, and waited at the server, is done there and withdrawn, or was withdrawn before: nobody holds.
        wait_for(lambda: not client.list(), 60, "the end of what was asked")
        client.lock("x").acquire(timeout=60).release()


def test_a_step_that_is_killed_in_the_middle_keeps_nobody_out(shared: Database) -> None:
    with (
        lockline.connect(f"{shared.url}?prefix=killed") as client,
        lockline.connect(f"{shared.url}?prefix=killed") as second,
    ):
        client.lock("x").acquire(timeout=60).release()
        slot = slot_of(client, "x")
        with shared.connect(autocommit=False) as blocker:
            blocker.query(f"SELECT last FROM lockline_slot WHERE number = {slot} FOR UPDATE")
            thread = threading.Thread(target=lambda: client.lock("x").acquire(timeout=60).release())
            thread.start()
            shared.ask(f"KILL QUERY {shared.who_waits()}")
            blocker.rollback()
        thread.join(60)
        assert not thread.is_alive()
        second.lock("x").acquire(timeout=60).release()


def test_connections_that_the_server_ended_while_they_were_idle_cost_nothing(shared: Database) -> None:
    url = f"{shared.url}?prefix=idle"

    def end_all() -> None:
        for (number,) in shared.ask(
            "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = 'lockline'"
        ):
            shared.ask(f"KILL {number}")

    with lockline.connect(url) as client:
        for _ in range(3):
            client.lock("x").acquire(timeout=60).release()
            end_all()
        client.lock("x").acquire(timeout=60).release()

    async def story() -> None:
        async with lockline.aio.connect(url) as client:
            for _ in range(3):
                await (await client.lock("x").acquire(timeout=60)).release()
                end_all()
            await (await client.lock("x").acquire(timeout=60)).release()

    asyncio.run(story())


def test_what_a_killed_client_leaves_is_swept_by_somebody_elses_release(shared: Database) -> None:
    with lockline.connect(f"{shared.url}?prefix=swept") as client:
        lease = client.lock("old", ttl=60, renew=False).acquire(timeout=60)
        shared.ask("UPDATE lockline_claim SET expires = expires - 200000000 WHERE name = 'swept:old'")
        shared.ask("INSERT INTO lockline_withdrawn VALUES ('somebody', 5)")
        shared.ask("CALL lockline_sweep_v1()")
        assert shared.ask("SELECT COUNT(*) FROM lockline_claim WHERE name = 'swept:old'") == [(0,)]
        assert shared.ask("SELECT COUNT(*) FROM lockline_withdrawn WHERE id = 'somebody'") == [(0,)]
        with pytest.raises(lockline.LeaseLost):
            lease.release()


def test_tokens_rise_when_the_clock_is_behind_the_last_ticket(shared: Database) -> None:
    with lockline.connect(f"{shared.url}?prefix=clock") as client:
        ahead = 2**61
        shared.ask(f"UPDATE lockline_slot SET last = {ahead} WHERE number = {slot_of(client, 'x')}")
        with client.lock("x") as lease:
            assert lease.token == ahead + 1
        with client.lock("x") as lease:
            assert lease.token == ahead + 2


def test_many_at_once_in_many_lines_are_never_refused(shared: Database) -> None:
    url = f"{shared.url}?prefix=many"
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with lockline.connect(url) as client:
                for turn in range(6):
                    names = [f"n{(number + turn + step) % 5}" for step in range(3)]
                    with client.locks(*names, timeout=60, ttl=60):
                        pass
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not problems
    with lockline.connect(url) as client:
        assert client.list() == []


def test_a_user_that_may_only_lock_is_examined_too(shared: Database) -> None:
    url = shared.add_user("looker", RIGHTS)
    with lockline.connect(url) as client:
        found = {finding.level: finding.text for finding in client.examine()}
    shared.drop_user("looker")
    # The tests' own server does not flush its log.
    assert "innodb_flush_log_at_trx_commit" in found["error"]


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_who_stood_behind_one_of_its_own_client_that_gave_up_looks_for_itself(
    shared: Database, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a claim of one's own nobody has to ask, because that one hands its turn on; once it is gone there is a stranger ahead."""
    monkeypatch.setattr(backend, "NET", 3600.0)
    with Scene(Place(f"{shared.url}?prefix=gave-up-{flavour}"), flavour) as scene:
        stranger, alice = scene.party("xavier"), scene.party()
        bob = scene.sibling(alice)
        lease = stranger.lock("x", ttl=3600).acquire()
        impatient, waits = scene.queue_up(
            "x", lambda: alice.lock("x", ttl=3600).acquire.start(timeout=8.0), bob.lock("x", ttl=3600).acquire.start
        )
        with pytest.raises(AcquireTimeout):
            impatient.result(60)
        lease.release()
        waits.result(60).release()


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_a_permit_is_found_whichever_holder_of_the_own_client_gives_it_back(
    shared: Database, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for one of several stands behind the last of their holders, and any of them may be the first to go."""
    monkeypatch.setattr(backend, "NET", 3600.0)
    with Scene(Place(f"{shared.url}?prefix=permits-{flavour}"), flavour) as scene:
        alice = scene.party()
        first, second = scene.sibling(alice), scene.sibling(alice)
        permits = [alice.semaphore("x", limit=3, ttl=3600).acquire() for _ in range(3)]
        waits = scene.queue_up(
            "x",
            first.semaphore("x", limit=3, ttl=3600).acquire.start,
            second.semaphore("x", limit=3, ttl=3600).acquire.start,
        )
        for permit, waiting in zip(permits, waits, strict=False):
            permit.release()
            waiting.result(60)


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_readers_of_the_own_client_come_in_when_its_writer_only_reads_on(
    shared: Database, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "NET", 3600.0)
    with Scene(Place(f"{shared.url}?prefix=readers-{flavour}"), flavour) as scene:
        alice = scene.party()
        readers = [scene.sibling(alice) for _ in range(3)]
        writer = alice.write("x", ttl=3600).acquire()
        waits = scene.queue_up("x", *(reader.read("x", ttl=3600).acquire.start for reader in readers))
        writer.downgrade()
        for waiting in waits:
            waiting.result(60)


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_a_release_goes_through_none_of_the_other_claims_of_its_client(shared: Database, flavour: str) -> None:
    class Claims(dict[str, Any]):
        gone_through = 0

        def items(self) -> Any:
            Claims.gone_through += 1
            return super().items()

    with Scene(Place(f"{shared.url}?prefix=many-{flavour}"), flavour) as scene:
        alice = scene.party()
        store = alice.client.real._engine.backend
        leases = [alice.lock(f"x{number}", ttl=60).acquire() for number in range(4)]
        # Not while the keeper comes by: it does go through what is held, now and then.
        store._ask_at = float("inf")
        store._claims = Claims(store._claims)
        for lease in leases:
            lease.release()
        assert not store._claims
        assert Claims.gone_through == 0


class SoftLimitOfADecorator(AssertionError):
    """As some libraries for time limits derive theirs."""


@pytest.mark.parametrize("limit", [SoftLimit, SoftLimitOfADecorator])
@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_an_exception_of_the_callers_own_is_none_of_the_servers(
    shared: Database, monkeypatch: pytest.MonkeyPatch, flavour: str, limit: type[Exception]
) -> None:
    """Taken for one of the driver's it would be gone, and the request asked again."""
    strikes: list[Exception] = []

    def strike() -> None:
        if strikes:
            raise strikes.pop()

    def in_the_middle_of(kind: Any) -> None:
        once = kind.query

        def struck(self: Any, sql: Any, **how: Any) -> Any:
            strike()
            return once(self, sql, **how)

        monkeypatch.setattr(kind, "query", struck)

    if flavour == "sync":
        in_the_middle_of(pymysql.connections.Connection)
        with lockline.connect(shared.url) as client:
            client.inspect("x")
            strikes.append(limit())
            with pytest.raises(limit):
                client.inspect("x")
            client.inspect("x")
        return
    in_the_middle_of(aiomysql.Connection)

    async def story() -> None:
        async with lockline.aio.connect(shared.url) as client:
            await client.inspect("x")
            strikes.append(limit())
            with pytest.raises(limit):
                await client.inspect("x")
            await client.inspect("x")

    asyncio.run(story())
