"""The two locks on ZooKeeper: one ephemeral node that everybody watches, and a line of numbered ones."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, ClassVar

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from .face import Hold, Place, PublishedLock, Step


class ZookeeperBasic(PublishedLock):
    """Who creates the node has the lock; it goes with the session. All others wait for the same node."""

    id = "zookeeper-basic"
    title = "ZooKeeper, one ephemeral node"
    family = "zookeeper"
    source = "an article in Chinese that compares distributed locks; Chubby before it"
    session = True
    expected: ClassVar = {
        "holder-crashes": "late",
        "crash-between-steps": "late",
        "work-outlives-ttl": "safe",
        "foreign-release": "safe",
        "frozen": "lost update",
        "client-clock": "safe",
        "server-clock": "safe",
        "server-restarts-empty": "safe",
        "failover": "safe",
        # The node is there when its session has long forgotten that it asked for it, and lives as long as that.
        "late-request": "stuck for ever",
        # The node is there, and it is the client's own: it waits for itself.
        "lost-reply": "stuck for ever",
        "minority-partitioned": "safe",
        "majority-partitioned": "lost update",
        "herd": "costly",
        "starvation": "late",
        "one-object": "safe",
        "fork": "safe",
    }

    def __init__(self, place: Place, step: Step) -> None:
        super().__init__(place, step)
        self._client: Any = None
        self._mutex = threading.Lock()
        self.folder = "/" + place.name

    @property
    def client(self) -> Any:
        """The session, begun when it is first needed."""
        with self._mutex:
            if self._client is None:
                hosts = ",".join(f"{host}:{port}" for host, port in self.place.addresses)
                self._client = KazooClient(hosts, timeout=self.place.ttl, randomize_hosts=False)
                self._client.start(timeout=10)
                self._client.ensure_path(self.folder)
            return self._client

    def acquire(self, until: float) -> Hold | None:
        path = f"{self.folder}/lock"
        while True:
            try:
                self._within(self.client.create_async(path, ephemeral=True))
                return Hold(path)
            except NodeExistsError:
                pass
            gone = threading.Event()
            there = self._within(self.client.exists_async(path, watch=lambda event, gone=gone: gone.set()))
            if there is not None and not gone.wait(max(0.0, until - time.monotonic())):
                return None

    def _within(self, asked: Any) -> Any:
        return asked.get(timeout=self.place.patience)

    def release(self, hold: Hold | None) -> None:
        if hold is not None:
            with suppress(NoNodeError):
                self._within(self.client.delete_async(hold.value))

    def close(self) -> None:
        if self._client is not None:
            self._client.stop()
            self._client.close()


class ZookeeperSequential(ZookeeperBasic):
    """Each stands in line with a number and watches only the one before."""

    id = "zookeeper-sequential"
    title = "ZooKeeper, sequential nodes"
    source = "ZooKeeper recipes; Curator's InterProcessMutex without its guard against lost replies"
    crash_at = "between the create and the look at the line"
    expected: ClassVar = {**ZookeeperBasic.expected, "herd": "safe", "starvation": "safe"}
    because: ClassVar = {
        "lost-reply": "The first create was done, its answer never came, and the repeat makes a second node. "
        "The client stands behind its own forgotten node, which lives as long as its session.",
    }

    def acquire(self, until: float) -> Hold | None:
        made = self._within(self.client.create_async(f"{self.folder}/n-", ephemeral=True, sequence=True))
        self.step("between the create and the look at the line")
        mine = made.rpartition("/")[2]
        while True:
            line = sorted(self._within(self.client.get_children_async(self.folder)))
            at = line.index(mine)
            if at == 0:
                return Hold(made)
            gone = threading.Event()
            before = f"{self.folder}/{line[at - 1]}"
            there = self._within(self.client.exists_async(before, watch=lambda event, gone=gone: gone.set()))
            if there is not None and not gone.wait(max(0.0, until - time.monotonic())):
                self.release(Hold(made))
                return None
