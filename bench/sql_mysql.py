"""MySQL (as MariaDB): Lockline against the same statements on bare PyMySQL, and sqlalchemy-dlock, in one run.

python bench/sql_mysql.py [--seconds 4] [--rounds 5] [--processes 16]

The peer locks with GET_LOCK: no lease, no token, no line, and gone with its session. What can be compared is the time of an acquire and a
release, and what a crowd gets of it. Nothing is pushed on MySQL: in a crowd Lockline waits by looking again, GET_LOCK waits in the server.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import pymysql
from crowd import Locker, contended, uncontended
from report import Report

from lockline.backends.mysql import tables
from lockline.backends.mysql.target import parse
from tests.servers.mysql import MariadbServer


@contextmanager
def lockline_locker(url: str) -> Iterator[Locker]:
    import lockline

    with lockline.connect(url) as client:
        lock = client.lock("bench")
        yield lambda: lock


@contextmanager
def bare_locker(url: str) -> Iterator[Locker]:
    """Not a lock: the two statements that Lockline sends, by PyMySQL's own cursor."""
    from lockline.backends.sql.calls import Places

    at, name = Places("lockline", "bare")("bench")
    about = '["bench:1", "lock", 1794850000.123456, ""]'
    enter = (
        f"CALL lockline_enter_v1({at}, X'{name.hex()}', '0123456789abcdef-1', 10, 1, 1, X'{about.encode().hex()}', 1)"
    )
    leave = f"CALL lockline_leave_v1({at}, X'{name.hex()}', '0123456789abcdef-1', 0)"

    def ask(statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            cursor.fetchone()

    @contextmanager
    def made() -> Iterator[None]:
        ask(enter)
        yield
        ask(leave)

    target = parse(url)
    with pymysql.connect(
        **target.servers[0].parameters, database=target.database, autocommit=True, ssl_disabled=True
    ) as connection:
        yield made


@contextmanager
def dlock_locker(url: str) -> Iterator[Locker]:
    import sqlalchemy
    from sqlalchemy_dlock import create_sadlock

    engine = sqlalchemy.create_engine(url.replace("mysql:", "mysql+pymysql:") + "?ssl_disabled=true")
    with engine.connect() as connection:
        # MariaDB knows no timeout below zero, which the peer would say for "as long as it takes".
        yield lambda: create_sadlock(connection, "bench", contextual_timeout=30)
    engine.dispose()


PEERS = {"lockline": lockline_locker, "sqlalchemy-dlock": dlock_locker}
LIMIT = "bare statements"


def run_all(report: Report, url: str, given: argparse.Namespace) -> None:
    with lockline_locker(url) as ours, bare_locker(url) as bare, dlock_locker(url) as dlock:
        lockers = {"lockline": ours, LIMIT: bare, "sqlalchemy-dlock": dlock}
        uncontended(lockers, 1, 100)
        times = uncontended(lockers, given.rounds, 300)
    report.table(
        "uncontended acquire + release",
        [{"peer": peer, "ms": seconds * 1e3, "of_limit": seconds / times[LIMIT]} for peer, seconds in times.items()],
    )
    for processes in given.processes:
        rows = [
            {"peer": peer, **contended(opener, url, processes, 0.001, given.seconds)} for peer, opener in PEERS.items()
        ]
        report.table(f"{processes} processes, 1 ms inside", rows)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--processes", type=int, nargs="*", default=[16])
    given = options.parse_args()
    report = Report(
        "sql_mysql", {peer: importlib.metadata.version(peer) for peer in ("lockline", "PyMySQL", "sqlalchemy-dlock")}
    )
    with tempfile.TemporaryDirectory() as folder:
        server = MariadbServer(Path(folder) / "home", "--max-connections=200").start()
        try:
            tables(server.url).make()
            run_all(report, server.url, given)
        finally:
            server.remove()
    report.write()


if __name__ == "__main__":
    main()
