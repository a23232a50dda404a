"""Rows in a database behind a fence: the mark is raised inside the user's own transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from ..core.arguments import a_flag
from ..errors import ConfigError, StaleToken
from ..runtime.blocking import run
from . import sqltext
from .rule import Mark, Offer, a_name, a_resource, may_enter, may_write, offer_of, stale
from .sqlerrors import CURE, is_double, is_lost_race, shape_error
from .sqlports import Port, SqlitePort, mark_of, port_for
from .sqltransaction import RELEASE, SAVEPOINT, means_none_is_open

ATTEMPTS = 3
"""How often plain SQL may find that a row came or went between two statements."""


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
        self.table = sqltext.a_table(table)
        self.exact = a_flag(exact, "exact")
        self._dialect = None if dialect is None else sqltext.a_dialect(dialect)
        self._fresh = fresh
        self._seen_shape: set[str] = set()

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
        port = port_for(connection, self._dialect)
        return _result(port, self._look(port, resource, offer))

    def create(self, connection: Any) -> Any:
        """Make the table if it is not there, in the current transaction (MySQL commits it by itself)."""
        port = port_for(connection, self._dialect)
        return _result(port, self._create(port))

    def ddl(self, dialect: str) -> str:
        """The statement that makes the table, for a migration: sqlite, postgresql, mysql or other."""
        return sqltext.ddl(self.table, sqltext.a_dialect(dialect))

    # -- the rule, in one statement where the database can -----------------------------------------------

    def _begin(self, connection: Any, resource: str, holder: Any, lock: str | None, *, writes: bool) -> Any:
        resource = a_resource(resource)
        offer = offer_of(resource, holder, lock, self.exact)
        port = port_for(connection, self._dialect)
        if type(port) is SqlitePort and port.dialect == "sqlite" and port.stands(self.table, resource, offer):
            return None
        return _result(port, self._enter(port, resource, offer, writes=writes))

    async def _enter(self, port: Port, resource: str, offer: Offer, *, writes: bool) -> None:
        if port.prepares:
            await port.prepare()
        try:
            if port.dialect != "sqlite":
                await self._demand_transaction(port)
            if port.dialect == "sqlite":
                mark = await self._enter_sqlite(port, resource, offer, writes)
            elif port.dialect == "mysql":
                mark = await self._enter_mysql(port, resource, offer, writes)
            elif port.dialect == "other":
                mark = await self._enter_plain(port, resource, offer, writes)
            else:
                text = sqltext.ENTER if not self.exact else sqltext.CONFIRM if writes else sqltext.TAKE
                if (await port.execute(text, self.table, resource, offer, rows=False)).changed == 1:
                    return
                mark = await self._mark(port, resource, offer)
        except (StaleToken, ConfigError):
            raise
        except Exception as problem:
            if is_lost_race(problem):
                await self._explain(port, resource, offer, writes, problem)
            wrong = shape_error(problem, self.table, port.dialect)
            if wrong is None:
                raise
            raise wrong from problem
        if mark is None or (mark.token, mark.grant) != (offer.token, offer.grant):
            raise stale(resource, mark, offer)

    async def _demand_transaction(self, port: Port) -> None:
        """ConfigError unless it is certain that what follows lasts to a commit; nothing is changed to find out."""
        known = port.in_transaction()
        if known is None and port.dialect in ("postgresql", "mysql"):
            known = await self._holds_savepoint(port)
        elif known is None and port.dialect == "other":
            await port.execute(sqltext.BEGIN_WRITING, self.table, "", None, rows=False)
            known = port.in_transaction()
        if known:
            return
        why = "it cannot be seen that" if known is None else "it is not so that"
        raise ConfigError(
            f"on this connection {why} a statement waits for a commit; if each is committed by itself, the check and "
            "the write are two acts, and an old holder writes between them: begin a transaction, enter, read, write, commit"
        )

    async def _holds_savepoint(self, port: Port) -> bool:
        try:
            for text in (SAVEPOINT, RELEASE):
                await port.execute(text, self.table, "", None, rows=False)
        except Exception as problem:
            if means_none_is_open(problem):
                return False
            raise
        return True

    async def _enter_sqlite(self, port: Port, resource: str, offer: Offer, writes: bool) -> Mark | None:
        await port.execute(sqltext.BEGIN_WRITING, self.table, resource, None, rows=False)
        # Not before: whether a connection of SQLite begins by itself is known only when it has.
        await self._demand_transaction(port)
        mark = await self._mark(port, resource, offer)
        if mark != (offer.token, offer.grant) and (may_write if writes else may_enter)(mark, offer, self.exact):
            await self._check_shape(port)
            await port.execute(sqltext.TAKE, self.table, resource, offer, rows=False)
            return Mark(offer.token, offer.grant)
        return mark

    async def _enter_mysql(self, port: Port, resource: str, offer: Offer, writes: bool) -> Mark | None:
        await self._check_engine(port)
        if not (writes and self.exact):
            text = sqltext.MYSQL_TAKE if self.exact else sqltext.MYSQL_ENTER
            await port.execute(text, self.table, resource, offer, rows=False)
        done = await port.execute(sqltext.MYSQL_LOOK_LOCKED, self.table, resource, offer, rows=True)
        return mark_of(done.row, self.table)

    async def _enter_plain(self, port: Port, resource: str, offer: Offer, writes: bool) -> Mark | None:
        text = sqltext.PLAIN_ENTER if not self.exact else sqltext.CONFIRM if writes else sqltext.PLAIN_TAKE
        for attempt in range(ATTEMPTS):
            if (await port.execute(text, self.table, resource, offer, rows=False)).changed == 1:
                return Mark(offer.token, offer.grant)
            mark = await self._mark(port, resource, offer)
            if mark is not None or (writes and self.exact):
                return mark
            try:
                await port.execute(sqltext.PLAIN_ADD, self.table, resource, offer, rows=False)
            except Exception as problem:
                # Another one's row came in between, so now there is one to update; unless it never shows.
                if not is_double(problem) or attempt == ATTEMPTS - 1:
                    raise
            else:
                return Mark(offer.token, offer.grant)
        return None

    async def _mark(self, port: Port, resource: str, offer: Offer) -> Mark | None:
        return mark_of((await port.execute(sqltext.LOOK, self.table, resource, offer, rows=True)).row, self.table)

    async def _look(self, port: Port, resource: str, offer: Offer) -> Mark | None:
        await port.prepare()
        try:
            return await self._mark(port, resource, offer)
        except Exception as problem:
            raise shape_error(problem, self.table, port.dialect) or problem from problem

    # -- REPEATABLE READ and SERIALIZABLE ------------------------------------------------------------------

    async def _explain(self, port: Port, resource: str, offer: Offer, writes: bool, problem: Exception) -> None:
        """StaleToken if that is why the database refused; otherwise nothing, and its own error goes up to be retried.

        The mark was changed after this transaction took its picture of the database. The picture cannot show by whom:
        an older holder that came in time (try again) or a newer one (never again). Only a second connection sees that.
        """
        opened = self._fresh() if self._fresh is not None else port.fresh()
        if opened is None:
            return
        try:
            if port.awaits:
                async with opened as second:
                    mark = await self._second_look(second, resource, offer)
            else:
                with opened as second:
                    mark = await self._second_look(second, resource, offer)
        except Exception as unseen:
            problem.add_note(f"the fence could not look at its mark on a second connection: {unseen}")
            return
        if not (may_write if writes else may_enter)(mark, offer, self.exact):
            raise stale(resource, mark, offer) from problem

    async def _second_look(self, connection: Any, resource: str, offer: Offer) -> Mark | None:
        port = port_for(connection, self._dialect)
        await port.prepare()
        return await self._mark(port, resource, offer)

    # -- the table -----------------------------------------------------------------------------------------

    async def _create(self, port: Port) -> None:
        await port.prepare()
        try:
            if port.dialect == "postgresql":
                await port.execute(sqltext.POSTGRESQL_CREATE_ALONE, self.table, "", None, rows=False)
            await port.execute(sqltext.DDL[port.dialect], self.table, "", None, rows=False)
            await self._mark(port, "-", Offer("-", 0, ""))
            if port.dialect == "sqlite":
                await self._check_shape(port)
            elif port.dialect == "mysql":
                await self._check_engine(port)
        except ConfigError:
            raise
        except Exception as problem:
            raise shape_error(problem, self.table, port.dialect) or problem from problem

    async def _check_engine(self, port: Port) -> None:
        """ConfigError if MySQL keeps the table where nothing is rolled back and no row is locked. Asked once."""
        if "mysql" in self._seen_shape:
            return
        schema, _, name = self.table.rpartition(".")
        text = sqltext.MYSQL_TRANSACTIONS.replace("{schema}", f"'{schema}'" if schema else "DATABASE()")
        row = (await port.execute(text.replace("{name}", name), self.table, "", None, rows=True)).row
        if row is None:
            return  # no such table: the statement itself will say so
        if str(row[0]).upper() != "YES":
            raise ConfigError(
                f"the table {self.table!r} is of the engine {row[1]}, which knows no transactions; {CURE}"
            )
        self._seen_shape.add("mysql")

    async def _check_shape(self, port: Port) -> None:
        """SQLite takes any value in any column; so ask for the table's own words before trusting a comparison."""
        schema, _, name = self.table.rpartition(".")
        text = f"SELECT sql FROM {schema + '.' if schema else ''}sqlite_master WHERE type = 'table' AND name = '{name}'"
        row = (await port.execute(text, self.table, "", None, rows=True)).row
        words = "" if row is None else str(row[0])
        if words in self._seen_shape:
            return
        if row is None:
            raise ConfigError(f"the table {self.table!r} is missing or of another shape; {CURE}")
        columns = (
            await port.execute(COLUMNS_OF.format(name=name, schema=schema or "main"), self.table, "", None, rows=True)
        ).row
        if columns is None or columns[0] != SHAPE:
            raise ConfigError(f"the table {self.table!r} is of another shape: {words}; {CURE}")
        self._seen_shape.add(words)


COLUMNS_OF = """\
SELECT group_concat(name || ' ' || upper(type) || ' ' || pk, ', ') FROM (
    SELECT name, type, pk FROM pragma_table_info('{name}', '{schema}') ORDER BY name
)"""
SHAPE = "grant_id TEXT 0, lock_name TEXT 2, resource TEXT 1, token INTEGER 0"


def _result(port: Port, work: Coroutine[Any, Any, Any]) -> Any:
    """The work itself to be awaited, or its result where the connection blocks."""
    return work if port.awaits else run(work)
