"""`etcd://` in the contract suite: one member, and a cluster of three."""

from __future__ import annotations

from typing import ClassVar

import pytest

from lockline.backends.etcd import messages as m
from lockline.backends.etcd.channel import EtcdChannel
from lockline.backends.etcd.commands import RANGE, after
from lockline.backends.etcd.target import parse
from lockline.runtime.blocking import BlockingRuntime, run
from tests.servers.etcd import EtcdCluster

from .worlds import World, joins

QUICK = ("--heartbeat-interval=50", "--election-timeout=500")
"""etcd gives no lease shorter than one and a half elections; with these, one second is possible and the tests are shorter."""


@joins
class EtcdWorld(World):
    """Each test has a prefix of its own."""

    name = "etcd"
    sessions = True
    exclusion = "consensus"
    token_survives: ClassVar = frozenset({"release", "expiry", "restart", "failover"})
    notes_grants = "by the renewal"
    hands_over = False
    shares_a_connection = True
    marks: ClassVar[tuple[pytest.MarkDecorator, ...]] = (pytest.mark.server,)
    shortest_ttl = 0.9
    """A killed client's claims go with its lease: whole seconds, a tenth more than the ttl, looked at twice a second."""
    members = 1

    def open(self) -> None:
        self.cluster = EtcdCluster(self.folder, self.members, options=QUICK).start()

    def close(self) -> None:
        self.cluster.stop()

    def place(self) -> str:
        return f"{self.cluster.url}/{self.unique()}"

    def debris(self, place: str) -> list[str]:
        """Every key but the fence, which stays for good: one, whatever the number of names."""
        target = parse(place)
        runtime = BlockingRuntime()
        channel = EtcdChannel(target, runtime, lambda: None)
        beginning = f"{target.prefix}/".encode()
        request = m.RangeRequest(key=beginning, range_end=after(beginning), keys_only=True)
        try:
            answer = run(channel.ask(RANGE, request, runtime.now() + 5))
        finally:
            channel.close()
        keys = [kv.key.decode() for kv in answer.kvs]
        return [key for key in keys if key != f"{target.prefix}/fence" and "/session/" not in key]


@joins
class EtcdClusterWorld(EtcdWorld):
    """The same on three members."""

    name = "etcd3"
    marks = (pytest.mark.server, pytest.mark.slow)
    members = 3
