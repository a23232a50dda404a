"""What a database's error means for a fence, whatever the dialect."""

from __future__ import annotations

from typing import Any, Final

from ...runtime.limits import is_callers

CURE: Final = "make it with SqlFence.create(connection), or with the statement that SqlFence.ddl(dialect) gives"

ROOTS: Final = frozenset({"Error", "PostgresError", "InterfaceError", "SQLAlchemyError"})
"""What drivers call the root of their errors: the first by the DB-API, the next two asyncpg."""


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


def is_of_a_driver(problem: BaseException) -> bool:
    """Whether a driver may have raised this; not so a soft time limit, which is the caller's own and goes up as it is.

    Some let the system's errors come out, or stumble over half an answer.
    """
    if is_callers(problem):
        return False
    if isinstance(problem, (OSError, AttributeError, LookupError, TypeError, ValueError)):
        return True
    return not ROOTS.isdisjoint(kind.__name__ for kind in type(driver_error(problem)).__mro__)


def is_lost_race(problem: BaseException) -> bool:
    """Whether the transaction failed because another one changed what it had seen."""
    return sqlstate(problem) == "40001"


def is_double(problem: BaseException) -> bool:
    """Whether a row with this key came in between."""
    return type(driver_error(problem)).__name__ in ("IntegrityError", "UniqueViolation")


def means_no_transaction(problem: BaseException) -> bool:
    """Whether this error on a savepoint says that none is open."""
    if sqlstate(problem) == "25P01":
        return True
    found = driver_error(problem)
    return 1305 in (getattr(found, "errno", None), *found.args[:1])
