"""The SQL of the fence, dialect by dialect. Names in braces become the driver's own placeholders."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from ..errors import ConfigError

DIALECTS: Final = ("sqlite", "postgresql", "mysql", "other")
COLUMNS: Final = ("resource", "lock_name", "token", "grant_id")
FIELDS: Final = ("resource", "lock", "token", "grant")
PLACE: Final = ("resource", "lock")

# Names are compared byte by byte on every database, or two resources could share one mark ("A" and "a" in MySQL).
DDL: Final = {
    "sqlite": """\
CREATE TABLE IF NOT EXISTS {table} (
    resource  TEXT    NOT NULL,
    lock_name TEXT    NOT NULL,
    token     INTEGER NOT NULL,
    grant_id  TEXT    NOT NULL,
    PRIMARY KEY (resource, lock_name)
) WITHOUT ROWID""",
    # A page that is not full keeps the new version of a row beside the old one, and the index untouched.
    "postgresql": """\
CREATE TABLE IF NOT EXISTS {table} (
    resource  text COLLATE "C" NOT NULL,
    lock_name text COLLATE "C" NOT NULL,
    token     bigint           NOT NULL,
    grant_id  text COLLATE "C" NOT NULL,
    PRIMARY KEY (resource, lock_name)
) WITH (fillfactor = 50)""",
    "mysql": """\
CREATE TABLE IF NOT EXISTS {table} (
    resource  VARBINARY(512) NOT NULL,
    lock_name VARBINARY(512) NOT NULL,
    token     BIGINT         NOT NULL,
    grant_id  VARBINARY(512) NOT NULL,
    PRIMARY KEY (resource, lock_name)
) ENGINE = InnoDB""",
    "other": """\
CREATE TABLE {table} (
    resource  VARCHAR(512) NOT NULL,
    lock_name VARCHAR(512) NOT NULL,
    token     BIGINT       NOT NULL,
    grant_id  VARCHAR(512) NOT NULL,
    PRIMARY KEY (resource, lock_name)
)""",
}

# One statement that checks, raises the mark and locks its row. It changes no row exactly when the offer is stale;
# PostgreSQL locks the row even then. "| 0" is defined for whole numbers only: a column of another type, where 10 could
# be less than 9, is an error and not a comparison.
ENTER: Final = """\
INSERT INTO {table} AS mark (resource, lock_name, token, grant_id)
VALUES ({resource}, {lock}, {token}, {grant})
ON CONFLICT (resource, lock_name) DO UPDATE
    SET token = excluded.token, grant_id = excluded.grant_id
    WHERE mark.token < (excluded.token | 0)
       OR (mark.token = excluded.token AND mark.grant_id = excluded.grant_id)"""

# SQLite locks the whole file for whoever begins to write, changed rows or not. So begin, and then look.
BEGIN_WRITING: Final = "UPDATE {table} SET token = token WHERE 1 = 0"

# The same, and whether the mark is this offer's already: the count of rows tells.
SQLITE_STANDS: Final = """\
UPDATE {table} SET token = token
WHERE resource = {resource} AND lock_name = {lock} AND token = {token} AND grant_id = {grant}"""

# The exact rule: whoever enters is the mark.
TAKE: Final = """\
INSERT INTO {table} (resource, lock_name, token, grant_id)
VALUES ({resource}, {lock}, {token}, {grant})
ON CONFLICT (resource, lock_name) DO UPDATE
    SET token = excluded.token, grant_id = excluded.grant_id"""

# The exact rule at a write: an update that changes nothing, for the sake of the row's lock.
CONFIRM: Final = """\
UPDATE {table} SET token = token
WHERE resource = {resource} AND lock_name = {lock} AND token = {token} AND grant_id = {grant}"""

LOOK: Final = "SELECT token, grant_id FROM {table} WHERE resource = {resource} AND lock_name = {lock}"

# MySQL has no condition on the update, and counts changed rows in its own way: raise what may be raised, then read
# the row that is now locked. The grant stands first because the assignments see each other's results.
MYSQL_ENTER: Final = """\
INSERT INTO {table} (resource, lock_name, token, grant_id)
VALUES ({resource}, {lock}, {token}, {grant})
ON DUPLICATE KEY UPDATE
    grant_id = IF(VALUES(token) > token, VALUES(grant_id), grant_id),
    token = GREATEST(token, VALUES(token))"""
MYSQL_TAKE: Final = """\
INSERT INTO {table} (resource, lock_name, token, grant_id)
VALUES ({resource}, {lock}, {token}, {grant})
ON DUPLICATE KEY UPDATE token = VALUES(token), grant_id = VALUES(grant_id)"""
MYSQL_LOOK_LOCKED: Final = LOOK + " FOR UPDATE"

# Some of MySQL's engines know no transactions, and an administrator can make one of them take another's place.
MYSQL_TRANSACTIONS: Final = """\
SELECT kinds.transactions, made.engine
FROM information_schema.tables AS made JOIN information_schema.engines AS kinds ON kinds.engine = made.engine
WHERE made.table_schema = {schema} AND made.table_name = '{name}'"""

# For a database that nobody has taught Lockline: plain SQL-92.
PLAIN_ENTER: Final = """\
UPDATE {table} SET token = {token}, grant_id = {grant}
WHERE resource = {resource} AND lock_name = {lock}
  AND (token < {token} OR (token = {token} AND grant_id = {grant}))"""
PLAIN_TAKE: Final = """\
UPDATE {table} SET token = {token}, grant_id = {grant}
WHERE resource = {resource} AND lock_name = {lock}"""
PLAIN_ADD: Final = """\
INSERT INTO {table} (resource, lock_name, token, grant_id) VALUES ({resource}, {lock}, {token}, {grant})"""

# Two sessions that create the table at once collide inside PostgreSQL's catalogue; this makes the second one wait.
POSTGRESQL_CREATE_ALONE: Final = "SELECT pg_advisory_xact_lock(7810766240461156710)"


def a_dialect(value: object) -> str:
    """One of the dialects that Lockline speaks."""
    if value == "mariadb":
        return "mysql"
    if value not in DIALECTS:
        raise ConfigError(f"dialect is one of {', '.join(DIALECTS)}, not {value!r}")
    return str(value)


def a_table(value: object) -> str:
    """A table's name, with its schema if need be; nothing that could be anything else in SQL."""
    if not isinstance(value, str) or not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*", value):
        raise ConfigError(f"table is a plain name, or schema.name, not {value!r}")
    return value


def ddl(table: str, dialect: str) -> str:
    """The statement that makes the table."""
    return DDL[dialect].format(table=table)


@lru_cache(maxsize=256)
def rendered(text: str, table: str, paramstyle: str) -> tuple[str, tuple[str, ...] | None]:
    """The statement with the driver's placeholders, and the fields in their order (None: by name)."""
    order: list[str] = []
    by_name = paramstyle in ("named", "sqlalchemy")

    def placeholder(match: re.Match[str]) -> str:
        field = match[1]
        if field == "table":
            return table
        order.append(field)
        if by_name:
            return f":{field}"
        if paramstyle == "numeric":
            return f":{len(order)}"
        if paramstyle == "dollar":
            return f"${len(order)}"
        return "?" if paramstyle == "qmark" else "%s"

    sql = re.sub(r"\{(\w+)\}", placeholder, text)
    return sql, None if by_name else tuple(order)
