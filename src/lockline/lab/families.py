"""The servers that a family of locks needs, and what can be done to them."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from .servers.clock import Clock, needed_library
from .servers.process import ServerProcess, wait_for
from .servers.proxy import Proxy

Address = tuple[str, int]


class Servers:
    """Some servers that clients are led to; each family says what it can suffer."""

    url: ClassVar[str] = ""
    shared: ClassVar[bool] = True
    """Whether many cells use the same servers, as long as none of them disturbs these."""
    labels: list[str]
    clocks: list[Clock]

    def __init__(self, folder: Path, wants: str) -> None:
        self.folder = folder
        self.wants = wants
        self.clocks = []

    @property
    def addresses(self) -> list[Address]:
        """Where they listen."""
        raise NotImplementedError

    def processes(self) -> list[ServerProcess]:
        """One by one."""
        raise NotImplementedError

    def start(self) -> None:
        """Start all and wait until they serve."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop all."""
        for process in self.processes():
            with contextlib.suppress(Exception):
                process.stop()

    def restart(self, which: list[int] | None = None) -> None:
        """Kill them and start them again, with what they have on disk."""
        chosen = [process for at, process in enumerate(self.processes()) if which is None or at in which]
        for process in chosen:
            process.kill()
        for process in chosen:
            process.start(wait=False)
        for process in chosen:
            process.wait_ready()
        self.settle()

    def settle(self) -> None:
        """Wait until they serve as before."""

    def isolate(self) -> None:
        """From now on a replica hears nothing."""

    def fail_over(self) -> Address | None:
        """The primary dies; where the one is that takes over, if clients have to be led there."""
        raise NotImplementedError

    def evidence(self, name: str) -> str:
        """What is there of this lock."""
        return ""

    def clock_env(self, number: int) -> dict[str, str] | None:
        """The environment of a server whose clock will be stepped."""
        if self.wants != "clock":
            return None
        self.clocks.append(Clock(needed_library(self.folder), self.folder / f"clock-{number}"))
        return self.clocks[-1].env


class RedisFamily(Servers):
    """One Redis, or a primary and its replica: new ones for each cell, they start in no time."""

    url = "redis://{hosts}"
    shared = False
    count: ClassVar[int] = 1

    def __init__(self, folder: Path, wants: str) -> None:
        from .servers.redis import RedisServer

        super().__init__(folder, wants)
        self._servers = [RedisServer(folder / f"redis-{number}") for number in range(self.count)]
        self.labels = ["Redis"]
        if wants == "replica":
            self._link = Proxy(self._servers[0].address)
            options = ("--replicaof", "127.0.0.1", str(self._link.port), "--repl-diskless-sync-delay", "0")
            self._servers.append(RedisServer(folder / "replica", *options))
            self.labels = ["primary", "replica"]
        for number, server in enumerate(self._servers):
            server._env = self.clock_env(number)

    @property
    def addresses(self) -> list[Address]:
        return [server.address for server in self._servers[: self.count]]

    def processes(self) -> list[ServerProcess]:
        return list(self._servers)

    def start(self) -> None:
        for server in self._servers:
            server.start(wait=False)
        for server in self._servers:
            server.wait_ready()
        if self.wants == "replica":
            wait_for(lambda: self._servers[1].command("ROLE")[3] == "connected", 20, "replication")

    def stop(self) -> None:
        super().stop()
        if self.wants == "replica":
            self._link.close()

    def isolate(self) -> None:
        self._link.black_hole()

    def fail_over(self) -> Address | None:
        self._servers[0].kill()
        self._servers[1].command("REPLICAOF", "NO", "ONE")
        return self._servers[1].address

    def evidence(self, name: str) -> str:
        for server in self._servers:
            with contextlib.suppress(Exception):
                left = server.command("PTTL", name)
                if left != -2:
                    return "its key has no expiry" if left == -1 else f"its key expires in {left / 1000:.1f} s"
        return ""


class RedlockFamily(RedisFamily):
    """Five that know nothing of each other."""

    count = 5
    url = "redlock://{hosts}"

    def __init__(self, folder: Path, wants: str) -> None:
        super().__init__(folder, "plain" if wants == "replica" else wants)
        self.labels = [f"Redis {number + 1}" for number in range(self.count)]

    def start(self) -> None:
        from ..backends.redlock import cluster
        from ..backends.redlock.target import understand

        super().start()
        # For Lockline; to the published lock it is a key like any other.
        url = self.url.format(hosts=",".join(f"{host}:{port}" for host, port in self.addresses))
        cluster.init(understand(url, "blocking").nodes, longest=60.0).act()


