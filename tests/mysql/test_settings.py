"""What an administrator may have set: it does not matter, or it is named with its cure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import lockline
from lockline import BackendUnavailable
from lockline.backends.mysql import tables
from lockline.backends.mysql.schema import RIGHTS

from .conftest import Database
from .test_access import take_and_give_back

pytestmark = pytest.mark.server
ODD = (
    "--autocommit=0", "--sql-mode=ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,STRICT_ALL_TABLES", "--transaction-read-only",
    "--transaction-isolation=SERIALIZABLE", "--character-set-server=latin1", "--default-storage-engine=MyISAM",
    "--init-connect=SET SESSION sql_select_limit = 1, sql_safe_updates = 1, time_zone = '+09:00'", "--default-time-zone=-11:00",
    "--lower-case-table-names=1", "--completion-type=CHAIN", "--innodb-snapshot-isolation=ON",
)  # fmt: skip


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A server with every setting that could be in the way."""
    database = Database(tmp_path_factory, *ODD)
    yield database
    database.close()


def test_odd_defaults_of_the_server_do_not_matter(odd: Database) -> None:
    # Somebody who may do everything is spared init_connect; this one is not.
    url = odd.add_user("worker", RIGHTS)
    take_and_give_back(f"{url}?prefix=odd")
    name, meta = "ü\\'\"`x\x01", {"a": "\\'ü"}
    with lockline.connect(f"{url}?prefix=odd") as client:
        leases = [client.lock(f"n{number}").acquire() for number in range(3)]
        assert client.list() == ["n0", "n1", "n2"]
        with client.lock(name, meta=meta):
            assert client.inspect(name).holders[0].meta == meta
        for lease in leases:
            lease.extend(20)
            lease.release()
        with client.rwlock("rw").write() as lease:
            lease.downgrade()

    async def story() -> None:
        async with lockline.aio.connect(f"{url}?prefix=odd") as client, client.lock("x", timeout=60):
            assert await client.list() == ["x"]

    asyncio.run(story())


@pytest.mark.parametrize("completion", ["CHAIN", "RELEASE"])
def test_what_follows_a_commit_by_default_does_not_matter(shared: Database, completion: str) -> None:
    """Also where a session begins with autocommit: to turn that on would have ended what a commit of a library's own began."""

    async def story() -> None:
        async with (
            lockline.aio.connect(f"{shared.url}?prefix=completion") as client,
            client.lock("x", timeout=60),
        ):
            assert await client.list() == ["x"]

    shared.ask(f"SET GLOBAL completion_type = '{completion}'")
    try:
        with lockline.connect(f"{shared.url}?prefix=completion") as client, client.lock("x", timeout=60):
            assert client.list() == ["x"]
        asyncio.run(story())
    finally:
        shared.ask("SET GLOBAL completion_type = 'NO_CHAIN'")


def test_a_binary_log_of_statements_is_named_with_its_cure(spare: Database) -> None:
    spare.ask("SET GLOBAL binlog_format = STATEMENT")
    try:
        with lockline.connect(spare.url) as client, pytest.raises(BackendUnavailable, match="ROW or MIXED"):
            client.lock("x").acquire(timeout=60)
    finally:
        spare.ask("SET GLOBAL binlog_format = ROW")
    with lockline.connect(spare.url) as client:
        client.lock("x").acquire(timeout=60).release()


def test_making_the_tables_needs_no_trust_in_the_servers_defaults(odd: Database) -> None:
    engines = odd.ask("SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = 'lockline' LIMIT 9")
    assert engines == [("InnoDB",)]
    tables(odd.url).make()
