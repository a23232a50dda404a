"""`lease.guard(connection)`: the lease and the data in one transaction of the caller's own.

A row in the table `guard` makes the commit look at the claim, as the last thing before it is done. Once it has looked, the claim stays
until the transaction has ended, and whoever comes next waits for that: there is no moment between the check and the commit. Before,
nothing is locked: however long the transaction stands still, nobody has to wait for it, and its commit fails if somebody came.
"""

from __future__ import annotations

from typing import Any, Final

from ...core.claim import Claim
from ...errors import ConfigError
from ...fence.rule import Offer
from ...fence.sql.connections import connection_for
from ...fence.sql.errors import sqlstate
from ...fence.sql.visit import Visit, holds_savepoint
from ...runtime.blocking import run

GUARD: Final = "INSERT INTO {table} (id, ticket) VALUES ({grant}, {token})"
MISSING: Final = frozenset({"3F000", "42P01"})


def guard(claim: Claim, token: int, schema: str, connection: Any) -> Any:
    """Let the commit of this connection's transaction fail once the claim is gone; to be awaited where the connection is."""
    taken = connection_for(connection, None)
    visit = Visit(taken, f"{schema}.guard", claim.name, Offer(claim.name, token, claim.id), False, True, set())
    return _guard(visit) if taken.awaits else run(_guard(visit))


async def _guard(visit: Visit) -> None:
    await visit.connection.prepare()
    if visit.connection.dialect != "postgresql":
        raise ConfigError(f"guard() takes a connection to PostgreSQL, not to {visit.connection.dialect}")
    await visit.demand_transaction(holds_savepoint)
    try:
        await visit.run(GUARD)
    except Exception as problem:
        if sqlstate(problem) in MISSING:
            raise ConfigError(
                "guard() takes a connection to the database that has the lock; this one has no tables of Lockline"
            ) from problem
        raise
