"""`consul://agent`: the lock on consensus, for Consul 1.8 and later."""

from __future__ import annotations

from typing import Any

from ...runtime import Runtime
from .backend import ConsulBackend
from .target import parse

__all__ = ["ConsulBackend", "connect"]


def connect(target: str, runtime: Runtime, **options: Any) -> ConsulBackend:
    """The backend for `consul://agent1,agent2/prefix?token=…&ca=…`. Nothing is sent yet.

    `token` may be given apart from the URL, and so may each of its options.
    """
    return ConsulBackend(parse(target, options), runtime)
