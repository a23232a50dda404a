"""What `lockline init` makes in the database: the tables, and the routines in `functions.py`.

    lockline_slot       1024 rows, each with the last ticket of the names that fall there; what makes tickets rise for good, and what
                        the steps that need to be alone lock
    lockline_claim      a claim, waiting or holding
    lockline_kept       what `once` and `once_per` keep beside a line
    lockline_withdrawn  a claim that was withdrawn while its own request may still have been under way, for ten seconds

Times are whole microseconds since 1970, in UTC: no time zone and no summer time gets near them. What is there is left as it is: it can
be run again, also while locks are held, and by two at once. Routines have their version in their names, so that clients of two releases
work side by side; one that is not as this release writes it is replaced. They run with their caller's rights, and with the sql_mode of whoever made them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from . import keeping
from .functions import ROUTINES

INIT_LOCK: Final = "lockline.init"

# `name` and `id` compare as bytes. No index has a column that a renewal changes: nothing can choose one to find the expired of a line,
# and lock those of others on its way.
TABLES: Final = (
    """
CREATE TABLE IF NOT EXISTS lockline_slot (
    number INT NOT NULL PRIMARY KEY,
    last BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB
""",
    """
INSERT IGNORE INTO lockline_slot (number)
    WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 31)
    SELECT a.i * 32 + b.i FROM n a CROSS JOIN n b
""",
    """
CREATE TABLE IF NOT EXISTS lockline_claim (
    name VARBINARY(1024) NOT NULL,
    ticket BIGINT NOT NULL,
    id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    weight INT NOT NULL,
    capacity INT NOT NULL,
    ttl DOUBLE NOT NULL,
    expires BIGINT NOT NULL,
    about MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL,
    PRIMARY KEY (name, ticket),
    UNIQUE KEY by_id (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
""",
    # Tables of an older release have no such columns; what stands there has nothing in them. MySQL knows no ADD COLUMN IF NOT EXISTS.
    """
SET @lockline_add = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'lockline_claim' AND column_name = 'granted'),
    'DO 0', 'ALTER TABLE lockline_claim ADD COLUMN arrived BIGINT, ADD COLUMN granted BIGINT'
)
""",
    "PREPARE lockline_add FROM @lockline_add",
    "EXECUTE lockline_add",
    "DEALLOCATE PREPARE lockline_add",
    """
CREATE TABLE IF NOT EXISTS lockline_withdrawn (
    id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    until BIGINT NOT NULL
) ENGINE = InnoDB
""",
    keeping.TABLE,
)

RIGHTS: Final = "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON {database}.* TO {user}"
"""All that a user needs that only locks."""


class Procedure(NamedTuple):
    """A routine, and what the server shows of it."""

    name: str
    body: str
    statement: str

    @property
    def anew(self) -> tuple[str, str]:
        """The statements that put it in the place of another; MySQL has none that does both."""
        return f"DROP PROCEDURE IF EXISTS {self.name}", self.statement


def procedures() -> Iterator[Procedure]:
    """All routines, in the order in which they are made."""
    for text in ROUTINES:
        name = text.removeprefix("CREATE PROCEDURE ").partition("(")[0]
        yield Procedure(name, text[text.index("step: BEGIN") :], text)


def printed(database: str) -> str:
    """The same as a script for the `mysql` program, and for migrations."""
    text = f"CREATE DATABASE IF NOT EXISTS `{database}`;\nUSE `{database}`;\n\nDELIMITER //\n\n"
    made = [*map(str.strip, TABLES), *(statement for each in procedures() for statement in each.anew)]
    return text + "".join(f"{statement}//\n\n" for statement in made) + "DELIMITER ;\n"
