"""`lockline init`: the tables and routines, made where they are not there yet."""

from __future__ import annotations

import pymysql
from pymysql.connections import Connection

from ..failures import Refused
from ..sql.tables import SqlTables
from .commands import cure_of, failed_login, is_of_the_library
from .schema import INIT_LOCK, TABLES, printed, procedures
from .target import MysqlLogin, MysqlTarget

SHOWN = """\
SELECT routine_name, routine_definition, security_type FROM information_schema.routines
WHERE routine_schema = DATABASE() AND routine_name LIKE 'lockline\\_%'"""
ONE_STATEMENT = 30.0
"""Seconds: a table takes longer to make than a step."""


class MysqlTables(SqlTables[MysqlLogin]):
    """The tables and routines, and the database if there is none."""

    system = "MySQL"

    def __init__(self, target: MysqlTarget) -> None:
        super().__init__(target.url, target.servers, printed(target.schema))
        self._database = target.schema
        self._patience = target.patience

    def _connect(self, server: MysqlLogin) -> Connection:
        try:
            return Connection(
                **server.parameters, connect_timeout=self._patience, read_timeout=ONE_STATEMENT, write_timeout=ONE_STATEMENT,
                charset="utf8mb4", autocommit=True, ssl_disabled=not server.tls,
            )  # fmt: skip
        except Exception as failure:
            if not is_of_the_library(failure):
                raise
            raise failed_login(failure, server.where, self.url) from failure

    def _fill(self, connection: Connection, server: MysqlLogin) -> None:
        try:
            with connection.cursor() as cursor:
                # Sessions may begin read-only there, as an administrator sees fit.
                cursor.execute("SET SESSION TRANSACTION READ WRITE")
                cursor.execute(
                    "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = %s", [self._database]
                )
                if cursor.fetchone() == (0,):
                    cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{self._database}`")
                connection.select_db(self._database)
                # Two who make the same in the same moment would be in each other's way.
                cursor.execute(f"SELECT GET_LOCK('{INIT_LOCK}', 10)")
                for statement in TABLES:
                    cursor.execute(statement)
                cursor.execute(SHOWN)
                shown = {name: (body, security) for name, body, security in cursor.fetchall()}
                for procedure in procedures():
                    # A step that comes while it is replaced is refused, so replace it only where that is needed.
                    if shown.get(procedure.name) != (procedure.body, "INVOKER"):
                        for statement in procedure.anew:
                            cursor.execute(statement)
        except pymysql.MySQLError as failure:
            code = failure.args[0] if failure.args else 0
            denied = code in (1044, 1142, 1370, 1227)
            cure = "; the user may not create here: let the owner run it" if denied else cure_of(code, self.url)
            told = f"MySQL at {server.where} refused: {failure.args[-1]} (error {code}){cure}"
            raise Refused(told, str(code)) from failure
