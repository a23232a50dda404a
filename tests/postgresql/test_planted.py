"""`lockline init` in a database where another role was first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lockline
from lockline import BackendUnavailable
from lockline.backends.postgresql import tables

from .conftest import Database

pytestmark = pytest.mark.server

PLANTED = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.slot (number integer PRIMARY KEY, last bigint NOT NULL DEFAULT 0);
CREATE FUNCTION {schema}.own() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN ALTER ROLE mallory SUPERUSER; RETURN NEW; END';
CREATE TRIGGER own BEFORE INSERT ON {schema}.slot FOR EACH ROW EXECUTE FUNCTION {schema}.own()
"""


@pytest.fixture
def mallory(shared: Database) -> Iterator[Database]:
    shared.ask("CREATE ROLE mallory LOGIN")
    shared.ask("GRANT CREATE ON DATABASE postgres TO mallory")
    yield shared
    shared.ask("DROP OWNED BY mallory CASCADE; DROP ROLE mallory")


def plant(database: Database, statements: str) -> None:
    """Run this as mallory."""
    database.ask(f"SET ROLE mallory; {statements}; RESET ROLE")


def is_superuser(database: Database) -> bool:
    return bool(database.ask("SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'")[0][0])


def test_init_by_a_superuser_runs_no_trigger_of_the_role_that_made_the_schema(mallory: Database) -> None:
    plant(mallory, PLANTED.format(schema="planted"))
    with pytest.raises(BackendUnavailable, match=r"the schema \(mallory\).*; let that role run lockline init"):
        tables(f"{mallory.url}?schema=planted").make()
    assert not is_superuser(mallory)


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TABLE {schema}.release (version integer PRIMARY KEY)",
        "CREATE FUNCTION {schema}.admit_v1(of_line bytea, me text) RETURNS void LANGUAGE sql AS ''",
        "CREATE VIEW {schema}.claim AS SELECT 1",
    ],
)
def test_nor_what_another_role_put_into_a_schema_of_ours(mallory: Database, planted: str) -> None:
    url = f"{mallory.url}?schema=ours"
    mallory.ask("CREATE SCHEMA ours; GRANT CREATE, USAGE ON SCHEMA ours TO mallory")
    plant(mallory, planted.format(schema="ours"))
    try:
        with pytest.raises(BackendUnavailable, match="other roles own"):
            tables(url).make()
    finally:
        mallory.ask("DROP SCHEMA ours CASCADE")


def test_nor_a_trigger_on_a_table_of_ours(mallory: Database) -> None:
    url = f"{mallory.url}?schema=tables"
    tables(url).make()
    mallory.ask("GRANT USAGE ON SCHEMA tables TO mallory; GRANT TRIGGER ON ALL TABLES IN SCHEMA tables TO mallory")
    mallory.ask("CREATE SCHEMA hers AUTHORIZATION mallory")
    plant(
        mallory,
        "CREATE FUNCTION hers.own() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TRIGGER own BEFORE INSERT ON tables.release FOR EACH ROW EXECUTE FUNCTION hers.own()",
    )
    try:
        with pytest.raises(BackendUnavailable, match="the trigger own on release"):
            tables(url).make()
    finally:
        mallory.ask("DROP SCHEMA tables CASCADE")


def test_the_role_that_made_the_schema_may_make_it_again(mallory: Database) -> None:
    url = f"{mallory.url.replace('lockline@', 'mallory@')}?schema=hers"
    assert "mallory" in url
    for _ in range(2):
        tables(url).make()
    with lockline.connect(url) as client, client.lock("x"):
        pass
