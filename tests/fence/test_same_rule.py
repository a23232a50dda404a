"""One rule everywhere: every store decides each offer of a random sequence as the rule itself does."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockline import StaleToken
from lockline.fence import FileFence, FileMarks, Mark, Offer, RedisFence, RedisMarks, S3Fence, SqlFence, SqlMarks
from lockline.fence.rule import LARGEST, may_enter, may_write

Act = Callable[[str, Offer, bool], object]


def in_transactions(fence: SqlFence, connection: Any) -> Act:
    fence.create(connection)
    connection.commit()

    def act(resource: str, offer: Offer, writes: bool) -> None:
        try:
            (fence.check if writes else fence.enter)(connection, resource, offer)
            connection.commit()
        except StaleToken:
            connection.rollback()
            raise

    return act


def at_a_door(marks: Any) -> Act:
    return lambda resource, offer, writes: marks.admit(resource, offer, writes=writes, patience=5)()


@contextlib.contextmanager
def a_store(kind: str, exact: bool, request: pytest.FixtureRequest, folder: Path) -> Iterator[Act]:
    if kind == "file":
        file_fence = FileFence(exact=exact)
        yield (
            lambda resource, offer, writes: (
                file_fence.append(folder / resource, offer, "x")
                if writes
                else file_fence.enter(folder / resource, offer)
            )
        )
    elif kind == "folder":
        yield at_a_door(FileMarks(folder, exact=exact))
    elif kind in ("sqlite", "plain"):
        with contextlib.closing(sqlite3.connect(folder / "data.db")) as connection:
            yield in_transactions(SqlFence(exact=exact, dialect="other" if kind == "plain" else None), connection)
    elif kind == "sqlite door":
        marks = SqlMarks(folder / "marks.db", SqlFence(exact=exact))
        yield at_a_door(marks)
        marks.close()
    elif kind == "postgresql":
        import psycopg

        with contextlib.closing(psycopg.connect(request.getfixturevalue("postgres").url)) as served:
            served.execute("DROP TABLE IF EXISTS lockline_fence")
            yield in_transactions(SqlFence(exact=exact), served)
    elif kind == "mysql":
        import pymysql

        server = request.getfixturevalue("mysql")
        with contextlib.closing(pymysql.connect(host="127.0.0.1", port=server.port, user=server.user)) as mine:
            mine.cursor().execute("DROP DATABASE IF EXISTS same")
            mine.cursor().execute("CREATE DATABASE same")
            mine.select_db("same")
            yield in_transactions(SqlFence(exact=exact), mine)
    elif kind.startswith("redis"):
        with contextlib.closing(request.getfixturevalue("redis_server").client()) as client:
            client.flushall()
            fence = RedisFence(client, exact=exact)
            if kind == "redis door":
                yield at_a_door(RedisMarks(client, exact=exact))
            else:
                yield (
                    lambda resource, offer, writes: (
                        fence.set(resource, offer, "x") if writes else fence.enter(resource, offer)
                    )
                )
    else:
        from .objects import an_s3

        with contextlib.closing(an_s3(request.getfixturevalue("s3_url"))) as s3:
            bucket = uuid.uuid4().hex
            s3.create_bucket(Bucket=bucket)
            s3_fence = S3Fence(s3, bucket)
            yield lambda resource, offer, writes: s3_fence.put(resource, offer, uuid.uuid4().bytes)


SERVED = ["postgresql", "mysql", "redis", "redis door"]
KINDS = [
    "file",
    "folder",
    "sqlite",
    "plain",
    "sqlite door",
    *(pytest.param(k, marks=pytest.mark.server) for k in SERVED),
]


def played(act: Act, exact: bool, seed: int, steps: int, locks: list[str]) -> None:
    chance = random.Random(seed)
    marks: dict[tuple[str, str], Mark] = {}
    for step in range(steps):
        resource, lock = chance.choice(["r one", "r two"]), chance.choice(locks)
        before = marks.get((resource, lock))
        base = before.token if before else chance.choice([1, 2**31, 2**53, LARGEST - 20])
        token = min(LARGEST, max(1, base + chance.choice([-1, 0, 0, 0, 1, 2])))
        offer = Offer(lock, 0, chance.choice("abc")) if exact else Offer(lock, token, chance.choice(["", "g", "h"]))
        writes = chance.random() < 0.5
        expected = (may_write if writes else may_enter)(before, offer, exact)
        refusal: StaleToken | None = None
        try:
            act(resource, offer, writes)
        except StaleToken as problem:
            refusal = problem
        story = f"seed {seed}, step {step}: {offer} at {before}, {'write' if writes else 'enter'}"
        assert (refusal is None) == expected, story
        if refusal is not None:
            assert (refusal.offered, refusal.highest) == (offer.shown, before.shown if before else 0), story
        else:
            marks[resource, lock] = Mark(offer.token, offer.grant)


@pytest.mark.parametrize("exact", [False, True], ids=["by order", "exact"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_store_decides_as_the_rule_does(
    kind: str, exact: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    with a_store(kind, exact, request, tmp_path) as act:
        played(act, exact, seed, 150, ["lock", "Lock", "ünlock"])


@pytest.mark.server
def test_s3_decides_as_the_rule_does(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with a_store("s3", False, request, tmp_path) as act:
        played(act, False, random.randrange(1 << 32), 60, ["lock"])
