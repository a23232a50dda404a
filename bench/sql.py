"""The databases: Lockline against the same statements on the bare driver, and against its peers there, in one run.

python bench/sql.py [postgresql] [mysql] [--seconds 4] [--rounds 5] [--processes 16]

The peers (sqlalchemy-dlock; PALs on PostgreSQL) lock with session advisory locks and GET_LOCK: no lease, no token, no line, and nothing
that survives a pooler or a broken connection. What can be compared is the time of an acquire and a release, and what a crowd gets of it.
Nothing is pushed on MySQL: in a crowd Lockline waits by looking again, GET_LOCK waits in the server.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

import psycopg
import pymysql
from crowd import Locker, Opener, contended, uncontended
from report import Report

from lockline.backends import mysql, postgresql
from lockline.backends.mysql.target import parse
from lockline.backends.sql.calls import Places
from tests.servers.mysql import MariadbServer
from tests.servers.postgres import PostgresServer

OURS = "lockline"
LIMIT = "bare statements"
DLOCK = "sqlalchemy-dlock"
KEPT = "sqlalchemy-dlock, connection kept"
ABOUT = '["bench:1", "lock", 1794850000.123456, ""]'
CLAIM = "0123456789abcdef-1"


# -- those who lock -----------------------------------------------------------------------------------


@contextmanager
def lockline_locker(url: str) -> Iterator[Locker]:
    import lockline

    with lockline.connect(url) as client:
        lock = client.lock("bench")
        yield lambda: lock


def asking(ask: Callable[[str, tuple[object, ...]], object], enter: Any, leave: Any) -> Locker:
    """Not a lock: the two statements that Lockline sends."""

    @contextmanager
    def made() -> Iterator[None]:
        ask(*enter)
        yield
        ask(*leave)

    return made


@contextmanager
def bare_psycopg(url: str) -> Iterator[Locker]:
    """By psycopg's own cursor, prepared by it as it sees fit."""
    at, name = Places("lockline", "bare")("bench")
    enter = "SELECT * FROM lockline.enter_v1(%s::bigint, %s::bytea, %s, 10::float8, 1, 1, %s, NULL, true)"
    leave = "SELECT * FROM lockline.leave_v1(%s::bigint, %s::bytea, %s, false, NULL)"
    with psycopg.connect(url, autocommit=True) as connection:
        yield asking(
            lambda statement, values: connection.execute(statement.encode(), values).fetchone(),
            (enter, (at, name, CLAIM, ABOUT)),
            (leave, (at, name, CLAIM)),
        )


@contextmanager
def bare_pymysql(url: str) -> Iterator[Locker]:
    """By PyMySQL's own cursor."""
    at, name = Places("lockline", "bare")("bench")
    target = parse(url)

    def ask(statement: str, values: tuple[object, ...]) -> object:
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchone()

    with pymysql.connect(
        **target.servers[0].parameters, database=target.database, autocommit=True, ssl_disabled=True
    ) as connection:
        yield asking(
            ask,
            ("CALL lockline_enter_v1(%s, %s, %s, 10, 1, 1, %s, 1)", (at, name, CLAIM, ABOUT)),
            ("CALL lockline_leave_v1(%s, %s, %s, 0)", (at, name, CLAIM)),
        )


def _driven(url: str) -> str:
    """As SQLAlchemy writes it, with the driver."""
    if url.startswith("mysql:"):
        return url.replace("mysql:", "mysql+pymysql:") + "?ssl_disabled=true"
    return url.replace("postgresql:", "postgresql+psycopg:")


def _dlock(url: str) -> tuple[Any, Callable[[Any], AbstractContextManager[Any]]]:
    import sqlalchemy
    from sqlalchemy_dlock import create_sadlock

    # MariaDB knows no timeout below zero, which the peer would say for "as long as it takes".
    how = {"contextual_timeout": 30} if url.startswith("mysql:") else {}
    return sqlalchemy.create_engine(_driven(url)), lambda connection: create_sadlock(connection, "bench", **how)


@contextmanager
def dlock_locker(url: str) -> Iterator[Locker]:
    """As its documentation shows it: a connection out of the pool for each lock."""
    engine, lock = _dlock(url)

    @contextmanager
    def made() -> Iterator[None]:
        with engine.connect() as connection, lock(connection):
            yield

    yield made
    engine.dispose()


