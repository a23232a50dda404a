"""`etcd://h1,h2,h3`: the lock on consensus, for etcd 3.4 and later."""

from __future__ import annotations

from typing import Any

from ...runtime import Runtime
from .backend import EtcdBackend
from .target import parse

__all__ = ["EtcdBackend", "connect"]


def connect(target: str, runtime: Runtime, **options: Any) -> EtcdBackend:
    """The backend for `etcd://user:password@h1,h2,h3/prefix?ca=…&cert=…&key=…`. Nothing is sent yet.

    `user` and `password` may be given apart from the URL, and so may each of its options.
    """
    return EtcdBackend(parse(target, options), runtime)
