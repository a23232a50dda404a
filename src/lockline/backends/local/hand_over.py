"""A claim that takes the place of one that holds; whoever waits gets a higher ticket, in the same order."""

from __future__ import annotations

import sqlite3
import time
from typing import Final

from ...core.claim import DETACHED, Claim, Gone, Grant, Waiting
from .commands import DELETE, INSERT, LAST_TICKET, LINE, NEXT_TICKET, STAYS, CeilingReached, ClaimRow, SqliteSteps, walk
from .schema import raise_ceiling

MOVE: Final = "UPDATE claims SET ticket = ? WHERE name = ? AND ticket = ?"


def hand_over(steps: SqliteSteps, old: str, claim: Claim, client: str, pid: int) -> Grant | Waiting | Gone:
    """Let the claim hold where the one with that id did."""
    if claim.id.startswith(DETACHED):
        # As nobody's, nobody's death removes it.
        client, pid = "", 0
    elif claim.stays:
        client = STAYS + client
    try:
        return steps.step(lambda db: _hand_over(steps, db, old, claim, client, pid))
    except CeilingReached:
        steps.read(raise_ceiling)
        return steps.step(lambda db: _hand_over(steps, db, old, claim, client, pid))


def _hand_over(
    steps: SqliteSteps, db: sqlite3.Connection, old: str, claim: Claim, client: str, pid: int
) -> Grant | Waiting | Gone:
    now = steps.now()
    inside, _ = walk(db, claim.name, now)
    line = [row for row in map(ClaimRow._make, db.execute(LINE, (claim.name,))) if row.expires > now]
    before = next((row for row in line if row.id == old), None)
    for row in line:
        if row.id == claim.id:
            return Grant(row.ticket)
    if before is None:
        return Gone()
    if before not in inside:
        return Waiting(0)
    behind = line[len(inside) :]
    last, ceiling = db.execute(LAST_TICKET).fetchone()
    if last + len(behind) >= ceiling:
        raise CeilingReached
    ticket = last + 1
    db.execute(NEXT_TICKET, (ticket + len(behind),))
    db.execute(DELETE, (claim.name, before.ticket))
    db.execute(
        INSERT,
        (
            claim.name, ticket, claim.id, client, pid, claim.owner, claim.kind, before.weight, before.capacity, claim.ttl,
            now + claim.ttl, claim.since, time.time(), claim.meta,
        ),
    )  # fmt: skip
    for place, row in enumerate(behind, 1):
        db.execute(MOVE, (ticket + place, claim.name, row.ticket))
    # Before the commit: wherever we are cut short, what may stand in the file can be found again.
    steps.note(claim.id, ticket, before.weight)
    return Grant(ticket)
