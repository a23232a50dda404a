"""MySQL and MariaDB: no condition on the update, and changed rows are counted in their own way.

So raise what may be raised, then read the row that is now locked.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import ConfigError
from ..rule import Mark, Offer
from .errors import CURE
from .visit import LOOK, Visit, holds_savepoint

# Names are compared byte by byte, or two resources could share one mark ("A" and "a").
DDL: Final = """\
CREATE TABLE IF NOT EXISTS {table} (
    resource  VARBINARY(512) NOT NULL,
    lock_name VARBINARY(512) NOT NULL,
    token     BIGINT         NOT NULL,
    grant_id  VARBINARY(512) NOT NULL,
    PRIMARY KEY (resource, lock_name)
) ENGINE = InnoDB"""

# The grant stands first because the assignments see each other's results.
ENTER: Final = """\
INSERT INTO {table} (resource, lock_name, token, grant_id)
VALUES ({resource}, {lock}, {token}, {grant})
ON DUPLICATE KEY UPDATE
    grant_id = IF(VALUES(token) > token, VALUES(grant_id), grant_id),
    token = GREATEST(token, VALUES(token))"""
TAKE: Final = """\
INSERT INTO {table} (resource, lock_name, token, grant_id)
VALUES ({resource}, {lock}, {token}, {grant})
ON DUPLICATE KEY UPDATE token = VALUES(token), grant_id = VALUES(grant_id)"""
LOOK_LOCKED: Final = LOOK + " FOR UPDATE"

# Some engines know no transactions, and an administrator can make one of them take another's place.
ENGINE: Final = """\
SELECT kinds.transactions, made.engine
FROM information_schema.tables AS made JOIN information_schema.engines AS kinds ON kinds.engine = made.engine
WHERE made.table_schema = %s AND made.table_name = '%s'"""

WRONG_TABLE: Final = frozenset({1054, 1136, 1146, 1048, 1062, 1264, 1265, 1364, 1366, 1406})


async def enter(visit: Visit) -> Offer | Mark | None:
    await visit.demand_transaction(holds_savepoint)
    await _check_engine(visit)
    if not (visit.writes and visit.exact):
        await visit.run(TAKE if visit.exact else ENTER)
    return await visit.mark(LOOK_LOCKED)


async def create(visit: Visit) -> None:
    await visit.run(DDL)
    await visit.mark()
    await _check_engine(visit)


async def _check_engine(visit: Visit) -> None:
    """ConfigError if the table is kept where nothing is rolled back and no row is locked. Asked once."""
    if "engine" in visit.trusted:
        return
    schema, _, name = visit.table.rpartition(".")
    row = (await visit.run(ENGINE % (f"'{schema}'" if schema else "DATABASE()", name), rows=True)).row
    if row is None:
        return  # no such table: the statement itself will say so
    if str(row[0]).upper() != "YES":
        raise ConfigError(f"the table {visit.table!r} is of the engine {row[1]}, which knows no transactions; {CURE}")
    visit.trusted.add("engine")


def is_wrong_table(problem: Any) -> bool:
    return bool(problem.args) and (getattr(problem, "errno", None) or problem.args[0]) in WRONG_TABLE
