"""What `lockline doctor` finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ...core.backend import Finding, Findings
from ..sql.backend import SqlBackend
from ..sql.calls import RoutineCall, of_this_release
from .functions import REVISION

if TYPE_CHECKING:
    from .backend import Postgresql

SHORTEST_TIMEOUT: Final = 2000
"""Milliseconds that a step may take on a database that is busy, before anybody should cut it short."""
CROWDED_QUEUE: Final = 0.5
MANY: Final = 10_000
"""Transactions since a snapshot that is still in use: their dead versions of one row are gone through by each step that meets it."""
LONG: Final = 600.0
"""Seconds after which a transaction of anybody's keeps the dead versions of many rows."""


async def examine(dialect: Postgresql, backend: SqlBackend, until: float) -> Findings:
    """What is good and what is dangerous about this database as it is set up."""
    rows, _ = await backend.channel.run(RoutineCall("settings", ()), until, insists=False)
    said: dict[str, str] = {str(name): str(setting) for name, setting in rows}
    release = of_this_release(said.get("revision"), REVISION, backend.url)
    return [release, *_of_grants(said), *_of_pushes(said, dialect, backend), *_of_load(said, dialect)]


def _of_grants(said: dict[str, str]) -> Iterator[Finding]:
    """Whether a grant that was answered can be forgotten."""
    if said["fsync"] == "off" or said["full_page_writes"] == "off":
        off = "fsync" if said["fsync"] == "off" else "full_page_writes"
        yield Finding(
            "error", f"{off} is off: after a crash the tables may be damaged, and two may hold", f"set {off} = on"
        )
    if said["synchronous_commit"] == "off":
        cure = "ALTER ROLE … SET synchronous_commit = on, for the role that locks"
        yield Finding("warning", "synchronous_commit is off: a crash forgets the last grants, and two may hold", cure)
    elif int(said["replicas"]) and not said["synchronous_standby_names"]:
        yield Finding(
            "warning",
            "replicas follow behind: a failover may forget the last grants, and two may hold; tokens go on rising",
            "set synchronous_standby_names, or check tokens at the resource (lockline.fence)",
        )
    elif "off" not in (said["fsync"], said["full_page_writes"]):
        yield Finding("ok", "a grant that was answered survives a crash of the server")


def _of_pushes(said: dict[str, str], dialect: Postgresql, backend: SqlBackend) -> Iterator[Finding]:
    # Routines of an older release do not say it.
    used = float(said.get("notify_queue", 0.0))
    if used > CROWDED_QUEUE:
        told = (
            f"the queue of NOTIFY is {used:.0%} full: from 90% on nothing is pushed, and waiters look every two seconds"
        )
        yield Finding(
            "warning", told, "end the session that listens and keeps a transaction open; the server's log names it"
        )
    if backend.guarantees.push:
        yield Finding("ok", "turns are pushed by LISTEN and NOTIFY")
        return
    yield Finding(
        "warning",
        "a pooler stands between: nothing can be pushed, and whoever waits asks again and again",
        "name a direct way for LISTEN: ?listen=postgresql://host/database",
    )


def _of_load(said: dict[str, str], dialect: Postgresql) -> Iterator[Finding]:
    if dialect.manner.alone:
        yield Finding("ok", "transactions of this role begin at another level, or read-only: each step brings its own")
    timeout = int(said["statement_timeout"])
    if 0 < timeout < SHORTEST_TIMEOUT:
        cure = "give the role that locks some seconds: ALTER ROLE … SET statement_timeout = '10s'"
        yield Finding("warning", f"statement_timeout is {timeout} ms: a step may be cut short on a busy server", cure)
    if int(said["sessions"]) > 0.9 * int(said["max_connections"]):
        told = f"{said['sessions']} of {said['max_connections']} connections are in use"
        yield Finding(
            "warning", told, "raise max_connections, or go through a pooler and name a direct way with ?listen="
        )
    # Routines of an older release do not say how old the oldest snapshot is; the times of other roles' transactions not every role may see.
    behind = int(said.get("snapshot", 0))
    if float(said["oldest"]) > LONG or behind > MANY:
        told = f"a transaction is open for {float(said['oldest']) / 60:.0f} minutes"
        if behind > MANY:
            told = f"a session uses a snapshot from before the last {behind} transactions"
        cure = (
            "find it in pg_stat_activity (backend_xmin) and pg_prepared_xacts; set idle_in_transaction_session_timeout"
        )
        yield Finding("warning", f"{told}: dead versions of rows pile up, and steps on a busy name get slower", cure)
