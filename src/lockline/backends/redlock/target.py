"""From `redlock://user:secret@h1,other:secret@h2,[::1]:6381/0?tls=yes` or the user's own redis-py clients to a cluster's servers.

Credentials are each server's own; the database number and the options are the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import redis
import redis.asyncio
from redis.connection import URL_QUERY_ARGUMENT_PARSERS

from ...errors import ConfigError
from ...runtime.clock import DRIFT
from ..resp.target import TLS_NAMES, Server, server_of, settled, spelled, tls_options
from ..url import TLS, Endpoint, Grammar, Location, a_number

FEWEST = 3
NODE_TIMEOUT = 0.25


def a_prefix(value: object, what: str) -> str:
    """What is put before every name; it may be empty."""
    if not isinstance(value, str) or len(value.encode(errors="replace")) > 200:
        raise ConfigError(f"{what} is a text of at most 200 bytes, not {value!r}")
    return value


GRAMMAR: Final = Grammar(
    "redlock://h1:6379,h2:6379,h3:6379",
    6379,
    {**TLS, "prefix": a_prefix, "timeout": a_number(0.001, 10.0), "drift": a_number(DRIFT, 0.5, "of the ttl")},
    host=None,
    logins=True,
    old={"node_timeout": "timeout"},
    hands_on=("ssl_", "client_name"),
)


class Node(NamedTuple):
    """One server of a cluster: what people call it, and how it is reached."""

    label: str
    server: Server

    def within(self, seconds: float) -> Server:
        """The server, given up after so many seconds."""
        limits = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        # Who wants RESP3 asks for it after the login, together with other things: that saves a round trip, and old servers may refuse.
        return replace(self.server, options={**self.server.options, **limits, "protocol": 2})


@dataclass(frozen=True, slots=True)
class RedlockTarget:
    """All that a client needs to know."""

    url: str
    """The way here for people: the secrets left out."""
    nodes: Sequence[Node]
    node_timeout: float
    drift: float
    prefix: str


def understand(target: str | Sequence[Any], flavour: str, given: Mapping[str, Any] | None = None) -> RedlockTarget:
    """The cluster that a URL or a list of clients stands for; ConfigError for whatever is wrong with it."""
    given = {name: value for name, value in (given or {}).items() if value is not None}
    if isinstance(target, str):
        found = GRAMMAR.read(target, given)
        if found.path and not found.path.isdecimal():
            raise ConfigError(f"the path of a redlock:// URL is a database number, not {found.path!r}")
        servers = [_server(host, found, flavour) for host in found.hosts]
    else:
        servers = [_server_of(client, flavour) for client in target]
        options, others = GRAMMAR.values("redlock", given)
        if others or TLS.keys() & options.keys():
            raise ConfigError("how to connect is said by the clients that are given, not beside them")
        found = _location(servers, options)
    nodes = [Node(spelled(server.address), server) for server in servers]
    _check([node.label for node in nodes])
    said = found.options
    timeout, drift = said.get("timeout", NODE_TIMEOUT), said.get("drift", DRIFT)
    return RedlockTarget(found.url, nodes, timeout, drift, said.get("prefix", ""))


def _server(host: Endpoint, found: Location, flavour: str) -> Server:
    tls = found.tls()
    parsers: Mapping[str, Any] = URL_QUERY_ARGUMENT_PARSERS
    others = {name: parsers.get(name, str)(value) for name, value in found.others.items()}
    if tls is None and any(name.startswith("ssl_") for name in others):
        raise ConfigError("ssl_… has no meaning without tls=yes")
    login = {"username": host.user, "password": host.password, "db": int(found.path or 0)}
    server = Server((host.host, host.port), flavour, settled({**others, **tls_options(tls), **login}), tls is not None)
    try:
        # Made and thrown away: an option that redis-py does not know is found now, not at the first request.
        server.connection()
    except (ValueError, TypeError, redis.RedisError, OSError) as problem:
        raise ConfigError(f"{host} is not a usable address: {problem}") from None
    return server


def _server_of(client: Any, flavour: str) -> Server:
    """The server of one of the user's own clients, reached the way that client reaches it."""
    wanted, called = (
        (redis.asyncio.Redis, "redis.asyncio.Redis") if flavour == "asyncio" else (redis.Redis, "redis.Redis")
    )
    if not isinstance(client, wanted):
        raise ConfigError(f"redlock over clients takes {called} objects here, not {client!r}")
    return server_of(client.connection_pool, flavour, {})


def _location(servers: Sequence[Server], options: Mapping[str, Any]) -> Location:
    """Where these are, as a URL would say it."""
    hosts = tuple(Endpoint(*server.address, server.options.get("username")) for server in servers)
    first = servers[0] if servers else Server(("", 0), "")
    trust = {new: first.options[old] for new, old in TLS_NAMES.items() if first.tls and old in first.options}
    said = {**({"tls": True} if first.tls else {}), **trust, **options}
    return Location("redlock", hosts, str(first.options.get("db") or ""), said)


def _check(labels: list[str]) -> None:
    """Refuse fewer than three, and one that is named twice."""
    if len(labels) < FEWEST:
        raise ConfigError(
            f"redlock needs at least {FEWEST} independent servers, not {len(labels)}; for one use redis://"
        )
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"{label} is named twice; a majority has to be of different servers")
