"""`consul://` in the contract suite: one server that is its own agent."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest

from tests.servers.consul import MEMORY, ConsulCluster

from .worlds import World, joins


@joins
class ConsulWorld(World):
    """Each test has a prefix of its own."""

    name = "consul"
    sessions = True
    exclusion = "consensus"
    token_survives: ClassVar = frozenset({"release", "expiry", "restart", "failover"})
    notes_grants = "by the renewal"
    hands_over = False
    marks: ClassVar[tuple[pytest.MarkDecorator, ...]] = (pytest.mark.server,)

    def open(self) -> None:
        self._data = TemporaryDirectory(prefix="lockline-consul-", dir=MEMORY)
        self.cluster = ConsulCluster(Path(self._data.name)).start()

    def close(self) -> None:
        self.cluster.stop()
        self._data.cleanup()

    def place(self) -> str:
        return f"{self.cluster.url}/{self.unique()}?session_ttl=1"

    def debris(self, place: str) -> list[str]:
        """Every key but those of living sessions."""
        prefix = place.partition("?")[0].rpartition("/")[2]
        try:
            keys = self.cluster.servers[0].ask(f"kv/{prefix}/?keys")
        except OSError:
            return []
        return [key for key in keys if "/session/" not in key]
