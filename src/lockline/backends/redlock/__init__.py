"""Redlock that fences: locks on a majority of independent Redis servers, each grant with a token that is unique and rises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.arguments import seconds
from ...errors import ConfigError
from ...runtime import Runtime
from ...runtime.clock import DRIFT
from .backend import RedlockBackend
from .channel_asyncio import AsyncioFanout
from .channel_blocking import BlockingFanout
from .subscription_asyncio import AsyncioHints
from .subscription_blocking import BlockingHints
from .target import from_clients, from_url, safe

NODE_TIMEOUT = 0.25
LONGEST_NODE_TIMEOUT = 10.0


def connect(
    target: str | Sequence[Any],
    runtime: Runtime,
    *,
    node_timeout: object = None,
    drift: object = None,
    prefix: str | None = None,
) -> RedlockBackend:
    """The backend for `redlock://h1,h2,h3,…` or a list of redis-py clients. Nothing is sent yet.

    `node_timeout`: how long one node may take (also never more than a fifth of a lock's ttl); raise it where the servers are far.
    `drift`: the share of a ttl that is given away for clocks of different speed.
    `prefix`: put before every name, so that several applications can share the servers.
    """
    asynchronous = runtime.flavour == "asyncio"
    settings: dict[str, str] = {}
    if isinstance(target, str):
        nodes, settings = from_url(target, runtime.flavour)
        url = safe(target)
    else:
        nodes = from_clients(target, runtime.flavour)
        url = "redlock://" + ",".join(node.label for node in nodes)
    node_timeout = settings.pop("node_timeout", None) if node_timeout is None else node_timeout
    drift = settings.pop("drift", None) if drift is None else drift
    prefix = settings.pop("prefix", "") if prefix is None else prefix
    if settings:
        raise ConfigError(f"redlock:// does not know the setting {', '.join(settings)}")
    if not isinstance(prefix, str) or len(prefix.encode()) > 200:
        raise ConfigError(f"prefix is a text of at most 200 bytes, not {prefix!r}")
    patience = _number(node_timeout, "node_timeout", NODE_TIMEOUT)
    if not 0.001 <= patience <= LONGEST_NODE_TIMEOUT:
        raise ConfigError(
            f"node_timeout is from 0.001 to {LONGEST_NODE_TIMEOUT:g} seconds, far below any ttl, not {patience}"
        )
    margin = _number(drift, "drift", DRIFT)
    if not DRIFT <= margin <= 0.5:
        raise ConfigError(f"drift is a share of the ttl from {DRIFT} to 0.5, not {margin}")
    channel: Any = (AsyncioFanout if asynchronous else BlockingFanout)(nodes, patience)
    hints: Any = AsyncioHints if asynchronous else BlockingHints
    return RedlockBackend(
        channel, hints, runtime, url=url, prefix=prefix, drift=margin, nodes=nodes, node_timeout=patience
    )


def _number(value: object, what: str, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ConfigError(f"{what} is a number of seconds, not {value!r}") from None
    return seconds(value, what)
