"""Redlock in the contract suite: a majority of three, and of five, independent servers."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from lockline import ConfigError
from tests.redlock.servers import Servers

from .worlds import World, joins


class RedlockWorld(World):
    """Each test has a prefix of its own. Semaphores and read-write locks are refused, and a refusal is what is expected then."""

    marks = (pytest.mark.server, pytest.mark.xfail(raises=ConfigError, strict=False, reason="redlock gives locks only"))
    patience = 3.0
    size: ClassVar[int]

    def open(self) -> None:
        self.servers = Servers(self.folder, self.size).start().set_up(longest=3600.0)

    def close(self) -> None:
        self.servers.stop()

    def place(self) -> str:
        return f"{self.servers.url}?prefix={self.unique()}/"

    def debris(self, place: str) -> list[str]:
        """Whatever stays at any node; tombstones have a ttl and no name, so they are not seen here."""
        (prefix,) = parse_qs(urlsplit(place).query)["prefix"]
        return sorted({key for keys in self.servers.keys(f"lockline:redlock:*:{prefix}*") for key in keys})


@joins
class RedlockOfThree(RedlockWorld):
    name = "redlock-3"
    size = 3


@joins
class RedlockOfFive(RedlockWorld):
    name = "redlock-5"
    size = 5