@contextmanager
def dlock_on_one_connection(url: str) -> Iterator[Locker]:
    """On a connection that is kept for nothing else, in a transaction that stays open."""
    engine, lock = _dlock(url)
    with engine.connect() as connection:
        yield lambda: lock(connection)
    engine.dispose()


@contextmanager
def pals_locker(url: str) -> Iterator[Locker]:
    import pals

    locker = pals.Locker("bench", _driven(url))
    yield lambda: locker.lock("bench")


# -- where --------------------------------------------------------------------------------------------


@contextmanager
def postgresql_server() -> Iterator[str]:
    server = PostgresServer("-c", "max_connections=200").start()
    try:
        postgresql.tables(server.url).make()
        yield server.url
    finally:
        server.remove()


@contextmanager
def mariadb_server() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        server = MariadbServer(Path(folder) / "home", "--max-connections=200").start()
        try:
            mysql.tables(server.url).make()
            yield server.url
        finally:
            server.remove()


@contextmanager
def notifies(url: str) -> Iterator[Callable[[], float]]:
    """How full the queue of notifications is: one who listens and does not read keeps all of it."""
    with psycopg.connect(url, autocommit=True) as deaf, psycopg.connect(url, autocommit=True) as asks:
        deaf.execute("LISTEN lockline_bench")
        deaf.execute("BEGIN")
        deaf.execute("SELECT 1")
        yield lambda: float((asks.execute("SELECT pg_notification_queue_usage()").fetchone() or (0,))[0])
        deaf.execute("ROLLBACK")


@contextmanager
def nothing_to_count(url: str) -> Iterator[None]:
    yield None


class Dialect(NamedTuple):
    """One database, those who lock there, and what it sends unasked."""

    server: Callable[[], AbstractContextManager[str]]
    driver: str
    bare: Opener
    peers: dict[str, Opener]
    unasked: Callable[[str], AbstractContextManager[Callable[[], float] | None]]


DIALECTS = {
    "postgresql": Dialect(
        postgresql_server,
        "psycopg",
        bare_psycopg,
        {DLOCK: dlock_locker, KEPT: dlock_on_one_connection, "PALs": pals_locker},
        notifies,
    ),
    "mysql": Dialect(
        mariadb_server, "PyMySQL", bare_pymysql, {DLOCK: dlock_locker, KEPT: dlock_on_one_connection}, nothing_to_count
    ),
}


def run_all(report: Report, name: str, given: argparse.Namespace) -> None:
    dialect = DIALECTS[name]
    with dialect.server() as url:
        openers = {OURS: lockline_locker, LIMIT: dialect.bare, **dialect.peers}
        with ExitStack() as stack:
            counts = stack.enter_context(dialect.unasked(url))
            lockers = {peer: stack.enter_context(opener(url)) for peer, opener in openers.items()}
            uncontended(lockers, 1, 100)
            times = uncontended(lockers, given.rounds, 300)
            unasked = counts() if counts is not None else None
        rows = [
            {"peer": peer, "ms": seconds * 1e3, "of_limit": seconds / times[LIMIT]} for peer, seconds in times.items()
        ]
        if unasked is not None:
            rows[0]["notifies"] = unasked
        report.table(f"{name}: uncontended acquire + release", rows)
        for processes in given.processes:
            report.table(
                f"{name}: {processes} processes, 1 ms inside",
                [
                    {"peer": peer, **contended(openers[peer], url, processes, 0.001, given.seconds)}
                    for peer in (OURS, *dialect.peers)
                    if peer != KEPT
                ],
            )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("dialects", nargs="*", choices=[*DIALECTS, []], help="which databases; all, if none is named")
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--processes", type=int, nargs="*", default=[16])
    given = options.parse_args()
    chosen = given.dialects or list(DIALECTS)
    versions = (OURS, "sqlalchemy-dlock", "PALs", *(DIALECTS[name].driver for name in chosen))
    report = Report("sql", {peer: importlib.metadata.version(peer) for peer in versions})
    for name in chosen:
        run_all(report, name, given)
    report.write()


if __name__ == "__main__":
    main()
