"""A database that nobody has taught Lockline: plain SQL-92."""

from __future__ import annotations

from typing import Any, Final

from ..rule import Mark, Offer
from .errors import is_double
from .visit import BEGIN_WRITING, CONFIRM, Visit

ATTEMPTS: Final = 3
"""How often a row may come or go between two statements."""

DDL: Final = """\
CREATE TABLE {table} (
    resource  VARCHAR(512) NOT NULL,
    lock_name VARCHAR(512) NOT NULL,
    token     BIGINT       NOT NULL,
    grant_id  VARCHAR(512) NOT NULL,
    PRIMARY KEY (resource, lock_name)
)"""

ENTER: Final = """\
UPDATE {table} SET token = {token}, grant_id = {grant}
WHERE resource = {resource} AND lock_name = {lock}
  AND (token < {token} OR (token = {token} AND grant_id = {grant}))"""
TAKE: Final = """\
UPDATE {table} SET token = {token}, grant_id = {grant}
WHERE resource = {resource} AND lock_name = {lock}"""
ADD: Final = """\
INSERT INTO {table} (resource, lock_name, token, grant_id) VALUES ({resource}, {lock}, {token}, {grant})"""


async def enter(visit: Visit) -> Offer | Mark | None:
    await visit.demand_transaction(_begins)
    text = ENTER if not visit.exact else CONFIRM if visit.writes else TAKE
    for attempt in range(ATTEMPTS):
        if (await visit.run(text)).changed == 1:
            return visit.offer
        mark = await visit.mark()
        if mark is not None or (visit.writes and visit.exact):
            return mark
        try:
            await visit.run(ADD)
        except Exception as problem:
            # Another one's row came in between, so now there is one to update; unless it never shows.
            if not is_double(problem) or attempt == ATTEMPTS - 1:
                raise
        else:
            return visit.offer
    return None


async def _begins(visit: Visit) -> bool | None:
    """Whether the first statement begins a transaction, by the word of the driver."""
    await visit.run(BEGIN_WRITING)
    return visit.connection.in_transaction()


async def create(visit: Visit) -> None:
    await visit.run(DDL)
    await visit.mark()


def is_wrong_table(problem: Any) -> bool:
    return type(problem).__name__ in ("ProgrammingError", "DataError") or "no such" in str(problem).lower()
