"""Every family of servers by its name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from .consensus import ConsulFamily, EtcdFamily, ZookeeperFamily
from .databases import LocalFamily, MysqlFamily, PostgresqlFamily
from .face import Servers as Servers
from .redis import RedisFamily, RedlockFamily

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
