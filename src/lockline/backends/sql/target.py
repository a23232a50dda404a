"""What a client needs to know of a database, whichever it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_SCHEMA: Final = "lockline"
DEFAULT_PREFIX: Final = "lockline"
PATIENCE: Final = 2.0
"""Seconds after which one unanswered try is given up."""
MOST: Final = 4
"""Connections at once, so that a fleet of clients leaves room for others."""

KEEPERS_CONNECTIONS: Final = 2
"""Kept for renewals, so that they stand in no line behind the callers: one, and one more for when that hangs."""
KEEPERS_LOGIN: Final = 10.0
"""Seconds that a login of the keeper's may take in all, and others may wait for it, whatever the renewal has left that asked: the next one
finds it done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlTarget:
    """Where the lines are, and how much of the database a client takes."""

    url: str
    """The way here for people: the secrets left out."""
    schema: str = DEFAULT_SCHEMA
    """Where `lockline init` has put the tables."""
    prefix: str = DEFAULT_PREFIX
    max_connections: int = MOST
