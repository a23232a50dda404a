"""The program that the freezes happen to: a read-modify-write counter under a lock, at one store, in one of three ways.

`fence`       enters before it reads, and is checked again at the write
`write-only`  reads without a word, and is checked at the write only
`none`        is never checked

Run as a child with its settings as JSON. It stops itself (SIGSTOP) at the point it was told to, once.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import lockline
from lockline import LocklineError, StaleToken
from lockline.fence import FileFence, ReadAgain, RedisFence, S3Fence, SqlFence, raise_if_stale


class Store(Protocol):
    """A counter. `lease` None means: unchecked."""

    def read(self, lease: Any) -> int: ...

    def write(self, lease: Any, value: int) -> None: ...


class SqlStore:
    def __init__(self, connection: Any, style: str) -> None:
        self.connection = connection
        self.fence = SqlFence()
        self.mark = style

    def read(self, lease: Any) -> int:
        if lease is not None:
            self.fence.enter(self.connection, "counter", lease)
        cursor = self.connection.cursor()
        cursor.execute("SELECT value FROM counter")
        value = int(cursor.fetchone()[0])
        self.connection.commit()
        return value

    def write(self, lease: Any, value: int) -> None:
        try:
            if lease is not None:
                self.fence.enter(self.connection, "counter", lease)
            self.connection.cursor().execute(f"UPDATE counter SET value = {self.mark}", (value,))
            self.connection.commit()
        except BaseException:
            self.connection.rollback()
            raise


class FileStore:
    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.fence = FileFence()

    def read(self, lease: Any) -> int:
        return int(self.path.read_bytes() if lease is None else self.fence.read(self.path, lease))

    def write(self, lease: Any, value: int) -> None:
        if lease is not None:
            self.fence.replace(self.path, lease, str(value))
            return
        draft = self.path.with_suffix(f".{os.getpid()}")
        draft.write_text(str(value))
        os.replace(draft, self.path)


class RedisStore:
    def __init__(self, port: int) -> None:
        import redis

        self.client = redis.Redis(port=port)
        self.fence = RedisFence(self.client)

    def read(self, lease: Any) -> int:
        if lease is not None:
            self.fence.enter("counter", lease)
        return int(self.client.get("counter"))  # type: ignore[arg-type]

    def write(self, lease: Any, value: int) -> None:
        if lease is None:
            self.client.set("counter", value)
        else:
            self.fence.set("counter", lease, value)


class HttpStore:
    def __init__(self, url: str) -> None:
        import httpx

        self.client = httpx.Client(base_url=url, timeout=60)

    def read(self, lease: Any) -> int:
        answer = self.client.get("/counter", headers={} if lease is None else lease.headers())
        raise_if_stale(answer)
        return int(answer.raise_for_status().content)

    def write(self, lease: Any, value: int) -> None:
        headers = {} if lease is None else lease.headers()
        answer = self.client.put("/counter", headers=headers, content=str(value).encode())
        raise_if_stale(answer)
        answer.raise_for_status()


class S3Store:
    def __init__(self, url: str, key: str) -> None:
        from .objects import an_s3

        self.client = an_s3(url)
        self.key = key
        self.fence = S3Fence(self.client, "bucket")
        self.entry: Any = None

    def read(self, lease: Any) -> int:
        if lease is None:
            self.entry = None
            return int(self.client.get_object(Bucket="bucket", Key=self.key)["Body"].read())
        self.entry = self.fence.enter(self.key, lease)
        return int(self.entry.body)

    def write(self, lease: Any, value: int) -> None:
        if lease is None:
            self.client.put_object(Bucket="bucket", Key=self.key, Body=str(value).encode())
        elif self.entry is None:
            self.fence.put(self.key, lease, str(value))
        else:
            self.entry.put(str(value))


def opened(kind: str, where: Any) -> Store:
    if kind == "sqlite":
        import sqlite3

        return SqlStore(sqlite3.connect(where, timeout=60), "?")
    if kind == "postgresql":
        import psycopg

        return SqlStore(psycopg.connect(where), "%s")
    if kind == "mysql":
        import pymysql

        return SqlStore(pymysql.connect(**where), "%s")
    if kind == "file":
        return FileStore(where)
    if kind == "redis":
        return RedisStore(where)
    if kind in ("asgi", "wsgi"):
        return HttpStore(where)
    return S3Store(*where)


NEEDS = {
    "postgresql": ["psycopg"], "mysql": ["pymysql"], "redis": ["redis"], "asgi": ["httpx"], "wsgi": ["httpx"], "s3": ["tests.fence.objects:warm"],
}  # fmt: skip
"""What a store imports, for the process that forks."""


def main() -> None:
    settings = json.loads(sys.argv[1])
    way, stop_at, until = settings["way"], settings.get("stop_at"), settings.get("until")
    store = opened(settings["kind"], settings["where"])
    reads, writes = way == "fence", way in ("fence", "write-only")
    lost = 0

    def point(name: str) -> None:
        nonlocal stop_at
        if name == stop_at:
            stop_at = None
            os.kill(os.getpid(), signal.SIGSTOP)
        if until is not None:
            time.sleep(random.random() * 0.004)

    with lockline.connect(settings["url"]) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        came_to_an_end = False
        # Until there is that file; without one until a write was accepted or refused. A lease may be lost before that on a busy machine.
        while not (came_to_an_end if until is None else os.path.exists(until)):
            try:
                # With a timeout: without one it would give up after a ttl in which a busy machine did not get to the store.
                with client.lock("counter", ttl=settings["ttl"], timeout=120) as lease:
                    # No look at the clock before the write: whether the lease is over is for the resource to say.
                    for _ in range(20):
                        try:
                            value = store.read(lease if reads else None)
                            point("read")
                            store.write(lease if writes else None, value + 1)
                        except ReadAgain:
                            continue
                        print(json.dumps(["accepted", lease.token, value + 1]), flush=True)
                        came_to_an_end = True
                        break
                    point("written")
            except StaleToken as refused:
                print(json.dumps(["stale", refused.offered, refused.highest]), flush=True)
                came_to_an_end = True
            except LocklineError:
                lost += 1
        with contextlib.suppress(LocklineError):
            client.close()
    print(json.dumps(["lost", lost, 0]), flush=True)


if __name__ == "__main__":
    main()
