"""`lockline init`: the schema, made where it is not there yet."""

from __future__ import annotations

import os

import psycopg

from ..failures import Refused
from ..sql.tables import SqlTables
from .commands import cure_of, failed_login
from .schema import INIT_LOCK, ddl
from .target import PostgresqlLogin, PostgresqlTarget

A_LOGIN = 10
"""Seconds for a connection and its login, where the URL does not say another `connect_timeout`: unasked the library waits for minutes at
a server that takes the connection and is silent."""


class PostgresqlTables(SqlTables[PostgresqlLogin]):
    """The schema: all of it or nothing."""

    system = "PostgreSQL"

    def __init__(self, target: PostgresqlTarget) -> None:
        super().__init__(target.url, target.servers, ddl(target.schema))

    def _connect(self, server: PostgresqlLogin) -> psycopg.Connection:
        asked = "connect_timeout" in server.parameters or "PGCONNECT_TIMEOUT" in os.environ
        conninfo = server.conninfo() if asked else server.conninfo(connect_timeout=A_LOGIN)
        try:
            return psycopg.connect(conninfo.decode(), autocommit=True)
        except psycopg.OperationalError as failure:
            raise failed_login(str(failure), server.where, self.url) from failure

    def _fill(self, connection: psycopg.Connection, server: PostgresqlLogin) -> None:
        try:
            # Two who make the same schema in the same moment would be in each other's way.
            connection.execute(
                f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT pg_advisory_xact_lock({INIT_LOCK});"
                f"{self.statements}; COMMIT".encode()
            )
        except psycopg.Error as failure:
            code = failure.sqlstate or ""
            denied = code == "42501"
            cure = "; the role may not create here: let the owner run it" if denied else cure_of(code, self.url)
            raise Refused(
                f"PostgreSQL at {server.where} refused: {failure.diag.message_primary or failure}{cure}", code
            ) from failure
