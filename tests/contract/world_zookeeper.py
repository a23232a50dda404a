"""ZooKeeper in the contract suite: one server, and an ensemble of three."""

from __future__ import annotations

import random
from typing import ClassVar

import kazoo.protocol.connection
import kazoo.retry
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from ..servers.zookeeper import Ensemble, ZooKeeper
from .worlds import World, joins


@joins
class ZooKeeperWorld(World):
    """Each test has a chroot of its own."""

    name = "zookeeper"
    sessions = True
    exclusion = "consensus"
    token_survives: ClassVar = frozenset({"release", "expiry", "restart", "failover"})
    notes_grants = "by the renewal"
    hands_over = keeps_for = delays_locks = False
    marks: ClassVar[tuple[pytest.MarkDecorator, ...]] = (pytest.mark.server,)

    def open(self) -> None:
        self.server: ZooKeeper | Ensemble = ZooKeeper(self.folder / "zookeeper").start()
        self._begin()

    def _begin(self) -> None:
        # kazoo's threads roll dice for their pings, and hypothesis does not like it when others use the common ones.
        kazoo.protocol.connection.random = kazoo.retry.random = random.Random()
        self._observer = KazooClient(hosts=self.server.url.removeprefix("zk://"))
        self._observer.start()

    def place(self) -> str:
        return f"{self.server.url}/{self.unique()}"

    def debris(self, place: str) -> list[str]:
        root = "/" + place.rpartition("/")[2] + "/lockline"
        self._observer.sync(root)
        try:
            # Parents are containers: the server itself removes them some time after the last claim.
            return [
                f"{parent}/{child}"
                for parent in self._observer.get_children(root)
                for child in self._children(f"{root}/{parent}")
            ]
        except NoNodeError:
            return []

    def _children(self, path: str) -> list[str]:
        try:
            return self._observer.get_children(path)  # type: ignore[no-any-return]
        except NoNodeError:
            return []

    def close(self) -> None:
        self._observer.stop()
        self._observer.close()
        self.server.stop()


@joins
class EnsembleWorld(ZooKeeperWorld):
    """The same on three servers."""

    name = "zookeeper3"
    marks = (pytest.mark.server, pytest.mark.slow)

    def open(self) -> None:
        self.server = Ensemble(self.folder).start()
        self._begin()
