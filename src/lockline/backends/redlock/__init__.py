"""Redlock that fences: locks on a majority of independent Redis servers, each grant with a token that is unique and rises."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...runtime import Runtime
from .backend import RedlockBackend
from .channel_asyncio import AsyncioFanout
from .channel_blocking import BlockingFanout
from .subscription_asyncio import AsyncioHints
from .subscription_blocking import BlockingHints
from .target import understand


def connect(target: str | Sequence[Any], runtime: Runtime, **options: Any) -> RedlockBackend:
    """The backend for `redlock://h1,h2,h3,…` or a list of redis-py clients. Nothing is sent yet.

    `timeout`, or `node_timeout`: how long one node may take (also never more than a fifth of a lock's ttl); raise it where the
    servers are far. `drift`: the share of a ttl that is given away for clocks of different speed. `prefix`: put before every name,
    so that several applications can share the servers. `tls`, `ca`, `cert`, `key` and their kin as everywhere.
    """
    found = understand(target, runtime.flavour, options)
    if runtime.flavour == "asyncio":
        channel = AsyncioFanout(found.nodes, found.node_timeout)
        return RedlockBackend(found, runtime, channel, partial(AsyncioHints, channel))
    return RedlockBackend(found, runtime, BlockingFanout(found.nodes, found.node_timeout), BlockingHints)
