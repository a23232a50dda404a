"""Holders frozen past their ttl: with a fence no accepted write is ever lost; without one, or checked late, some are.

The directed stories stop each process at a chosen instruction, so that what must be lost is lost every time. The random
ones freeze whoever runs, whenever it happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockline.fence import SqlFence

from ..cli.forked import Forker
from ..servers.mysql import MysqlServer
from ..servers.process import wait_for
from ..servers.redis import RedisServer
from ..tier import sample
from .objects import an_s3
from .program import NEEDS
from .test_http import served

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
STORES = ["sqlite", "postgresql", "mysql", "redis", "file", "asgi", "wsgi", "s3"]
UNFENCED = sample(["sqlite", "redis"], STORES)
"""Where the loss without a fence is shown; it does not depend on the store."""
WAYS = [(kind, way) for way in ("fence", "write-only", "none") for kind in (STORES if way == "fence" else UNFENCED)]


class Counter:
    """A counter at a store, starting at 0."""

    def __init__(self, kind: str, where: Any, value: Callable[[], int]) -> None:
        self.kind = kind
        self.where = where
        self.value = value


@contextlib.contextmanager
def a_counter(kind: str, way: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Counter]:
    if kind == "sqlite":
        path = str(folder / "data.db")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            prepare(connection)

        def sqlite_value() -> int:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                return int(connection.execute("SELECT value FROM counter").fetchone()[0])

        yield Counter(kind, path, sqlite_value)
    elif kind == "postgresql":
        import psycopg

        url = request.getfixturevalue("postgres").url
        with contextlib.closing(psycopg.connect(url)) as postgres:
            prepare(postgres)
            yield Counter(kind, url, lambda: value_of(postgres))
    elif kind == "mysql":
        import pymysql

        server: MysqlServer = request.getfixturevalue("mysql")
        where: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": server.user}
        with contextlib.closing(pymysql.connect(**where)) as connection:
            connection.cursor().execute("CREATE DATABASE IF NOT EXISTS frozen")
        where["database"] = "frozen"
        with contextlib.closing(pymysql.connect(**where)) as connection:
            prepare(connection)
            yield Counter(kind, where, lambda: value_of(connection))
    elif kind == "redis":
        redis_server: RedisServer = request.getfixturevalue("redis_server")
        with contextlib.closing(redis_server.client()) as client:
            client.flushall()
            client.set("counter", 0)
            yield Counter(kind, redis_server.port, lambda: int(client.get("counter")))
    elif kind == "file":
        file = folder / "counter.txt"
        file.write_text("0")
        yield Counter(kind, str(file), lambda: int(file.read_text()))
    elif kind == "s3":
        url, key = request.getfixturevalue("s3_url"), uuid.uuid4().hex
        with contextlib.closing(an_s3(url)) as s3:
            s3.create_bucket(Bucket="bucket")
            s3.put_object(Bucket="bucket", Key=key, Body=b"0")
            yield Counter(kind, [url, key], lambda: int(s3.get_object(Bucket="bucket", Key=key)["Body"].read()))
    else:
        with served(kind, folder, request.getfixturevalue("forker"), fenced=way != "none") as url:
            yield Counter(kind, url, lambda: int((folder / "value").read_text()))


def prepare(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("DROP TABLE IF EXISTS lockline_fence")
    cursor.execute("DROP TABLE IF EXISTS counter")
    cursor.execute("CREATE TABLE counter (value BIGINT)")
    cursor.execute("INSERT INTO counter VALUES (0)")
    SqlFence().create(connection)
    connection.commit()


def value_of(connection: Any) -> int:
    cursor = connection.cursor()
    cursor.execute("SELECT value FROM counter")
    value = int(cursor.fetchone()[0])
    connection.rollback()
    return value


class Child:
    """One process of the program."""

    def __init__(self, forker: Forker, folder: Path, name: str, counter: Counter, way: str, **more: Any) -> None:
        self.out = folder / f"{name}.out"
        self.errors = folder / f"{name}.err"
        settings = {
            "kind": counter.kind, "where": counter.where, "way": way, "url": f"local://{folder / 'locks.db'}", "ttl": 1.0, **more
        }  # fmt: skip
        waits, self._go = os.pipe()
        with open(self.out, "wb") as out, open(self.errors, "wb") as errors, open(waits) as told:
            self.process = forker.start(
                [json.dumps(settings)], os.environ, ROOT, call="tests.fence.program:main",
                files=(told.fileno(), out.fileno(), errors.fileno()), imports=NEEDS.get(counter.kind, []),
            )  # fmt: skip

    def go(self) -> None:
        """Let it begin, once it is ready."""
        wait_for(
            lambda: b"ready" in self.out.read_bytes() or self.process.poll() is not None, 120, "the child is ready"
        )
        os.write(self._go, b"\n")

    def stopped(self) -> bool:
        """Whether it stands still (T in its state)."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def so_far(self) -> list[list[Any]]:
        """What it said until now, in whole lines."""
        return [json.loads(line) for line in self.out.read_text().splitlines(keepends=True)[1:] if line.endswith("\n")]

    def events(self) -> list[list[Any]]:
        """What it said, after it has ended."""
        try:
            self.process.wait(180)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the program hangs: {self.errors.read_text()}") from None
        assert self.process.returncode == 0, self.errors.read_text()
        return self.so_far()

    def end(self) -> None:
        if self.process.poll() is None:
            self.thaw()
            self.process.kill()
        self.process.wait(60)
        os.close(self._go)


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.end()


