"""`zk://h1,h2,h3/chroot`: locks on ZooKeeper's consensus, through kazoo."""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient

from ...errors import ConfigError
from ...runtime import Runtime
from .backend import GUARANTEES, ZooKeeperBackend
from .target import a_root, from_client, from_url


def connect(
    target: Any, runtime: Runtime, *, session: float | None = None, root: str | None = None, acl: Any = None
) -> ZooKeeperBackend:
    """The backend for a `zk://` URL or for a KazooClient that the user has; nothing is sent yet."""
    if isinstance(target, str):
        return ZooKeeperBackend(from_url(target, session=session, root=root, acl=acl), runtime)
    if not isinstance(target, KazooClient):
        raise ConfigError(f"connect() takes a zk:// URL or a KazooClient, not {target!r}")
    if session is not None:
        raise ConfigError("the session of your own KazooClient is as long as its timeout says; leave session out")
    return ZooKeeperBackend(from_client(target, root=a_root(root or "lockline"), acl=acl), runtime)


__all__ = ["GUARANTEES", "ZooKeeperBackend", "connect"]
