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

# A trigger that the session does not call looks at nothing, and the row would stay. What a savepoint has inserted goes with it: its rows
# have another xmin than the transaction's own.
INSERT: Final = """\
INSERT INTO {table} (id, ticket) SELECT CAST({grant} AS text), CAST({token} AS bigint)
WHERE EXISTS (
    SELECT 1 FROM pg_catalog.pg_trigger t WHERE t.tgrelid = CAST('{table}' AS regclass) AND t.tgname = 'check_guard_v1'
    AND CAST(t.tgenabled AS text) IN ('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END)
) RETURNING CAST(CAST(xmin AS text) AS bigint) = (txid_current() & 4294967295)"""
MISSING: Final = frozenset({"3F000", "42P01"})
READ_ONLY: Final = "25006"


async def _look_at_the_commit(visit: Visit) -> None:
    try:
        row = (await visit.run(INSERT, rows=True)).row
    except Exception as problem:
        if sqlstate(problem) == READ_ONLY:
            cure = "begin it with BEGIN READ WRITE; it need not change anything else"
            raise ConfigError(f"guard() needs a transaction that may write; {cure}") from problem
        raise
    if row is None:
        raise ConfigError(
            "guard() needs the trigger that looks at the commit, and this session calls none; SET session_replication_role = 'origin' "
            f"before it, and if the trigger is disabled: ALTER TABLE {visit.table} ENABLE TRIGGER check_guard_v1"
        )
    if not row[0]:
        raise ConfigError("guard() is undone with a savepoint that is rolled back; call it outside of savepoints")


guard: Final = Guard("postgresql", "PostgreSQL", _look_at_the_commit, lambda problem: sqlstate(problem) in MISSING)