def accepted_so_far(pair: list[Child]) -> int:
    return sum(event[0] == "accepted" for child in pair for event in child.so_far())


def outcomes(child: Child) -> list[str]:
    return [event[0] for event in child.events() if event[0] != "lost"]


@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_frozen_before_its_write_while_another_reads(
    kind: str, way: str, request: pytest.FixtureRequest, tmp_path: Path, forker: Forker, children: list[Child]
) -> None:
    """The old holder stops before its write; the new one reads, and stops as well; the old one wakes first.

    Checked at the write only, the old one passes: the new one has not written yet. Then the new one writes what it
    made of the value from before, and an accepted update is gone. Entering before the read closes that door.
    """
    with a_counter(kind, way, request, tmp_path) as counter:
        old, new = (Child(forker, tmp_path, name, counter, way, stop_at="read") for name in ("old", "new"))
        children += [old, new]
        old.go()
        wait_for(old.stopped, 60, "the old holder has read")
        new.go()
        wait_for(new.stopped, 60, "the new holder has read")
        old.thaw()
        first = outcomes(old)
        new.thaw()
        second = outcomes(new)
        if way == "fence":
            assert (first, second) == (["stale"], ["accepted"])
            assert counter.value() == 1
        else:
            assert (first, second) == (["accepted"], ["accepted"])
            assert counter.value() == 1, (
                "two writes were accepted and one is there: this is the loss that a fence is for"
            )


@pytest.mark.parametrize(("kind", "way"), [(kind, way) for kind, way in WAYS if way != "write-only"])
def test_frozen_before_its_write_while_another_comes_and_goes(
    kind: str, way: str, request: pytest.FixtureRequest, tmp_path: Path, forker: Forker, children: list[Child]
) -> None:
    """The old holder stops before its write; the new one reads, writes and leaves; the old one wakes and writes."""
    with a_counter(kind, way, request, tmp_path) as counter:
        old = Child(forker, tmp_path, "old", counter, way, stop_at="read")
        new = Child(forker, tmp_path, "new", counter, way)
        children += [old, new]
        old.go()
        wait_for(old.stopped, 60, "the old holder has read")
        new.go()
        assert outcomes(new) == ["accepted"]
        old.thaw()
        assert outcomes(old) == (["accepted"] if way == "none" else ["stale"])
        assert counter.value() == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", sample(["postgresql", "file"], STORES))
def test_frozen_at_random_no_accepted_write_is_lost(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, forker: Forker, children: list[Child]
) -> None:
    """By lot, what the two above do on every store."""
    freezes_at_least, accepted_at_least = sample((8, 4), (40, 20))
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    with a_counter(kind, "fence", request, tmp_path) as counter:
        end = tmp_path / "end"
        pair = [Child(forker, tmp_path, name, counter, "fence", until=str(end), ttl=0.15) for name in ("one", "two")]
        children += pair
        for child in pair:
            child.go()
        freezes = 0
        until = time.monotonic() + 240
        # As long as it takes: on a busy machine most leases of that ttl end before the write.
        while freezes < freezes_at_least or accepted_so_far(pair) < accepted_at_least:
            assert time.monotonic() < until, "hardly any write was accepted"
            child = chance.choice(pair)
            child.freeze()
            time.sleep(0.15 + 0.1 * chance.random())
            child.thaw()
            freezes += 1
            time.sleep(0.1 * chance.random())
        end.touch()
        events = [event for child in pair for event in child.events()]
        accepted = sorted((value, token) for what, token, value in events if what == "accepted")
        refused = sum(what == "stale" for what, *_ in events)
        print(f"{kind}: {freezes} freezes, {len(accepted)} writes accepted, {refused} refused")
        assert accepted
        assert counter.value() == len(accepted)
        assert [value for value, _ in accepted] == list(range(1, len(accepted) + 1))
        tokens = [token for _, token in accepted]
        assert tokens == sorted(tokens)
