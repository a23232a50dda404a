"""PostgreSQL: one statement checks, raises the mark and locks its row."""

from __future__ import annotations

from typing import Any, Final

from ..rule import Mark, Offer
from .errors import sqlstate
from .visit import CONFIRM, TAKE, Visit, holds_savepoint

# A page that is not full keeps the new version of a row beside the old one, and the index untouched.
DDL: Final = """\
CREATE TABLE IF NOT EXISTS {table} (
    resource  text COLLATE "C" NOT NULL,
    lock_name text COLLATE "C" NOT NULL,
    token     bigint           NOT NULL,
    grant_id  text COLLATE "C" NOT NULL,
    PRIMARY KEY (resource, lock_name)
) WITH (fillfactor = 50)"""

# Changes no row exactly when the offer is stale; the row is locked even then. "| 0" is defined for whole numbers only: a
# column of another type, where 10 could be less than 9, is an error and not a comparison.
ENTER: Final = """\
INSERT INTO {table} AS mark (resource, lock_name, token, grant_id)
VALUES ({resource}, {lock}, {token}, {grant})
ON CONFLICT (resource, lock_name) DO UPDATE
    SET token = excluded.token, grant_id = excluded.grant_id
    WHERE mark.token < (excluded.token | 0)
       OR (mark.token = excluded.token AND mark.grant_id = excluded.grant_id)"""

# Two sessions that create the table at once collide inside the catalogue; this makes the second one wait.
CREATE_ALONE: Final = "SELECT pg_advisory_xact_lock(7810766240461156710)"


async def enter(visit: Visit) -> Offer | Mark | None:
    await visit.demand_transaction(holds_savepoint)
    text = ENTER if not visit.exact else CONFIRM if visit.writes else TAKE
    if (await visit.run(text)).changed == 1:
        return visit.offer
    return await visit.mark()


async def create(visit: Visit) -> None:
    await visit.run(CREATE_ALONE)
    await visit.run(DDL)
    await visit.mark()


def is_wrong_table(problem: Any) -> bool:
    # 22: a value does not fit; 23: a constraint that is not ours; 42: no such table, column, type or right.
    state = sqlstate(problem)
    return state[:2] in ("22", "23", "42") or state in ("55000", "0A000")  # a view, a foreign table
