"""`lockline init` on tables of another release: the routines of this one arrive, and `doctor` says which are there."""

from __future__ import annotations

from typing import Any

import pytest

import lockline
from lockline.backends import mysql, postgresql
from lockline.core.shells import backend_of
from lockline.runtime import clock
from lockline.runtime.blocking import run
from tests.mysql.conftest import Database as MysqlDatabase
from tests.postgresql.conftest import Database as PostgresqlDatabase

pytestmark = pytest.mark.server

OLDER = {
    "mysql": (
        "DROP PROCEDURE lockline_look_v1",
        "CREATE PROCEDURE lockline_look_v1(IN of_line VARBINARY(1024)) SQL SECURITY DEFINER BEGIN SELECT 1 WHERE FALSE; END",
        "DROP PROCEDURE lockline_settings_v1",
        "CREATE PROCEDURE lockline_settings_v1() SELECT VERSION(), 0, 1, 0, 0, 151",
    ),
    "postgresql": (
        "CREATE OR REPLACE FUNCTION lockline.names_v1(first bytea, after bytea) RETURNS SETOF bytea LANGUAGE sql AS 'SELECT NULL::bytea WHERE false'",
        "CREATE OR REPLACE FUNCTION lockline.settings_v1(OUT name text, OUT setting text) RETURNS SETOF record LANGUAGE sql AS "
        "$$ SELECT s.name, s.setting FROM pg_settings s UNION ALL SELECT 'replicas', '0' UNION ALL SELECT 'sessions', '1' UNION ALL SELECT 'oldest', '0' $$",
    ),
}


@pytest.fixture(params=["mysql", "postgresql"])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A database with two routines of an older release."""
    made: Any = MysqlDatabase(tmp_path_factory) if request.param == "mysql" else PostgresqlDatabase()
    for statement in OLDER[request.param]:
        made.ask(statement)
    yield made
    made.close()


def releases(client: lockline.Client) -> list[str]:
    """How `doctor` judges the routines."""
    findings = run(backend_of(client).examine(clock.now() + 60))
    return [finding.level for finding in findings if "release" in finding.text]


def test_routines_of_another_release_are_replaced_and_doctor_says_so(older: Any) -> None:
    tables = (mysql if older.url.startswith("mysql") else postgresql).tables(older.url)
    with lockline.connect(older.url) as client, client.lock("x", ttl=60) as lease:
        assert releases(client) == ["warning"]
        tables.make()
        assert releases(client) == ["ok"]
        assert client.inspect("x").holders[0].token == lease.token
        assert client.list() == ["x"]


@pytest.mark.parametrize("older", ["mysql"], indirect=True)
def test_a_routine_that_is_as_it_should_be_is_not_replaced(older: Any) -> None:
    """While MySQL replaces one, a step would find none there."""
    made = "SELECT routine_name, created FROM information_schema.routines WHERE routine_schema = 'lockline' ORDER BY 1"
    before = dict(older.ask(made))
    older.ask("DO SLEEP(1.1)")  # the server notes whole seconds
    mysql.tables(older.url).make()
    assert {name for name, when in older.ask(made) if when != before[name]} == {
        "lockline_look_v1",
        "lockline_settings_v1",
    }


WITHOUT_GRANTS = {
    "mysql": (
        "DROP PROCEDURE lockline_line_v1",
        "ALTER TABLE lockline_claim DROP COLUMN arrived, DROP COLUMN granted",
    ),
    "postgresql": (
        "DROP FUNCTION lockline.look_v1",
        "DROP FUNCTION lockline.line_v1",
        "CREATE FUNCTION lockline.look_v1(of_line bytea, OUT id text, OUT ticket bigint, OUT weight integer, OUT capacity integer, "
        "OUT ttl double precision, OUT remaining double precision, OUT about text) RETURNS SETOF record LANGUAGE sql AS "
        "$$ SELECT c.id, c.ticket, c.weight, c.capacity, c.ttl, 9.0::double precision, c.about FROM lockline.claim c WHERE c.name = of_line $$",
        "ALTER TABLE lockline.claim DROP COLUMN arrived, DROP COLUMN granted",
    ),
}
"""Tables of a release that did not note when a claim began to hold."""


@pytest.mark.parametrize("system", ["mysql", "postgresql"])
def test_a_holder_on_tables_without_the_moment_of_its_grant_holds_since_it_came(
    system: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    database: Any = MysqlDatabase(tmp_path_factory) if system == "mysql" else PostgresqlDatabase()
    tables = (mysql if system == "mysql" else postgresql).tables(database.url)
    try:
        with lockline.connect(database.url) as client, client.lock("x", ttl=60) as lease:
            for statement in WITHOUT_GRANTS[system]:
                database.ask(statement)
            (before,) = client.inspect("x").holders
            assert (before.token, before.granted_at) == (lease.token, before.enqueued_at)
            tables.make()
            (after,) = client.inspect("x").holders
            assert (after.token, after.granted_at) == (lease.token, after.enqueued_at)
            assert releases(client) == ["ok"]
            with client.lock("y", ttl=60):
                assert client.inspect("y").holders[0].granted_at is not None
    finally:
        database.close()
