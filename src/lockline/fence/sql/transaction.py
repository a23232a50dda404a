"""Whether what a statement does lasts to a commit: asked of the driver where it knows, else of the database itself.

A connection that commits each statement by itself makes two acts of the check and the write, and an old holder writes
between them. Drivers say so in different ways, some of them in none; not knowing is a refusal.
"""

from __future__ import annotations

from typing import Any, Final

IN_TRANSACTION: Final = 1
"""The bit of MySQL's server status."""
OPEN: Final = (2, 3)
"""libpq's words for a transaction that is open, whole or failed. 1 is a statement under way: a pipeline shows it too."""


def transaction_of(connection: Any) -> bool | None:
    """Whether the next statement on this driver's connection is part of a transaction; None if the driver does not know."""
    for asks in (by_libpq, _by_sqlite, _by_server_status, _by_attributes):
        known = asks(connection)
        if known is not None:
            return known
    return None


def by_libpq(connection: Any) -> bool | None:
    """psycopg 3."""
    wire = getattr(connection, "pgconn", None)
    if wire is None:
        return None
    return not connection.autocommit or wire.transaction_status in OPEN


def _by_sqlite(connection: Any) -> bool | None:
    """sqlite3 and what is made like it. None while none is open: whether one will be shows with the first statement."""
    open_now = getattr(connection, "in_transaction", None)
    if not isinstance(open_now, bool) or not hasattr(connection, "isolation_level"):
        return None
    return True if open_now else False if connection.isolation_level is None else None


def _by_server_status(connection: Any) -> bool | None:
    """The drivers of MySQL that keep what the server said last: PyMySQL, mysqlclient, and what is made like them."""
    ask = getattr(connection, "get_autocommit", None)
    automatic = ask() if callable(ask) else None
    if not isinstance(automatic, (bool, int)):
        return None
    if not automatic:
        return True
    status = getattr(connection, "server_status", None)
    return bool(status & IN_TRANSACTION) if isinstance(status, int) else None


def _by_attributes(connection: Any) -> bool | None:
    """Not in PEP 249, but drivers agree on the names; a method of the same name tells nothing."""
    if getattr(connection, "in_transaction", None) is True:
        return True
    # With autocommit on, one may have been begun by hand.
    return True if getattr(connection, "autocommit", None) is False else None
