"""LISTEN and NOTIFY: who is told, when nobody is, and what happens where nobody can be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from urllib.parse import quote

import psycopg
import pytest

import lockline
from lockline.backends.postgresql import subscription
from lockline.backends.postgresql.schema import RIGHTS
from lockline.backends.sql import backend as sql
from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.servers.pgbouncer import PgBouncer
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy
from tests.tier import sample

from .conftest import Database

pytestmark = pytest.mark.server


def waiting(client: lockline.Client, name: str, ttl: float = 10.0) -> threading.Thread:
    """Somebody who waits, takes it and gives it back."""
    thread = threading.Thread(target=lambda: client.lock(name, ttl=ttl).acquire(timeout=120).release())
    before = len(client.inspect(name).waiters)
    thread.start()
    wait_for(lambda: len(client.inspect(name).waiters) > before, 60, "a waiter")
    return thread


def notified(database: Database, work: object) -> int:
    """How many NOTIFYs the work sent: the queue of the whole cluster grows by each, and a session that stands still keeps it."""
    with psycopg.connect(database.url, autocommit=True) as slow:
        slow.execute("LISTEN lockline_test")
        slow.execute("BEGIN")
        slow.execute("SELECT 1")
        work()  # type: ignore[operator]
        ((used,),) = database.ask("SELECT pg_notification_queue_usage()")
        slow.execute("ROLLBACK")
    return int(used * 1_000_000_000)


def notify(database: Database, times: int) -> None:
    """As often as that, to nobody."""
    with psycopg.connect(database.url, autocommit=True) as one:
        for number in range(times):
            one.execute(f"NOTIFY lockline_elsewhere, '{number:060}'".encode())


def test_a_lock_that_is_free_sends_no_notify(shared: Database) -> None:
    def grants() -> None:
        with lockline.connect(shared.url) as client:
            for _ in range(300):
                client.lock("free").acquire().release()

    assert notified(shared, grants) == 0
    assert notified(shared, lambda: notify(shared, 300)) > 0  # as many would have been seen


def test_one_listening_connection_serves_every_waiter_of_a_client(shared: Database) -> None:
    with lockline.connect(shared.url) as holder, lockline.connect(shared.url) as client:
        held = [holder.lock(f"many{n}").acquire() for n in range(5)]
        threads = [waiting(client, f"many{n}") for n in range(5)]
        listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN lockline_%' OR query = 'SELECT 1'"
        assert shared.ask(listening)[0][0] <= 2
        for lease in held:
            lease.release()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def test_a_listener_that_is_cut_off_costs_no_turn(shared: Database) -> None:
    with lockline.connect(shared.url) as holder, lockline.connect(shared.url) as client:
        held = holder.lock("cut").acquire()
        thread = waiting(client, "cut")
        wait_for(
            lambda: shared.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'lockline' AND (query LIKE 'LISTEN lockline_%' OR query = 'SELECT 1')"
            ),
            60,
            "a listener",
        )
        held.release()
        thread.join(60)
        assert not thread.is_alive()


def test_behind_a_pooler_it_finds_out_by_itself_and_asks_again_and_again(pooler: PgBouncer) -> None:
    with lockline.connect(pooler.url) as holder, lockline.connect(pooler.url) as client:
        held = holder.lock("pooled").acquire()
        thread = waiting(client, "pooled")
        assert not client.guarantees.push
        assert client.guarantees.fifo
        assert any("pooler" in found.text for found in client.examine())
        held.release()
        thread.join(60)
        assert not thread.is_alive()


def test_behind_a_pooler_no_session_is_left_listening(shared: Database, pooler: PgBouncer) -> None:
    with lockline.connect(pooler.url) as holder, lockline.connect(pooler.url) as client:
        held = holder.lock("left").acquire()
        thread = waiting(client, "left")
        held.release()
        thread.join(60)
    for _ in range(10):
        assert shared.ask("SELECT * FROM pg_listening_channels()", url=pooler.url) == []


def test_a_direct_way_brings_the_push_back(
    shared: Database, pooler: PgBouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One who is not told looks after an hour.
    monkeypatch.setattr(sql, "NET", 3600.0)
    url = f"{pooler.url}?listen={shared.url}"
    with lockline.connect(url) as holder, lockline.connect(url) as client:
        held = holder.lock("direct", ttl=600).acquire()
        thread = waiting(client, "direct", ttl=600)
        assert client.guarantees.push
        assert not any("pooler" in found.text for found in client.examine() if found.level != "ok")
        held.release()
        thread.join(60)
        assert not thread.is_alive()


def test_a_listen_url_that_leads_through_a_pooler_as_well_is_no_way(pooler: PgBouncer) -> None:
    with lockline.connect(f"{pooler.url}?listen={pooler.url}") as client, lockline.connect(pooler.url) as holder:
        held = holder.lock("both").acquire()
        thread = waiting(client, "both")
        wait_for(lambda: not client.guarantees.push, 60, "the discovery")
        held.release()
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("fault", "flavour"),
    sample(
        [("refused", "sync"), ("silent", "asyncio"), ("silent later", "sync")],
        [(fault, flavour) for fault in ("refused", "silent", "silent later") for flavour in ("sync", "asyncio")],
    ),
)
def test_who_cannot_listen_still_gets_its_turn(
    shared: Database, fault: str, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way to listen is another than that of the steps, or there is a connection for these and none for that."""
    monkeypatch.setattr(sql, "LISTENING", 0.2)
    monkeypatch.setattr(subscription, "QUIET", 0.2)
    with Proxy(("127.0.0.1", shared.server.port)) as proxy:
        direct = shared.url.replace(str(shared.server.port), str(proxy.port))
        place = f"{shared.url}?prefix=deaf-{fault[-5:]}-{flavour}&listen={quote(direct, safe='')}"
        with Scene(Place(place), flavour) as scene:
            alice, bob = scene.party(), scene.party()
            for turn in range(2):
                if turn or fault != "silent later":
                    proxy.refuse() if fault == "refused" else proxy.black_hole()
                lease = alice.lock("x", ttl=60).acquire()
                pending = bob.lock("x", ttl=60).acquire.start(timeout=60)
                scene.wait_for_line("x", waiters=1)
                lease.release()
                pending.result().release()
            proxy.heal()


