"""What a database's error means for a fence: a wrong table, a lost race, or the user's own business."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError

SQLITE_SHAPE = (
    "no such table", "no such column", "has no column named", "on conflict clause does not match", "no column named",
    "cannot modify", "views may not", "constraint failed", "datatype mismatch",
)  # fmt: skip
MYSQL_SHAPE = frozenset({1054, 1136, 1146, 1048, 1062, 1264, 1265, 1364, 1366, 1406})
CURE = "make it with SqlFence.create(connection), or with the statement that SqlFence.ddl(dialect) gives"


def driver_error(problem: BaseException) -> Any:
    """The driver's own error inside SQLAlchemy's wrapping."""
    return getattr(problem, "orig", None) or problem


def sqlstate(problem: BaseException) -> str:
    """The five characters, where the driver has them; else an empty text."""
    found = driver_error(problem)
    state = getattr(found, "sqlstate", None) or getattr(found, "pgcode", None)
    if state is None and found.args and isinstance(found.args[0], dict):
        state = found.args[0].get("C")  # pg8000 hands on the fields of the protocol
    return state if isinstance(state, str) else ""


def is_lost_race(problem: BaseException) -> bool:
    """Whether the transaction failed because another one changed what it had seen."""
    return sqlstate(problem) == "40001"


def is_double(problem: BaseException) -> bool:
    """Whether a row with this key came in between."""
    return type(driver_error(problem)).__name__ in ("IntegrityError", "UniqueViolation")


def shape_error(problem: BaseException, table: str, dialect: str) -> ConfigError | None:
    """A ConfigError if the table is missing or of another shape; None if the error says something else."""
    found = driver_error(problem)
    state = sqlstate(problem)
    text = str(found)
    if dialect == "postgresql":
        # 22: a value does not fit; 23: a constraint that is not ours; 42: no such table, column, type or right.
        wrong = state[:2] in ("22", "23", "42") or state in ("55000", "0A000")  # a view, a foreign table
    elif dialect == "sqlite":
        wrong = any(sign in text.lower() for sign in SQLITE_SHAPE)
    elif dialect == "mysql":
        wrong = bool(found.args) and (getattr(found, "errno", None) or found.args[0]) in MYSQL_SHAPE
    else:
        wrong = type(found).__name__ in ("ProgrammingError", "DataError") or "no such" in text.lower()
    if not wrong:
        return None
    return ConfigError(f"the table {table!r} is missing or of another shape ({text.strip().splitlines()[0]}); {CURE}")
