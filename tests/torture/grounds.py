"""Every ground there is, by name."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from lockline.backends.mysql import tables
from lockline.backends.postgresql.schema import ddl
from tests.servers.consul import ConsulCluster
from tests.servers.etcd import EtcdCluster
from tests.servers.mysql import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.servers.zookeeper import Ensemble

from . import grounds_redis as redis
from .ground import Deed, Ground, frozen, killed, restarted


@contextmanager
def local(folder: Path) -> Any:
    """A file, which somebody else locks now and then."""
    file = folder / "local.db"

    def occupy(dice: random.Random) -> None:
        # No BEGIN EXCLUSIVE: it would wait for its turn, and the turn may not come.
        connection = sqlite3.connect(file, timeout=5, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(dice.uniform(0.1, 1.0))
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            pass
        finally:
            connection.close()

    yield Ground("local", f"local://{file}", {"database locked": occupy})


def _leader_lost(leader: Callable[[], Any]) -> Deed:
    def deed(dice: random.Random) -> None:
        server = leader()
        if server is not None:
            server.kill()
            time.sleep(dice.uniform(0.5, 2.0))
            server.start()

    return deed


@contextmanager
def etcd(folder: Path) -> Any:
    """Three members."""
    cluster = EtcdCluster(folder, 3).start()
    servers = [member.server for member in cluster.members if member.server is not None]
    try:
        yield Ground(
            "etcd of three", cluster.url,
            {"kill": killed(servers), "freeze": frozen(servers), "restart": restarted(servers), "failover": _leader_lost(lambda: cluster.leader().server)},
        )  # fmt: skip
    finally:
        cluster.stop()


@contextmanager
def zookeeper(folder: Path) -> Any:
    """Three servers."""
    ensemble = Ensemble(folder).start()
    try:
        yield Ground(
            "zookeeper of three", ensemble.url,
            {
                "kill": killed(ensemble.servers), "freeze": frozen(ensemble.servers), "restart": restarted(ensemble.servers),
                "failover": _leader_lost(lambda: ensemble.leader),
            },
        )  # fmt: skip
    finally:
        ensemble.stop()


@contextmanager
def consul(folder: Path) -> Any:
    """Three servers."""
    cluster = ConsulCluster(folder, 3).start()
    servers = [server.server for server in cluster.servers if server.server is not None]
    try:
        yield Ground(
            "consul of three", f"{cluster.url}?session_ttl=1",
            {"kill": killed(servers), "freeze": frozen(servers, 0.2, 1.0), "failover": _leader_lost(lambda: cluster.leader().server)},
        )  # fmt: skip
    finally:
        cluster.stop()


@contextmanager
def postgresql(folder: Path) -> Any:
    """One server."""
    server = PostgresServer().start()
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(ddl("lockline"))
        yield Ground(
            "postgresql",
            server.url,
            {"kill": killed([server]), "freeze": frozen([server]), "restart": restarted([server])},
        )
    finally:
        server.remove()


@contextmanager
def mysql(folder: Path) -> Any:
    """One server."""
    server = MariadbServer(folder / "mysql").start()
    try:
        tables(server.url).make()
        yield Ground(
            "mysql", server.url, {"kill": killed([server]), "freeze": frozen([server]), "restart": restarted([server])}
        )
    finally:
        server.remove()


GROUNDS: Final[dict[str, Callable[[Path], AbstractContextManager[Ground]]]] = {
    "local": local,
    "redis-durable": redis.durable,
    "redis-forgetful": redis.forgetful,
    "redis-sentinel": redis.sentinel,
    "redis-cluster": redis.cluster,
    "redlock": redis.redlock,
    "etcd": etcd,
    "zookeeper": zookeeper,
    "consul": consul,
    "postgresql": postgresql,
    "mysql": mysql,
}
