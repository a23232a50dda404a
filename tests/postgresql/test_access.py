"""Rights, roles, defaults and refusals: what a role needs, and what it is told where something is missing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import psycopg
import pytest

import lockline
from lockline import BackendUnavailable, ConfigError
from lockline.backends.postgresql import tables
from lockline.backends.postgresql.schema import RIGHTS
from tests.servers.process import wait_for

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


@pytest.fixture
def role(shared: Database) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    shared.ask("CREATE ROLE worker LOGIN")
    shared.ask("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    yield shared.url.replace("lockline@", "worker@")
    shared.ask("DROP OWNED BY worker")
    shared.ask("DROP ROLE worker")


def test_a_role_with_the_documented_rights_and_nothing_else_can_do_everything(shared: Database, role: str) -> None:
    shared.ask(RIGHTS.format(schema="lockline", role="worker"))
    take_and_give_back(f"{role}?prefix=rights")
    with lockline.connect(role) as client, client.lock("guarded") as lease, psycopg.connect(role) as mine:
        lease.guard(mine)
        mine.execute("SELECT 1")


def test_the_documented_rights_suffice_where_public_may_call_nothing(shared: Database, role: str) -> None:
    shared.ask("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA lockline FROM PUBLIC")
    try:
        shared.ask(RIGHTS.format(schema="lockline", role="worker"))
        take_and_give_back(f"{role}?prefix=revoked")
        with lockline.connect(role) as client, client.lock("guarded") as lease, psycopg.connect(role) as mine:
            lease.guard(mine)
    finally:
        shared.ask("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA lockline TO PUBLIC")


@pytest.mark.parametrize("missing", ["USAGE ON SCHEMA lockline", "INSERT ON lockline.claim", "UPDATE ON lockline.slot"])
def test_a_missing_right_is_named_at_once(shared: Database, role: str, missing: str) -> None:
    shared.ask(RIGHTS.format(schema="lockline", role="worker"))
    shared.ask(f"REVOKE {missing} FROM worker")
    with (
        lockline.connect(role) as client,
        pytest.raises(BackendUnavailable, match="lacks a right"),
    ):
        client.lock("x").acquire(timeout=60)


def test_missing_tables_name_the_command_that_makes_them(shared: Database) -> None:
    shared.ask("CREATE DATABASE bare")
    url = shared.url.replace("/postgres", "/bare")
    with lockline.connect(url) as client:
        with pytest.raises(BackendUnavailable, match=f"lockline init {url}"):
            client.lock("x").acquire(timeout=60)
        tables(url).make()
        with client.lock("x"):
            assert client.list() == ["x"]
    shared.ask("DROP DATABASE bare WITH (FORCE)")


def test_a_slot_that_somebody_removed_is_told(shared: Database) -> None:
    url = f"{shared.url}?schema=slots"
    tables(url).make()
    shared.ask("TRUNCATE slots.slot")
    with lockline.connect(url) as client, pytest.raises(BackendUnavailable, match="lockline init"):
        client.lock("x").acquire(timeout=60)
    tables(url).make()
    with lockline.connect(url) as client:
        client.lock("x").acquire(timeout=60).release()
    shared.ask("DROP SCHEMA slots CASCADE")


def test_making_the_tables_again_and_by_many_at_once_changes_nothing(shared: Database) -> None:
    url = f"{shared.url}?schema=many"
    problems: list[BaseException] = []

    def make() -> None:
        try:
            tables(url).make()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems
    with lockline.connect(url) as client, client.lock("x") as lease:
        tables(url).make()
        lease.extend(30)
        assert client.inspect("x").holders[0].token == lease.token
    shared.ask("DROP SCHEMA many CASCADE")


def test_schemas_do_not_share_their_locks(shared: Database) -> None:
    tables(f"{shared.url}?schema=apart").make()
    one, two = lockline.connect(shared.url), lockline.connect(f"{shared.url}?schema=apart")
    with one, two, one.lock("x"), two.lock("x", timeout=60):
        assert two.list() == ["x"]
    shared.ask("DROP SCHEMA apart CASCADE")


@pytest.mark.parametrize("schema", ["user", "table"])
def test_a_schema_may_have_the_name_of_a_word_of_sql(shared: Database, schema: str) -> None:
    url = f"{shared.url}?schema={schema}"
    tables(url).make()
    tables(url).make()
    take_and_give_back(url)
    with (
        lockline.connect(url) as client,
        client.lock("guarded") as lease,
        psycopg.connect(url.partition("?")[0]) as mine,
    ):
        lease.guard(mine)
    shared.ask(f'DROP SCHEMA "{schema}" CASCADE')


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_the_isolation_that_a_role_begins_with_does_not_matter(shared: Database, role: str, level: str) -> None:
    shared.ask(RIGHTS.format(schema="lockline", role="worker"))
    shared.ask(f"ALTER ROLE worker SET default_transaction_isolation = '{level}'")
    take_and_give_back(f"{role}?prefix=level")


def test_nor_does_it_matter_that_its_transactions_begin_read_only(shared: Database, role: str) -> None:
    shared.ask(RIGHTS.format(schema="lockline", role="worker"))
    shared.ask("ALTER ROLE worker SET default_transaction_read_only = on")
    take_and_give_back(f"{role}?prefix=readonly")


def test_a_crowd_at_another_level_loses_nothing(shared: Database, role: str) -> None:
    shared.ask(RIGHTS.format(schema="lockline", role="worker"))
    shared.ask("ALTER ROLE worker SET default_transaction_isolation = 'serializable'")
    tokens: list[int] = []

    def work() -> None:
        with lockline.connect(role) as client:
            for _ in range(10):
                with client.lock("crowd", timeout=60) as lease:
                    tokens.append(lease.token)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(tokens) == 60
    assert tokens == sorted(set(tokens))


def test_a_wrong_password_is_told_at_once(shared: Database) -> None:
    shared.ask("CREATE ROLE secretive LOGIN PASSWORD 'right'")
    rules = shared.server.data / "pg_hba.conf"
    rules.write_text("host all secretive 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    shared.ask("SELECT pg_reload_conf()")
    url = shared.url.replace("lockline@", "secretive:wrong@")
    wait_for(lambda: _is_refused(url), 60, "a server that has read its rules again")
    with lockline.connect(url) as client:
        with pytest.raises(BackendUnavailable, match="does not accept this user or password") as caught:
            client.lock("x").acquire(timeout=60)
        assert "wrong" not in str(caught.value)

    async def story() -> None:
        async with lockline.aio.connect(url) as client:
            with pytest.raises(BackendUnavailable, match="does not accept this user or password"):
                await client.lock("x").acquire(timeout=60)

    asyncio.run(story())
    shared.ask(RIGHTS.format(schema="lockline", role="secretive"))
    take_and_give_back(shared.url.replace("lockline@", "secretive:right@"))
    shared.ask("DROP OWNED BY secretive")
    shared.ask("DROP ROLE secretive")


def _is_refused(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return True
    return False


def test_a_missing_database_is_told_at_once(shared: Database) -> None:
    url = shared.url.replace("/postgres", "/nowhere")
    with lockline.connect(url) as client, pytest.raises(BackendUnavailable, match="name a database that exists"):
        client.lock("x").acquire(timeout=60)


def test_a_role_that_does_not_exist_is_told_at_once(shared: Database) -> None:
    url = shared.url.replace("lockline@", "nobody@")
    with lockline.connect(url) as client, pytest.raises(BackendUnavailable, match="does not let this user in"):
        client.lock("x").acquire(timeout=60)


def test_a_statement_timeout_that_is_too_short_is_named(shared: Database, role: str) -> None:
    shared.ask(RIGHTS.format(schema="lockline", role="worker"))
    shared.ask("ALTER ROLE worker SET statement_timeout = '100ms'")
    with lockline.connect(f"{role}?prefix=hurried") as client, psycopg.connect(shared.url) as other:
        client.lock("x").acquire(timeout=60).release()
        # A step of somebody else that takes long.
        (at,) = client._engine.backend._places("x")[:1]  # type: ignore[attr-defined]
        other.execute("SELECT pg_advisory_xact_lock(%s)", [at])

        def is_named() -> bool:
            with pytest.raises(BackendUnavailable) as told:
                client.lock("x").acquire(timeout=1)
            return "statement_timeout" in str(told.value)

        # A server that is busy may need longer than that to end the statement.
        wait_for(is_named, 60, "the reason")
        other.rollback()
        client.lock("x").acquire(timeout=60).release()


def test_no_connection_left_is_named_and_passes() -> None:
    full = Database("-c", "max_connections=8", "-c", "superuser_reserved_connections=2")
    others: list[psycopg.Connection] = []
    try:
        full.ask("CREATE ROLE worker LOGIN")
        full.ask(RIGHTS.format(schema="lockline", role="worker"))
        url = full.url.replace("lockline@", "worker@")
        others += [psycopg.connect(url) for _ in range(6)]
        with lockline.connect(url) as client:

            def is_named() -> bool:
                with pytest.raises(BackendUnavailable) as told:
                    client.lock("x").acquire(timeout=1)
                return "max_connections" in str(told.value)

            # A server that is busy may need longer than that to refuse a connection.
            wait_for(is_named, 60, "a refusal")
            threading.Timer(0.3, lambda: list(map(psycopg.Connection.close, others[:4]))).start()
            client.lock("x").acquire(timeout=60).release()
    finally:
        for one in others:
            one.close()
        full.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://h/db?schema=Bad-Name", "schema"),
        ("postgresql://h/db?schema=a;drop", "schema"),
        ("postgresql://h/db?schema=pg_own", "pg_"),
        ("postgresql://h/db?nonsense=1", "nonsense"),
        ("postgresql://h/db?sslnonsense=1", "sslnonsense"),
        ("postgresql://h/db?max_connections=0", "max_connections"),
        ("postgresql://h/db?timeout=never", "timeout"),
        ("postgresql://h/db?listen=redis://h", "listen"),
        ("postgresql://h:0/db", "host:port"),
        ("postgresql://h/db?prefix=", "prefix"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        lockline.connect(url)


def test_settings_of_a_role_that_change_how_values_are_written_do_not_matter(shared: Database, role: str) -> None:
    shared.ask(RIGHTS.format(schema="lockline", role="worker"))
    for setting in (
        "bytea_output = 'escape'", "extra_float_digits = -15", "datestyle = 'German'", "intervalstyle = 'iso_8601'",
        "timezone = 'Pacific/Kiritimati'", "standard_conforming_strings = off", "search_path = ''", "lock_timeout = '5s'",
        "default_transaction_isolation = 'serializable'", "jit_above_cost = 0", "enable_indexscan = off",
    ):  # fmt: skip
        shared.ask(f"ALTER ROLE worker SET {setting}")
    take_and_give_back(f"{role}?prefix=settings")
    with lockline.connect(f"{role}?prefix=settings") as client, client.lock("ü\\'\"x\x01", meta={"a": "\\'ü"}):
        assert client.list() == ["ü\\'\"x\x01"]
