"""`etcd://h1,h2,h3`: the lock on consensus, for etcd 3.4 and later."""

from __future__ import annotations

from ...runtime import Runtime
from .address import parse
from .backend import EtcdBackend

__all__ = ["EtcdBackend", "connect"]


def connect(target: str, runtime: Runtime, *, user: str | None = None, password: str | None = None) -> EtcdBackend:
    """The backend for `etcd://user:password@h1,h2,h3/prefix?ca=…&cert=…&key=…`. Nothing is sent yet."""
    return EtcdBackend(parse(target, user, password), runtime)