class ZookeeperFamily(Servers):
    """One server, or an ensemble of three where something happens to servers."""

    url = "zk://{hosts}"

    def __init__(self, folder: Path, wants: str) -> None:
        from .servers.zookeeper import Ensemble, ZooKeeper

        super().__init__(folder, wants)
        self._three = Ensemble(folder) if wants in ("replica", "three") else None
        self._servers = self._three.servers if self._three else [ZooKeeper(folder / "zk")]
        self.labels = [f"ZooKeeper {n + 1}" for n in range(3)] if self._three else ["ZooKeeper"]
        for number, server in enumerate(self._servers):
            server._env = self.clock_env(number)

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

    def fail_over(self) -> Address | None:
        assert self._three is not None
        leader = self._three.leader
        assert leader is not None
        leader.kill()
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
        from .servers.etcd import EtcdCluster

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

    def fail_over(self) -> Address | None:
        self._cluster.leader().server.kill()
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
        from .servers.consul import ConsulCluster

        return ConsulCluster(self.folder, count)

    def _all(self) -> list[Any]:
        return list(self._cluster.servers)


ROOM = ("-c", "max_connections=250")
"""For fifty waiters, twice: a client that listens has a second connection."""


class PostgresqlFamily(Servers):
    """One PostgreSQL; a standby, or a pooler, where that is what it is about."""

    url = "postgresql://lockline@{hosts}/postgres"

    def __init__(self, folder: Path, wants: str) -> None:
        from .servers.postgres import PostgresServer

        super().__init__(folder, wants)
        self.labels = (
            ["primary", "standby"] if wants == "replica" else ["PgBouncer" if wants == "pooler" else "PostgreSQL"]
        )
        os.chmod(folder, 0o755)
        env = self.clock_env(0)
        self._server = PostgresServer(*ROOM)
        self._server._env = env
        self._more: list[Any] = []
        self._link: Proxy | None = None

    @property
    def addresses(self) -> list[Address]:
        return [("127.0.0.1", self._more[0].port if self.wants == "pooler" else self._server.port)]

    def processes(self) -> list[ServerProcess]:
        return [self._server, *self._more]

    def start(self) -> None:
        import psycopg

        from ..backends.postgresql.schema import ddl
        from .locks.database import SCHEMA
        from .servers.pgbouncer import PgBouncer
        from .servers.postgres import PostgresReplica

        self._server.start()
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            connection.execute(ddl("lockline"))
            connection.execute(SCHEMA)
        if self.wants == "pooler":
            self._more = [PgBouncer(self._server.port, sessions=1).start()]
        if self.wants == "replica":
            self._link = Proxy(("127.0.0.1", self._server.port))
            through = f"primary_conninfo=host=127.0.0.1 port={self._link.port} user=lockline"
            self._more = [PostgresReplica(self._server, "-c", through, *ROOM).start()]

            def follows() -> bool:
                with psycopg.connect(self._server.url, autocommit=True) as connection:
                    row = connection.execute(
                        "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
                    ).fetchone()
                    return row is not None and row[0] == 1

            wait_for(follows, 20, "replication")

    def isolate(self) -> None:
        assert self._link is not None
        self._link.black_hole()

    def fail_over(self) -> Address | None:
        self._server.kill()
        standby = self._more[0]
        standby.promote()
        return "127.0.0.1", standby.port

    def stop(self) -> None:
        for server in (*self._more, self._server):
            with contextlib.suppress(Exception):
                server.remove()
        if self._link is not None:
            self._link.close()


class MysqlFamily(Servers):
    """One MariaDB."""

    url = "mysql://root@{hosts}/lockline"

    def __init__(self, folder: Path, wants: str) -> None:
        from .servers.mysql import MariadbServer

        super().__init__(folder, wants)
        self.labels = ["MariaDB"]
        self._server = MariadbServer(folder / "mysql", "--innodb-flush-log-at-trx-commit=2")
        self._server._env = self.clock_env(0)

    @property
    def addresses(self) -> list[Address]:
        return [("127.0.0.1", self._server.port)]

    def processes(self) -> list[ServerProcess]:
        return [self._server]

    def start(self) -> None:
        from ..backends.mysql import tables

        self._server.start()
        tables(self._server.url).make()

    def stop(self) -> None:
        self._server.remove()


class LocalFamily(Servers):
    """A file of this machine: no server at all."""

    shared = False

    def __init__(self, folder: Path, wants: str) -> None:
        super().__init__(folder, wants)
        self.labels = ["file"]
        self.url = f"local://{folder}/locks.db"  # type: ignore[misc]

    @property
    def addresses(self) -> list[Address]:
        return []

    def processes(self) -> list[ServerProcess]:
        return []

    def start(self) -> None:
        pass


FAMILIES: dict[str, Callable[[Path, str], Servers]] = {
    "redis": RedisFamily,
    "redlock": RedlockFamily,
    "zookeeper": ZookeeperFamily,
    "etcd": EtcdFamily,
    "consul": ConsulFamily,
    "postgresql": PostgresqlFamily,
    "mysql": MysqlFamily,
    "local": LocalFamily,
}


def a_folder(under: Path, name: str) -> Path:
    """A new one that other users may pass through: PostgreSQL does not run as root."""
    under.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=under))
    folder.chmod(0o755)
    return folder


def pause(seconds: float) -> None:
    """Let time pass; a schedule waits for nothing else without looking."""
    time.sleep(seconds)
