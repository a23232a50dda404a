"""ZooKeeper, etcd and Consul: one server, or three that agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final

from ..servers.process import ServerProcess, wait_for
from .face import Address, Servers

UNHURRIED: Final = {"znode.container.checkIntervalMs": "60000"}
"""Empty parents are looked for every minute, as everywhere: one that goes in the middle of a schedule makes two steps of an acquire."""


class ZookeeperFamily(Servers):
    """One server, or an ensemble of three where something happens to servers."""

    url = "zk://{hosts}"

    def __init__(self, folder: Path, wants: str) -> None:
        from ..servers.zookeeper import Ensemble, ZooKeeper

        super().__init__(folder, wants)
        self._three = Ensemble(folder) if wants in ("replica", "three") else None
        self._servers = self._three.servers if self._three else [ZooKeeper(folder / "zk", properties=UNHURRIED)]
        self.labels = [f"ZooKeeper {n + 1}" for n in range(3)] if self._three else ["ZooKeeper"]
        for number, server in enumerate(self._servers):
            server.env = self.clock_env(number)

    @property
    def addresses(self) -> list[Address]:
        return [(server.host, server.port) for server in self._servers]

    def processes(self) -> list[ServerProcess]:
        return list(self._servers)

    def start(self) -> None:
        if self._three:
            self._three.start()
        else:
            self._servers[0].start()

    def follower(self) -> int:
        """One that does not lead."""
        return next(at for at, server in enumerate(self._servers) if server.mode == "follower")

    def primary(self) -> int:
        return next(at for at, server in enumerate(self._servers) if server.mode == "leader")

    def fail_over(self, primary: int) -> Address | None:
        self._servers[primary].kill()
        return None

    def settle(self) -> None:
        for server in self._servers:
            if not server.running:
                server.start()
        if self._three:
            three = self._three
            wait_for(lambda: three.leader is not None, 30, "a leader")


class EtcdFamily(Servers):
    """One member, or three."""

    url = "etcd://{hosts}"

    def __init__(self, folder: Path, wants: str) -> None:
        super().__init__(folder, wants)
        self._cluster = self._make(3 if wants in ("replica", "three") else 1)
        self.labels = [f"{self.name} {n + 1}" for n in range(3)] if len(self._all()) > 1 else [self.name]

    name: ClassVar[str] = "etcd"

    def _make(self, count: int) -> Any:
        from ..servers.etcd import EtcdCluster

        return EtcdCluster(self.folder, count)

    def _all(self) -> list[Any]:
        return list(self._cluster.members)

    @property
    def addresses(self) -> list[Address]:
        return [("127.0.0.1", member.port) for member in self._all()]

    def processes(self) -> list[ServerProcess]:
        return [member.server for member in self._all() if member.server is not None]

    def start(self) -> None:
        self._cluster.start()

    def follower(self) -> int:
        """One that does not lead."""
        leader = self._cluster.leader()
        return next(at for at, member in enumerate(self._all()) if member is not leader)

    def primary(self) -> int:
        return self._all().index(self._cluster.leader())

    def fail_over(self, primary: int) -> Address | None:
        self._all()[primary].server.kill()
        return None

    def settle(self) -> None:
        for process in self.processes():
            if not process.running:
                process.start()
        self._cluster.leader()


class ConsulFamily(EtcdFamily):
    """One server, or three."""

    url = "consul://{hosts}/lab?session_ttl=1"
    name = "Consul"

    def _make(self, count: int) -> Any:
        from ..servers.consul import ConsulCluster

        return ConsulCluster(self.folder, count)

    def _all(self) -> list[Any]:
        return list(self._cluster.servers)
