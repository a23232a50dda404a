"""The locks in a database: a row under a unique key, without and with an expiry; and PostgreSQL's advisory lock."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from typing import Any, ClassVar

import psycopg

from .face import Hold, Place, PublishedLock, Step
from .set_nx_ex import SetNxEx
from .setnx import Setnx

SCHEMA = "CREATE TABLE IF NOT EXISTS lab_lock (name text PRIMARY KEY, owner text, expires timestamptz)"
TAKE = "INSERT INTO lab_lock (name, owner) VALUES (%s, %s) ON CONFLICT DO NOTHING"
GIVE = "DELETE FROM lab_lock WHERE name = %s"
TAKE_FOR_A_TIME = """
    INSERT INTO lab_lock AS held (name, owner, expires) VALUES (%s, %s, clock_timestamp() + %s * interval '1 second')
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires = excluded.expires
    WHERE held.expires < clock_timestamp()
"""
GIVE_OWN = "DELETE FROM lab_lock WHERE name = %s AND owner = %s"


def hang_up(line: Any) -> None:
    """End a connection that another thread waits on."""
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(line.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


class Row(PublishedLock):
    """Who inserts the row has the lock; the unique key keeps the others out."""

    id = "row"
    title = "a row under a unique key"
    family = "postgresql"
    source = "an article in Chinese that compares distributed locks"
    expires = False
    expected: ClassVar = {
        **Setnx.expected,
        "server-restarts-empty": "stuck for ever",
        "pooled-connection": "safe",
    }
    because: ClassVar = {
        "server-restarts-empty": "The row is on disk and survives; the holder's connection does not, and with it goes the DELETE. "
        "Nobody repeats it, and a row without an expiry is there for ever.",
    }

    def __init__(self, place: Place, step: Step) -> None:
        super().__init__(place, step)
        self._line: Any = None
        self._mutex = threading.Lock()

    def ask(self, text: str, *values: object) -> Any:
        """One statement, committed at once; a connection that broke is not used again."""
        with self._mutex:
            if self._line is None or self._line.closed or self._line.broken:
                host, port = self.place.addresses[0]
                self._line = psycopg.connect(
                    host=host, port=port, user="lockline", dbname="postgres", autocommit=True, prepare_threshold=None,
                    connect_timeout=5,
                )  # fmt: skip
            # Who gives up hangs up: there is no other way to wait for a bounded time.
            line = self._line
            limit = threading.Timer(self.place.patience, hang_up, [line]) if self.place.patience < 5 else None
            try:
                if limit is not None:
                    limit.start()
                return line.execute(text, values)
            finally:
                if limit is not None:
                    limit.cancel()

    def try_acquire(self) -> Hold | None:
        return Hold("") if self.ask(TAKE, self.place.name, "").rowcount else None

    def release(self, hold: Hold | None) -> None:
        self.ask(GIVE, self.place.name)

    def close(self) -> None:
        if self._line is not None:
            self._line.close()


class RowExpiry(Row):
    """With an owner and an expiry, by the database's clock."""

    because: ClassVar = {}

    id = "row-expiry"
    title = "a row with an owner and an expiry"
    expires = True
    expected: ClassVar = {
        **SetNxEx.expected,
        "foreign-release": "safe",
        "server-restarts-empty": "safe",
        "pooled-connection": "safe",
    }

    def try_acquire(self) -> Hold | None:
        mine = secrets.token_hex(8)
        return Hold(mine) if self.ask(TAKE_FOR_A_TIME, self.place.name, mine, self.place.ttl).rowcount else None

    def release(self, hold: Hold | None) -> None:
        if hold is not None:
            self.ask(GIVE_OWN, self.place.name, hold.value)


class Advisory(Row):
    """PostgreSQL's own: it belongs to the session, that is, to the connection."""

    id = "advisory"
    title = "PostgreSQL advisory lock"
    source = "PostgreSQL's manual, Advisory Locks"
    session = True
    expected: ClassVar = {
        "holder-crashes": "safe",
        "crash-between-steps": "safe",
        "work-outlives-ttl": "safe",
        "foreign-release": "safe",
        "frozen": "late",
        "client-clock": "safe",
        "server-clock": "safe",
        "server-restarts-empty": "lost update",
        "failover": "lost update",
        "late-request": "safe",
        "lost-reply": "safe",
        "majority-partitioned": "late",
        "herd": "safe",
        "starvation": "safe",
        "one-object": "lost update",
        "fork": "lost update",
        "pooled-connection": "lost update",
    }
    because: ClassVar = {
        "one-object": "The lock belongs to the session, and a session that has it gets it again. "
        "Two threads or tasks that share a connection are one and the same to the server.",
        "server-restarts-empty": "The lock lives in the server's memory and ends with the session. "
        "The holder's connection is gone, and nobody tells it until it asks next.",
        "pooled-connection": "The pooler gives both clients the same session in turn. To the server they are one, and it has the lock already.",
    }

    def acquire(self, until: float) -> Hold | None:
        wait = max(1, int((until - time.monotonic()) * 1000))
        try:
            self.ask(f"SET lock_timeout = {wait}")
            self.ask("SELECT pg_advisory_lock(hashtext(%s))", self.place.name)
        except psycopg.errors.LockNotAvailable:
            return None
        return Hold("")

    def release(self, hold: Hold | None) -> None:
        self.ask("SELECT pg_advisory_unlock(hashtext(%s))", self.place.name)
