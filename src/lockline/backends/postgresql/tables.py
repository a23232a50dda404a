"""`lockline init`: the schema, made where it is not there yet."""

from __future__ import annotations

import psycopg

from ...errors import BackendUnavailable
from ..sql.errors import NoAnswer, Refused, unavailable
from .commands import cure_of, failed_login
from .schema import INIT_LOCK, ddl
from .target import Target


class PostgresqlTables:
    """What has to be there before the first claim."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.url = target.url
        self.statements = ddl(target.schema)

    def make(self) -> None:
        """Make what is not there yet, all of it or nothing."""
        problem: BackendUnavailable | None = None
        for server in self._target.servers:
            try:
                connection = psycopg.connect(server.conninfo().decode(), autocommit=True)
            except psycopg.OperationalError as failure:
                told = failed_login(str(failure), server.where, self.url)
                problem = unavailable("PostgreSQL", told, unsent=True) if isinstance(told, NoAnswer) else told  # type: ignore[assignment]
                continue
            with connection:
                try:
                    # Two who make the same schema in the same moment would be in each other's way.
                    connection.execute(
                        f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT pg_advisory_xact_lock({INIT_LOCK});"
                        f"{self.statements}; COMMIT".encode()
                    )
                except psycopg.Error as failure:
                    code = failure.sqlstate or ""
                    cure = (
                        "; the role may not create here: let the owner run it"
                        if code == "42501"
                        else cure_of(code, self.url)
                    )
                    raise Refused(
                        f"PostgreSQL at {server.where} refused: {str(failure).strip()}{cure}", code
                    ) from failure
            return
        assert problem is not None
        raise problem
