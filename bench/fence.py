"""What a fence costs, against the same access without it, in one run.

python bench/fence.py [--count 2000]

Both sides take turns at every single access, so that a busy moment of the machine hits both. The ratio is that of the
medians; that of the lower quartiles stands beside it, because a busy neighbour only ever adds time.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.metadata
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from report import Report, Row

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import lockline  # noqa: E402
from lockline.fence import RedisFence, SqlFence  # noqa: E402
from tests.fence.test_http import served  # noqa: E402
from tests.servers.postgres import PostgresServer  # noqa: E402
from tests.servers.redis import a_redis  # noqa: E402

Act = Callable[[], object]


def nothing() -> None:
    pass


def compared(
    what: str, bare: Act, fenced: Act, limit: float | None, count: int, *, before: Act = nothing, after: Act = nothing
) -> Row:
    """Both in turn; what comes before and after is not timed."""
    times: dict[str, list[float]] = {"bare": [], "fenced": []}
    pair = [("bare", bare), ("fenced", fenced)]
    for number in range(count):
        for name, act in pair if number % 2 else reversed(pair):
            before()
            began = time.perf_counter()
            act()
            times[name].append((time.perf_counter() - began) * 1e6)
            after()
    first, second = (statistics.quantiles(times[name][count // 10 :]) for name in ("bare", "fenced"))
    ratio = second[1] / first[1]
    return {
        "what": what,
        "bare µs": first[1],
        "fenced µs": second[1],
        "ratio": ratio,
        "of lower quartiles": second[0] / first[0],
        "at most": "" if limit is None else limit,
        "": "" if limit is None else "ok" if ratio <= limit else "TOO MUCH",
    }


def sql(name: str, connection: Any, lease: Any, count: int) -> list[Row]:
    """The statement alone, beside the statement it rides with; and the whole transaction, with and without."""
    fence = SqlFence()
    fence.create(connection)
    cursor = connection.cursor()
    cursor.execute("DROP TABLE IF EXISTS orders")
    cursor.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, status TEXT, note TEXT)")
    for number in range(1000):
        cursor.execute(f"INSERT INTO orders VALUES ({number}, 'new', 'something that was written about it')")
    connection.commit()
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    statement = f"UPDATE orders SET status = {mark} WHERE id = {mark}"
    turn = iter(range(1 << 60))

    def update() -> None:
        number = next(turn)
        connection.cursor().execute(statement, (f"paid {number}", number % 1000))

    def enter() -> None:
        fence.enter(connection, "orders/42", lease)

    def bare() -> None:
        update()
        connection.commit()

    def fenced() -> None:
        enter()
        update()
        connection.commit()

    def read() -> None:
        connection.cursor().execute(f"SELECT status FROM orders WHERE id = {mark}", (42,)).fetchone()

    def bare_both() -> None:
        read()
        bare()

    def fenced_both() -> None:
        enter()
        read()
        bare()

    def begin() -> None:
        cursor.execute("SELECT 1" if name == "postgresql" else "BEGIN IMMEDIATE")

    return [
        compared(
            f"{name}: the UPDATE, and enter beside it", update, enter, 1.3, count, before=begin, after=connection.commit
        ),
        compared(f"{name}: a transaction with one UPDATE", bare, fenced, 1.3, count),
        compared(f"{name}: a transaction that reads and updates", bare_both, fenced_both, 1.3, count),
    ]


@contextlib.contextmanager
def asked(url: str, headers: dict[str, str]) -> Iterator[Act]:
    """One connection that is kept, and a PUT on it."""
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port))

    def put() -> None:
        connection.request("PUT", "/counter", b"1", headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200

    yield put
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    count = parser.parse_args().count
    versions = {name: importlib.metadata.version(name) for name in ("lockline", "psycopg", "redis", "uvicorn")}
    report = Report("fence", versions)
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lease = stack.enter_context(stack.enter_context(lockline.connect("memory:")).lock("orders/42", ttl=3600))

        import psycopg

        server = PostgresServer()
        stack.callback(server.remove)
        server.start()
        rows += sql("postgresql", stack.enter_context(psycopg.connect(server.url)), lease, count)
        connection = stack.enter_context(contextlib.closing(sqlite3.connect(folder / "data.db")))
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        rows += sql("sqlite", connection, lease, count)

        redis = stack.enter_context(a_redis())
        client = stack.enter_context(contextlib.closing(redis.client()))
        fence = RedisFence(client)
        value = "x" * 100
        rows.append(
            compared(
                "redis: SET",
                lambda: client.set("k", value),
                lambda: fence.set("orders/42", lease, value),
                1.3,
                4 * count,
            )
        )

        for kind in ("asgi", "wsgi"):
            acts = []
            for fenced in (False, True):
                home = folder / f"{kind}-{fenced}"
                home.mkdir()
                url = stack.enter_context(served(kind, home, fenced=fenced))
                acts.append(stack.enter_context(asked(url, lease.headers())))
            rows.append(compared(f"http: {kind}, PUT", *acts, 1.1, count))
    report.table("the same access, bare and behind a fence", rows)
    report.write()


if __name__ == "__main__":
    main()
