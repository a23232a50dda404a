"""PostgreSQL: Lockline against the same statements on bare psycopg, sqlalchemy-dlock and PALs, in one run.

python bench/sql.py [--seconds 4] [--rounds 5] [--processes 16]

The peers lock with session advisory locks: no lease, no token, no line, and nothing that survives a pooler. What can be compared is the
time of an acquire and a release, and what a crowd gets of it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import psycopg
from crowd import Locker, contended, uncontended
from report import Report

from lockline.backends.postgresql import tables
from tests.servers.postgres import PostgresServer


@contextmanager
def lockline_locker(url: str) -> Iterator[Locker]:
    import lockline

    with lockline.connect(url) as client:
        lock = client.lock("bench")
        yield lambda: lock


@contextmanager
def bare_locker(url: str) -> Iterator[Locker]:
    """Not a lock: the two statements that Lockline sends, by psycopg's own cursor, prepared by it as it sees fit."""
    from lockline.backends.sql.calls import Places

    at, name = Places("lockline", "bare")("bench")
    enter = "SELECT * FROM lockline.enter_v1(%s::bigint, %s::bytea, %s, 10::float8, 1, 1, %s, NULL, true)"
    leave = "SELECT * FROM lockline.leave_v1(%s::bigint, %s::bytea, %s, false, NULL)"
    about = '["bench:1", "lock", 1794850000.123456, ""]'

    @contextmanager
    def made() -> Iterator[None]:
        connection.execute(enter, (at, name, "0123456789abcdef-1", about)).fetchone()
        yield
        connection.execute(leave, (at, name, "0123456789abcdef-1")).fetchone()

    with psycopg.connect(url, autocommit=True) as connection:
        yield made


@contextmanager
def dlock_locker(url: str) -> Iterator[Locker]:
    import sqlalchemy
    from sqlalchemy_dlock import create_sadlock

    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        yield lambda: create_sadlock(connection, "bench")
    engine.dispose()


@contextmanager
def pals_locker(url: str) -> Iterator[Locker]:
    import pals

    locker = pals.Locker("bench", url.replace("postgresql:", "postgresql+psycopg:"))
    yield lambda: locker.lock("bench")


PEERS = {"lockline": lockline_locker, "sqlalchemy-dlock": dlock_locker, "PALs": pals_locker}
LIMIT = "bare statements"


def notified(url: str) -> float:
    """How full the queue of notifications is: one who listens and does not read keeps all of it."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_notification_queue_usage()").fetchone()
    return float(row[0]) if row else 0.0


def run_all(report: Report, url: str, given: argparse.Namespace) -> None:
    found: list[dict[str, object]] = []
    with (
        psycopg.connect(url, autocommit=True) as deaf,
        lockline_locker(url) as ours,
        bare_locker(url) as bare,
        dlock_locker(url) as dlock,
        pals_locker(url) as pals,
    ):
        deaf.execute("LISTEN lockline_bench")
        deaf.execute("BEGIN")
        deaf.execute("SELECT 1")
        lockers = {"lockline": ours, LIMIT: bare, "sqlalchemy-dlock": dlock, "PALs": pals}
        uncontended(lockers, 1, 100)
        times = uncontended(lockers, given.rounds, 300)
        queue = notified(url)
        deaf.execute("ROLLBACK")
    for peer, seconds in times.items():
        found.append({"peer": peer, "ms": seconds * 1e3, "of_limit": seconds / times[LIMIT]})
    found[0]["notifies"] = queue
    report.table("uncontended acquire + release", found)
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
        "sql", {peer: importlib.metadata.version(peer) for peer in ("lockline", "psycopg", "sqlalchemy-dlock", "PALs")}
    )
    server = PostgresServer("-c", "max_connections=200").start()
    try:
        tables(server.url).make()
        run_all(report, server.url, given)
    finally:
        server.remove()
    report.write()


if __name__ == "__main__":
    main()
