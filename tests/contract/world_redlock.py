"""Redlock in the contract suite: a majority of three, and of five, independent servers."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.redlock.servers import Servers

from .worlds import World, joins


class RedlockWorld(World):
    """Each test has a prefix of its own. Semaphores and read-write locks are refused."""

    marks = (pytest.mark.server,)
    wall_clock = True
    exclusion = "majority"
    token_survives: ClassVar = frozenset({"release", "expiry", "restart", "failover", "wipe"})
    has_lines = watches = hands_on = hands_over = keeps_values = semaphores = read_write = False
    shares_a_connection = True
    size: ClassVar[int]

    def open(self) -> None:
        self.servers = Servers(self.folder, self.size).start().set_up(longest=60 * 86400.0)

    def close(self) -> None:
        self.servers.stop()

    def place(self) -> str:
        # Servers that share two processors with twelve groups of tests may need longer than the default for an answer.
        return f"{self.servers.url}?prefix={self.unique()}/&timeout=5"

    def debris(self, place: str) -> list[str]:
        """Whatever stays at any node; tombstones have a ttl and no name, so they are not seen here."""
        (prefix,) = parse_qs(urlsplit(place).query)["prefix"]
        return sorted({key for keys in self.servers.left_over(f"lockline:redlock:*:{prefix}*") for key in keys})


@joins
class RedlockOfThree(RedlockWorld):
    name = "redlock-3"
    size = 3
    # On a busy machine four calls and two renewals may be under way at once: a connection each at each server, and a spare.
    more_files = 3 * 2 * (4 + 2)


@joins
class RedlockOfFive(RedlockWorld):
    name = "redlock-5"
    size = 5
    more_files = 5 * 2 * (4 + 2)
