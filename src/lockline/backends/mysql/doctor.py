"""What `lockline doctor` finds."""

from __future__ import annotations

from typing import Final

from ...core.backend import Finding, Findings
from ..sql.backend import SqlBackend
from ..sql.calls import RoutineCall, of_this_release
from .functions import REVISION

FEW_CONNECTIONS: Final = 50


async def examine(backend: SqlBackend, until: float) -> Findings:
    """What is good and what is dangerous about this database as it is set up."""
    (row,), _ = await backend.channel.run(RoutineCall("settings", ()), until, insists=False)
    version, read_only, flushed, logged, synced, most = str(row[0]), *map(int, row[1:6])
    findings = [
        of_this_release(str(row[6]) if len(row) > 6 else None, REVISION, backend.url),
        Finding("ok", f"the tables of Lockline are there, in {version}"),
        Finding("ok", "nothing is pushed: whoever waits asks again and again, the next in line most often"),
    ]
    if read_only:
        findings.append(
            Finding(
                "error",
                "the server is read-only, as a replica is: nobody can lock there",
                "name the primary in the URL",
            )
        )
    if flushed != 1:
        findings.append(
            Finding(
                "error",
                f"innodb_flush_log_at_trx_commit is {flushed}: a crash forgets the last grants, and a second holder may come in",
                "set innodb_flush_log_at_trx_commit = 1",
            )
        )
    if logged and synced != 1:
        findings.append(
            Finding(
                "warning",
                f"sync_binlog is {synced}: after a crash a replica may have grants that the primary has forgotten, or lack some",
                "set sync_binlog = 1",
            )
        )
    if most < FEW_CONNECTIONS:
        findings.append(
            Finding(
                "warning",
                f"max_connections is {most}, and a client takes up to {backend.database.max_connections + 2}",
                "raise max_connections, or lower the clients' with ?max_connections=1",
            )
        )
    return findings
