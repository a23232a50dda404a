"""`local:` in the contract suite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import ClassVar

from .worlds import World, joins


@joins
class LocalWorld(World):
    """Each test has a file of its own."""

    name = "local"
    exclusion = "machine"
    token_survives: ClassVar = frozenset({"release", "expiry", "restart"})
    runtime_clock = True
    notices_death = True

    def place(self) -> str:
        return f"local://{self.folder}/{self.unique()}/locks.db"

    def debris(self, place: str) -> list[str]:
        with closing(sqlite3.connect(place.removeprefix("local://"))) as file:
            return [str(row) for row in file.execute("SELECT * FROM claims")]
