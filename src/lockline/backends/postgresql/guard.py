"""`lease.guard(connection)` on PostgreSQL: the commit itself looks at the claim.

A row in the table `guard` makes the commit look at the claim, as the last thing before it is done. Once it has looked, the claim stays
until the transaction has ended, and whoever comes next waits for that: there is no moment between the check and the commit. Before,
nothing is locked: however long the transaction stands still, nobody has to wait for it, and its commit fails if somebody came.
"""

from __future__ import annotations

from typing import Final

from ...fence.sql.errors import sqlstate
from ...fence.sql.visit import Visit
from ..sql.guard import Guard

INSERT: Final = "INSERT INTO {table} (id, ticket) VALUES ({grant}, {token})"
MISSING: Final = frozenset({"3F000", "42P01"})


async def _look_at_the_commit(visit: Visit) -> None:
    await visit.run(INSERT)


guard: Final = Guard("postgresql", "PostgreSQL", _look_at_the_commit, lambda problem: sqlstate(problem) in MISSING)
