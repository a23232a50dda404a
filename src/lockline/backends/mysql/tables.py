"""`lockline init`: the tables and routines, made where they are not there yet."""

from __future__ import annotations

import pymysql
from pymysql.connections import Connection

from ...errors import BackendUnavailable
from ..sql.errors import NoAnswer, Refused, unavailable
from .commands import cure_of, failed_login
from .schema import INIT_LOCK, printed, statements
from .target import Target

PATIENCE = 30.0
"""Seconds for one statement: a table takes longer to make than a step."""


class MysqlTables:
    """What has to be there before the first claim."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.url = target.url
        self.statements = printed(target.database)

    def make(self) -> None:
        """Make what is not there yet, also the database."""
        problem: BackendUnavailable | None = None
        for server in self._target.servers:
            try:
                connection = Connection(
                    **server.parameters, connect_timeout=self._target.patience, read_timeout=PATIENCE, write_timeout=PATIENCE,
                    charset="utf8mb4", autocommit=True, ssl_disabled=not server.tls,
                )  # fmt: skip
            except (pymysql.MySQLError, OSError, RuntimeError) as failure:
                told = failed_login(failure, server.where, self.url)
                problem = unavailable("MySQL", told, unsent=True) if isinstance(told, NoAnswer) else told  # type: ignore[assignment]
                continue
            with connection, connection.cursor() as cursor:
                try:
                    # Sessions may begin read-only there, as an administrator sees fit.
                    cursor.execute("SET SESSION TRANSACTION READ WRITE")
                    cursor.execute(
                        "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = %s",
                        [self._target.database],
                    )
                    if cursor.fetchone() == (0,):
                        cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{self._target.database}`")
                    connection.select_db(self._target.database)
                    # Two who make the same in the same moment would be in each other's way.
                    cursor.execute(f"SELECT GET_LOCK('{INIT_LOCK}', 10)")
                    for statement in statements():
                        cursor.execute(statement)
                except pymysql.MySQLError as failure:
                    code = failure.args[0] if failure.args else 0
                    denied = code in (1044, 1142, 1370, 1227)
                    cure = "; the user may not create here: let the owner run it" if denied else cure_of(code, self.url)
                    raise Refused(
                        f"MySQL at {server.where} refused: {failure.args[-1]} (error {code}){cure}", str(code)
                    ) from failure
            return
        assert problem is not None
        raise problem
