"""`zk://h1,h2,h3/chroot`: locks on ZooKeeper's consensus, through kazoo."""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient

from ...errors import ConfigError
from ...runtime import Runtime
from .backend import GUARANTEES, ZooKeeperBackend
from .target import DEFAULT_PREFIX, a_prefix, from_client, from_url


def connect(target: Any, runtime: Runtime, **options: Any) -> ZooKeeperBackend:
    """The backend for a `zk://` URL or for a KazooClient that the user has; nothing is sent yet.

    With a URL each of its options may be given apart, with a client `prefix` and `acl`.
    """
    if isinstance(target, str):
        return ZooKeeperBackend(from_url(target, options), runtime)
    if not isinstance(target, KazooClient):
        raise ConfigError(f"connect() takes a zk:// URL or a KazooClient, not {target!r}")
    if options.pop("session", None) is not None:
        raise ConfigError("the session of your own KazooClient is as long as its timeout says; leave session out")
    acl, root = options.pop("acl", None), options.pop("root", None)
    prefix = a_prefix(options.pop("prefix", None) or root or DEFAULT_PREFIX)
    if options:
        raise TypeError(f"unexpected keyword: {', '.join(options)}")
    return ZooKeeperBackend(from_client(target, prefix=prefix, acl=acl), runtime)


__all__ = ["GUARANTEES", "ZooKeeperBackend", "connect"]
