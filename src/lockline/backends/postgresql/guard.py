"""`lease.guard(connection)` on PostgreSQL: the commit itself looks at the claim.

A row in the table `guard` makes the commit look at the claim, as the last thing before it is done. Once it has looked, the claim stays
until the transaction has ended, and whoever comes next waits for that: there is no moment between the check and the commit. Before,
nothing is locked: however long the transaction stands still, nobody has to wait for it, and its commit fails if somebody came.
"""

from __future__ import annotations

from typing import Final

from ...errors import ConfigError
from ...fence.sql.errors import sqlstate
from ...fence.sql.visit import Visit
from ..sql.guard import Guard

# In a session of that role no trigger is called: the row would stay, and the commit look at nothing.
INSERT: Final = """\
INSERT INTO {table} (id, ticket) SELECT CAST({grant} AS text), CAST({token} AS bigint)
WHERE current_setting('session_replication_role') <> 'replica' RETURNING 1"""
MISSING: Final = frozenset({"3F000", "42P01"})


async def _look_at_the_commit(visit: Visit) -> None:
    if (await visit.run(INSERT, rows=True)).row is None:
        raise ConfigError(
            "guard() needs the trigger that looks at the commit, and this session calls none; "
            "SET session_replication_role = 'origin' before it"
        )


guard: Final = Guard("postgresql", "PostgreSQL", _look_at_the_commit, lambda problem: sqlstate(problem) in MISSING)
