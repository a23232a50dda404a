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
        "DROP PROCEDURE lockline_look_v2",
        "CREATE PROCEDURE lockline_look_v2(IN of_line VARBINARY(1024)) SQL SECURITY DEFINER BEGIN SELECT 1 WHERE FALSE; END",
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
        "lockline_look_v2",
        "lockline_settings_v1",
    }
