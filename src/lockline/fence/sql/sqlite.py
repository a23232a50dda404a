"""SQLite: whoever begins to write has the whole file, so begin, and then look."""

from __future__ import annotations

from typing import Any, Final

from ...errors import ConfigError
from ..rule import Mark, Offer, passes
from .errors import CURE
from .visit import BEGIN_WRITING, TAKE, Visit

DDL: Final = """\
CREATE TABLE IF NOT EXISTS {table} (
    resource  TEXT    NOT NULL,
    lock_name TEXT    NOT NULL,
    token     INTEGER NOT NULL,
    grant_id  TEXT    NOT NULL,
    PRIMARY KEY (resource, lock_name)
) WITHOUT ROWID"""

COLUMNS_OF: Final = """\
SELECT group_concat(name || ' ' || upper(type) || ' ' || pk, ', ') FROM (
    SELECT name, type, pk FROM pragma_table_info('{name}', '{schema}') ORDER BY name
)"""
SHAPE: Final = "grant_id TEXT 0, lock_name TEXT 2, resource TEXT 1, token INTEGER 0"
WRONG_TABLE: Final = (
    "no such table", "no such column", "has no column named", "on conflict clause does not match", "no column named",
    "cannot modify", "views may not", "constraint failed", "datatype mismatch",
)  # fmt: skip


async def enter(visit: Visit) -> Offer | Mark | None:
    await visit.run(BEGIN_WRITING)
    # Not before: whether a connection of SQLite begins by itself is known only when it has.
    await visit.demand_transaction()
    mark, offer = await visit.mark(), visit.offer
    if mark != (offer.token, offer.grant) and passes(mark, offer, writes=visit.writes, exact=visit.exact):
        await _check_shape(visit)
        await visit.run(TAKE)
        return offer
    return mark


async def create(visit: Visit) -> None:
    await visit.run(DDL)
    await visit.mark()
    await _check_shape(visit)


async def _check_shape(visit: Visit) -> None:
    """SQLite takes any value in any column; so ask for the table's own words before trusting a comparison."""
    schema, _, name = visit.table.rpartition(".")
    text = f"SELECT sql FROM {schema + '.' if schema else ''}sqlite_master WHERE type = 'table' AND name = '{name}'"
    row = (await visit.run(text, rows=True)).row
    if row is None:
        raise ConfigError(f"the table {visit.table!r} is missing or of another shape; {CURE}")
    words = str(row[0])
    if words in visit.trusted:
        return
    columns = (await visit.run(COLUMNS_OF.format(name=name, schema=schema or "main"), rows=True)).row
    if columns is None or columns[0] != SHAPE:
        raise ConfigError(f"the table {visit.table!r} is of another shape: {words}; {CURE}")
    visit.trusted.add(words)


def is_wrong_table(problem: Any) -> bool:
    text = str(problem).lower()
    return any(sign in text for sign in WRONG_TABLE)