@pytest.fixture
def crammed(shared: Database) -> Iterator[str]:
    """For this role the server is one whose queue of NOTIFY is full: it refuses a commit that would notify somebody."""
    shared.ask("CREATE ROLE crammed LOGIN")
    shared.ask("CREATE SCHEMA crammed AUTHORIZATION crammed")
    for statement in (
        "CREATE TABLE crammed.queue (id text)",
        "CREATE FUNCTION crammed.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$",
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON crammed.queue DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION crammed.refuse()",
        "CREATE FUNCTION crammed.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'INSERT INTO crammed.queue VALUES ($2)'",
        "CREATE FUNCTION crammed.pg_notification_queue_usage() RETURNS float8 LANGUAGE sql AS 'SELECT 0.99::float8'",
        "GRANT INSERT ON crammed.queue TO crammed",
        "ALTER ROLE crammed SET search_path = crammed, pg_catalog",
        RIGHTS.format(schema="lockline", role="crammed"),
    ):
        shared.ask(statement)
    yield shared.url.replace("lockline@", "crammed@") + "?prefix=crammed"
    shared.ask("DROP SCHEMA crammed CASCADE")
    shared.ask("DROP OWNED BY crammed")
    shared.ask("DROP ROLE crammed")


def test_where_the_queue_of_notify_is_full_a_release_and_an_eviction_still_work(shared: Database, crammed: str) -> None:
    with lockline.connect(crammed) as holder, lockline.connect(crammed) as client:
        for end in (lambda lease: lease.release(), lambda _: holder.evict("full")):
            held = holder.lock("full", ttl=600).acquire()
            thread = waiting(client, "full", ttl=600)
            listens = "SELECT 1 FROM lockline.claim WHERE channel IS NOT NULL AND NOT told AND convert_from(name, 'UTF8') = 'crammed:full'"
            wait_for(partial(shared.ask, listens), 60, "a waiter that listens")
            end(held)
            thread.join(60)
            assert not thread.is_alive()
        assert any("the queue of NOTIFY is 99% full" in found.text for found in client.examine())
