"""`redis://` and its kin: one server, Sentinel, Cluster."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from ...errors import ConfigError
from ...runtime import Runtime
from .backend import RedisBackend
from .commands import PREFIX, a_prefix
from .target import understand

MOST_CONNECTIONS = 4


def connect(
    target: Any,
    runtime: Runtime,
    *,
    wait_replicas: int | None = None,
    max_connections: int | None = None,
    prefix: str | None = None,
    **options: Any,
) -> RedisBackend:
    """The backend for a URL or a client of redis-py; nothing is sent.

    `wait_replicas`: a grant counts only when that many replicas have it; for Sentinel and Cluster, where a failover
    must not forget a holder lightly. `max_connections`: blocking threads share that many per server.
    `prefix`: what keys and channels begin with; for programs that share a Redis and not their locks.
    Other options are those of redis-py's connections (`password`, `socket_timeout`, `ssl_ca_certs`, ...).
    """
    if isinstance(target, str) and "?" in target:
        target, ours = _own_parameters(target)
        wait_replicas = ours.get("wait_replicas") if wait_replicas is None else wait_replicas
        max_connections = ours.get("max_connections") if max_connections is None else max_connections
        prefix = ours.get("prefix") if prefix is None else prefix
    replicas = _a_count(wait_replicas, "wait_replicas", 0, 0)
    most = _a_count(max_connections, "max_connections", 1, MOST_CONNECTIONS)
    return RedisBackend(
        understand(target, runtime.flavour, options),
        runtime,
        wait_replicas=replicas,
        max_connections=most,
        prefix=PREFIX if prefix is None else a_prefix(prefix),
    )


def _own_parameters(url: str) -> tuple[str, dict[str, Any]]:
    """The URL without those query parameters that are Lockline's own, and these."""
    base, _, query = url.partition("?")
    ours: dict[str, Any] = {}
    rest = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name == "prefix":
            ours[name] = unquote(value)
        elif name in ("wait_replicas", "max_connections"):
            if not value.isdecimal():
                raise ConfigError(f"{name} is a whole number, not {value!r}")
            ours[name] = int(value)
        else:
            rest.append(part)
    return f"{base}?{'&'.join(rest)}" if any(rest) else base, ours


def _a_count(value: int | None, name: str, least: int, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is a whole number of at least {least}, not {value!r}")
    return value


__all__ = ["RedisBackend", "connect"]
