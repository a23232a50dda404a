"""Many claims in one call: not too many of them, and not too many bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..failures import Refused
from .calls import of_many
from .database import Database

LARGEST: Final = 65536
"""Characters of a batch, until the server refuses one as too large."""


class SqlBatches:
    """How much of a batch the database takes at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._largest = LARGEST

    def first_of(self, entries: Sequence[str]) -> Sequence[str]:
        """Those that travel together; one at least."""
        size = 0
        for at, entry in enumerate(entries[: self._database.claims_per_call]):
            size += len(entry) + 1
            if size > self._largest and at:
                return entries[:at]
        return entries[: self._database.claims_per_call]

    def halve(self, problem: Exception, some: Sequence[str]) -> bool:
        """Whether these were refused for their bytes, and fewer of them may be asked for."""
        if not isinstance(problem, Refused) or problem.code not in self._database.too_large or len(some) == 1:
            return False
        self._largest = len(of_many(some)) // 2
        return True
