"""Rows in a database behind a fence: the mark is raised inside the user's own transaction."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from ...core.arguments import a_flag
from ...errors import ConfigError, LocklineError
from ...runtime.blocking import run
from ..rule import Mark, Offer, a_name, a_resource, offer_of, passes, stale
from . import mysql, plain, postgresql, sqlite
from .connections import SqlConnection, SqliteConnection, connection_for
from .errors import CURE, driver_error, is_lost_race, is_of_a_driver
from .visit import CONFIRM, Dialect, Visit

DIALECTS: Final[dict[str, Dialect]] = {"sqlite": sqlite, "postgresql": postgresql, "mysql": mysql, "other": plain}
NOBODY: Final = Offer("-", 0, "")


class SqlFence:
    """Rows of any SQL database, checked in the transaction that changes them.

    Takes a connection of sqlite3, psycopg 3, PyMySQL or another DB-API driver, or a connection or session of SQLAlchemy 2.
    With an asyncio connection every method is awaited. The fence neither commits nor rolls back.
    """

    def __init__(
        self,
        table: str = "lockline_fence",
        *,
        exact: bool = False,
        dialect: str | None = None,
        fresh: Callable[[], Any] | None = None,
    ) -> None:
        """`fresh` opens a second connection, as a context manager; it is asked for only where REPEATABLE READ or
        SERIALIZABLE refused a transaction and neither psycopg nor SQLAlchemy is there to open one."""
        self.table = _a_table(table)
        self.exact = a_flag(exact, "exact")
        self._dialect = None if dialect is None else _a_dialect(dialect)
        self._fresh = fresh
        self._trusted: set[str] = set()

    def enter(self, connection: Any, resource: str, holder: Any, *, lock: str | None = None) -> Any:
        """Raise the mark and lock its row to the end of the transaction; StaleToken if a newer holder was here.

        Call it first in the transaction, before the read, and first again in each later transaction that writes.
        """
        return self._begin(connection, resource, holder, lock, writes=False)

    def check(self, connection: Any, resource: str, holder: Any, *, lock: str | None = None) -> Any:
        """Enter again, at a write. Under the exact rule: pass only if nobody has entered since this owner did."""
        return self._begin(connection, resource, holder, lock, writes=True)

    def look(self, connection: Any, resource: str, lock: str | None = None) -> Any:
        """The mark of this lock at the resource, or None."""
        resource = a_resource(resource)
        offer = Offer(a_name(lock or resource, "lock"), 0, "")
        taken = connection_for(connection, self._dialect)
        return _result(taken, self._look(self._visit(taken, resource, offer)))

    def create(self, connection: Any) -> Any:
        """Make the table if it is not there, in the current transaction (MySQL commits it by itself)."""
        taken = connection_for(connection, self._dialect)
        return _result(taken, self._create(self._visit(taken, "-", NOBODY)))

    def ddl(self, dialect: str) -> str:
        """The statement that makes the table, for a migration: sqlite, postgresql, mysql or other."""
        return DIALECTS[_a_dialect(dialect)].DDL.format(table=self.table)

    def _begin(self, connection: Any, resource: str, holder: Any, lock: str | None, *, writes: bool) -> Any:
        resource = a_resource(resource)
        offer = offer_of(resource, holder, lock, self.exact)
        taken = connection_for(connection, self._dialect)
        if type(taken) is SqliteConnection and self._is_in_already(taken, resource, offer):
            return None
        return _result(taken, self._enter(self._visit(taken, resource, offer, writes=writes)))

    def _is_in_already(self, connection: SqliteConnection, resource: str, offer: Offer) -> bool:
        """Whether the mark is this offer's already; the file is then locked for it, as after any entering.

        What the steps would find as well, with more of them: for a holder that writes again and again.
        """
        if connection.dialect != "sqlite":
            return False
        try:
            return connection.confirm(CONFIRM, self.table, resource, offer)
        except Exception as problem:
            if not sqlite.is_wrong_table(problem):
                raise
            return False

    def _visit(self, connection: SqlConnection, resource: str, offer: Offer, *, writes: bool = False) -> Visit:
        return Visit(connection, self.table, resource, offer, self.exact, writes, self._trusted)

    async def _enter(self, visit: Visit) -> None:
        connection = visit.connection
        if connection.prepares:
            await connection.prepare()
        try:
            stands = await DIALECTS[connection.dialect].enter(visit)
        except Exception as problem:
            if is_lost_race(problem):
                await self._explain(visit, problem)
            _refuse_wrong_table(visit, problem)
            raise
        if not isinstance(stands, Offer) and stands != (visit.offer.token, visit.offer.grant):
            raise stale(visit.resource, stands, visit.offer)

    async def _look(self, visit: Visit) -> Mark | None:
        await visit.connection.prepare()
        try:
            return await visit.mark()
        except Exception as problem:
            _refuse_wrong_table(visit, problem)
            raise

    async def _create(self, visit: Visit) -> None:
        await visit.connection.prepare()
        try:
            await DIALECTS[visit.connection.dialect].create(visit)
        except Exception as problem:
            _refuse_wrong_table(visit, problem)
            raise

    async def _explain(self, visit: Visit, problem: Exception) -> None:
        """StaleToken if that is why the database refused; otherwise nothing, and its own error goes up to be retried.

        Under REPEATABLE READ or SERIALIZABLE the mark was changed after this transaction took its picture of the database. The
        picture cannot show by whom: an older holder that came in time (try again) or a newer one (never again). Only a second
        connection sees that.
        """
        try:
            opened = self._fresh() if self._fresh is not None else await visit.connection.fresh()
            if opened is None:
                return
            if visit.connection.awaits:
                async with opened as second:
                    mark = await self._look_by(second, visit)
            else:
                with opened as second:
                    mark = await self._look_by(second, visit)
        except Exception as unseen:
            if not isinstance(unseen, LocklineError) and not is_of_a_driver(unseen):
                raise
            problem.add_note(f"the fence could not look at its mark on a second connection: {unseen}")
            return
        if not passes(mark, visit.offer, writes=visit.writes, exact=visit.exact):
            raise stale(visit.resource, mark, visit.offer) from problem

    async def _look_by(self, connection: Any, visit: Visit) -> Mark | None:
        second = connection_for(connection, self._dialect)
        await second.prepare()
        return await replace(visit, connection=second).mark()


def _refuse_wrong_table(visit: Visit, problem: Exception) -> None:
    """ConfigError if this error says that the table is missing or of another shape."""
    found = driver_error(problem)
    if isinstance(problem, LocklineError) or not DIALECTS[visit.connection.dialect].is_wrong_table(found):
        return
    said = str(found).strip().splitlines()[0]
    raise ConfigError(f"the table {visit.table!r} is missing or of another shape ({said}); {CURE}") from problem


def _result(connection: SqlConnection, work: Coroutine[Any, Any, Any]) -> Any:
    """The work itself to be awaited, or its result where the connection blocks."""
    return work if connection.awaits else run(work)


def _a_dialect(value: object) -> str:
    """One of the dialects that Lockline speaks."""
    if value == "mariadb":
        return "mysql"
    if value not in DIALECTS:
        raise ConfigError(f"dialect is one of {', '.join(DIALECTS)}, not {value!r}")
    return str(value)


def _a_table(value: object) -> str:
    """A table's name, with its schema if need be; nothing that could be anything else in SQL."""
    if not isinstance(value, str) or not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*", value):
        raise ConfigError(f"table is a plain name, or schema.name, not {value!r}")
    return value
