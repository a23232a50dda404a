"""What `lockline doctor` finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.backend import Finding, Findings
from ..sql.backend import SqlBackend

if TYPE_CHECKING:
    from .backend import Postgresql


async def examine(dialect: Postgresql, backend: SqlBackend, until: float) -> Findings:
    """What is good and what is dangerous about this database as it is set up."""
    await backend.list("", until)
    findings = [Finding("ok", "the tables of Lockline are there")]
    if backend.guarantees.push:
        findings.append(Finding("ok", "turns are pushed by LISTEN and NOTIFY"))
    else:
        findings.append(
            Finding(
                "warning",
                "a pooler stands between: nothing can be pushed, and whoever waits asks again and again",
                "name a direct way for LISTEN: ?listen=postgresql://host/database",
            )
        )
    return findings
