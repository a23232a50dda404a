"""Rights, users, defaults and refusals: what a user needs, and what it is told where something is missing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import lockline
from lockline import BackendUnavailable, ConfigError
from lockline.backends.mysql import tables
from lockline.backends.mysql.schema import RIGHTS
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy

from .conftest import Database

pytestmark = pytest.mark.server


def take_and_give_back(url: str) -> None:
    """Everything that a client asks for, once."""
    with lockline.connect(url) as client, lockline.connect(url) as other:
        lease = client.lock("access", ttl=20).acquire(timeout=60)
        got: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: got.append(other.lock("access").acquire(timeout=60)))
        thread.start()
        wait_for(lambda: len(client.inspect("access").waiters) == 1, 60, "a waiter")
        lease.extend(30)
        assert client.list() == ["access"]
        lease.release()
        thread.join(60)
        assert got[0].token > lease.token
        assert client.evict("access") == 1
        assert got[0].lost.wait(60)


def refusal(url: str) -> str:
    """What both flavours are told, at once."""
    with lockline.connect(url) as client, pytest.raises(BackendUnavailable) as caught:
        client.lock("x").acquire(timeout=60)

    async def story() -> str:
        async with lockline.aio.connect(url) as client:
            with pytest.raises(BackendUnavailable) as caught:
                await client.lock("x").acquire(timeout=60)
            return str(caught.value)

    assert asyncio.run(story()) == str(caught.value)
    return str(caught.value)


@pytest.fixture
def worker(shared: Database) -> Iterator[str]:
    """Somebody with the documented rights and nothing else."""
    yield shared.add_user("worker", RIGHTS)
    shared.drop_user("worker")


def test_a_user_with_the_documented_rights_and_nothing_else_can_do_everything(worker: str) -> None:
    take_and_give_back(f"{worker}?prefix=rights")


@pytest.mark.parametrize("right", ["EXECUTE", "INSERT", "UPDATE"])
def test_a_missing_right_is_named_at_once(shared: Database, worker: str, right: str) -> None:
    for host in ("localhost", "127.0.0.1"):
        shared.ask(f"REVOKE {right} ON lockline.* FROM worker@{host}")
    assert "lacks a right" in refusal(worker)


def test_somebody_without_any_right_is_told_so_at_once(shared: Database) -> None:
    url = shared.add_user("stranger", "GRANT USAGE ON *.* TO {user}")
    assert "lacks a right" in refusal(url)
    with pytest.raises(BackendUnavailable, match="may not create"):
        tables(url).make()
    shared.drop_user("stranger")


def test_a_wrong_password_is_told_at_once_and_not_shown(shared: Database) -> None:
    url = shared.add_user("secretive", RIGHTS, "right")
    told = refusal(url.replace(":right@", ":mistaken@"))
    assert "does not accept this user or password" in told
    assert "mistaken" not in told
    take_and_give_back(f"{url}?prefix=secretive")
    shared.drop_user("secretive")


def test_a_missing_database_and_missing_tables_name_the_command_that_makes_them(shared: Database) -> None:
    url = shared.url.replace("/lockline", "/nowhere")
    assert f"run: lockline init {url}" in refusal(url)
    shared.ask("CREATE DATABASE nowhere")
    assert f"run: lockline init {url}" in refusal(url)
    tables(url).make()
    with lockline.connect(url) as client, client.lock("x"):
        assert client.list() == ["x"]
    shared.ask("DROP DATABASE nowhere")


def test_slots_that_somebody_removed_are_told(shared: Database) -> None:
    url = shared.url.replace("/lockline", "/slots")
    tables(url).make()
    shared.ask("DELETE FROM slots.lockline_slot")
    assert f"run: lockline init {url}" in refusal(url)
    tables(url).make()
    with lockline.connect(url) as client:
        client.lock("x").acquire(timeout=60).release()
    shared.ask("DROP DATABASE slots")


def test_making_the_tables_again_and_by_many_at_once_changes_nothing(shared: Database) -> None:
    url = shared.url.replace("/lockline", "/many")
    problems: list[BaseException] = []

    def make() -> None:
        try:
            tables(url).make()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems
    with lockline.connect(url) as client, client.lock("x", ttl=30) as lease:
        tables(url).make()
        assert client.inspect("x").holders[0].token == lease.token
    shared.ask("DROP DATABASE many")


def test_what_is_printed_for_a_migration_is_all_that_is_made(shared: Database) -> None:
    head, _, rest = tables(shared.url.replace("/lockline", "/printed")).statements.partition("DELIMITER //")
    with shared.connect() as connection:
        for statement in (*head.split(";"), *rest.replace("DELIMITER ;", "").split("//")):
            if statement.strip():
                connection.query(statement)
    take_and_give_back(shared.url.replace("/lockline", "/printed"))
    shared.ask("DROP DATABASE printed")


def test_databases_and_prefixes_do_not_share_their_locks(shared: Database) -> None:
    tables(shared.url.replace("/lockline", "/apart")).make()
    places = [shared.url, f"{shared.url}?prefix=other", shared.url.replace("/lockline", "/apart")]
    one, two, three = map(lockline.connect, places)
    with one, two, three, one.lock("x"), two.lock("x", timeout=60), three.lock("x", timeout=60):
        assert one.list() == two.list() == three.list() == ["x"]
    shared.ask("DROP DATABASE apart")


def test_no_connection_left_is_named_and_passes(shared: Database, worker: str) -> None:
    others = [shared.connect(user="worker") for _ in range(10)]
    ((before,),) = shared.ask("SELECT @@GLOBAL.max_connections")
    shared.ask("SET GLOBAL max_connections = 10")
    try:
        with lockline.connect(worker) as client:

            def is_named() -> bool:
                with pytest.raises(BackendUnavailable) as told:
                    client.lock("x").acquire(timeout=1)
                return "raise max_connections" in str(told.value)

            # A server that is busy may need longer than that to refuse a connection.
            wait_for(is_named, 60, "a refusal")
            for one in others[:6]:
                one.close()
            client.lock("x").acquire(timeout=60).release()
        for one in others[6:]:
            one.close()
    finally:
        shared.ask(f"SET GLOBAL max_connections = {before}")


@pytest.mark.parametrize("user", ["root", "worker"])
@pytest.mark.usefixtures("worker")
def test_a_replica_is_refused_also_to_somebody_who_could_write_there(shared: Database, user: str) -> None:
    url = shared.url.replace("root@", f"{user}@") + "?prefix=replica"
    with lockline.connect(url) as client:
        shared.ask("SET GLOBAL read_only = 1")
        try:
            with pytest.raises(BackendUnavailable, match="read-only"):
                client.lock("x").acquire(timeout=5)
            assert any("read-only" in finding.text for finding in client.examine())
        finally:
            shared.ask("SET GLOBAL read_only = 0")
        client.lock("x").acquire(timeout=60).release()


def test_the_reason_is_told_also_when_the_last_try_is_cut_short(shared: Database) -> None:
    heard = threading.Event()

    def listen(from_client: bool, data: bytes, fate: str) -> None:
        if b"read-only" in data:
            heard.set()

    with Proxy(("127.0.0.1", shared.server.port), on_packet=listen) as proxy, ThreadPoolExecutor(1) as pool:
        url = shared.url.replace(f":{shared.server.port}/", f":{proxy.port}/") + "?prefix=cut"
        with lockline.connect(url) as client:
            shared.ask("SET GLOBAL read_only = 1")
            try:
                asking = pool.submit(client.lock("x").acquire, timeout=5)
                assert heard.wait(60)
                proxy.black_hole()
                with pytest.raises(BackendUnavailable, match=r"before that: .*read-only"):
                    asking.result(60)
            finally:
                shared.ask("SET GLOBAL read_only = 0")
                proxy.heal()


def test_of_several_servers_the_one_that_can_be_written_to_is_found(shared: Database, spare: Database) -> None:
    spare.ask("SET GLOBAL read_only = 1")
    try:
        url = f"mysql://root@127.0.0.1:{spare.server.port},127.0.0.1:{shared.server.port}/lockline?prefix=several"
        take_and_give_back(url)

        async def story() -> None:
            async with lockline.aio.connect(url) as client, client.lock("x", timeout=60):
                assert await client.list() == ["x"]

        asyncio.run(story())
        assert spare.ask("SELECT COUNT(*) FROM lockline_claim WHERE name LIKE 'several:%'") == [(0,)]
    finally:
        spare.ask("SET GLOBAL read_only = 0")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://h/db;drop", "database"),
        ("mysql://h/a`b", "database"),
        ("mysql://h/db?nonsense=1", "nonsense"),
        ("mysql://h/db?max_connections=0", "max_connections"),
        ("mysql://h/db?timeout=never", "timeout"),
        ("mysql://h:0/db", "host:port"),
        ("mysql://h/db?prefix=", "prefix"),
        ("mysql://h/db?prefix=" + "x" * 201, "prefix"),
        ("mysql://a,b/db?socket=/run/mysqld.sock", "socket"),
        ("mysql://h/db?ca=/nowhere/at/all", "certificates"),
        ("mysql://u:pass/word@h/db", "%2F"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        lockline.connect(url)
