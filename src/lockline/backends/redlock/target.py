"""The servers of a cluster, from a URL or from the user's own redis-py clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
import redis.asyncio
from redis.connection import ConnectionPool

from ...errors import ConfigError
from ..resp.target import Server, server_of, spelled

FEWEST = 3
DEFAULT_PORT = 6379


class Node(NamedTuple):
    """One server of a cluster: what people call it, and how it is reached."""

    label: str
    server: Server

    def within(self, seconds: float) -> Server:
        """The server, given up after so many seconds."""
        limits = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        # The answers of our scripts are the same in RESP3, and those of CONFIG are not.
        return replace(self.server, options={**self.server.options, **limits, "protocol": 2})


def _node(pool: Any, flavour: str) -> Node:
    server = server_of(pool, flavour, {})
    return Node(spelled(server.address), server)


def from_clients(clients: Sequence[Any], flavour: str) -> list[Node]:
    """A node for each of the user's own clients, reached the way that client reaches it."""
    asynchronous = flavour == "asyncio"
    wanted = redis.asyncio.Redis if asynchronous else redis.Redis
    nodes = []
    for client in clients:
        if not isinstance(client, wanted):
            raise ConfigError(
                f"redlock over clients takes {'redis.asyncio.Redis' if asynchronous else 'redis.Redis'} objects here, not {client!r}"
            )
        nodes.append(_node(client.connection_pool, flavour))
    return checked(nodes)


def from_url(url: str, flavour: str = "blocking") -> tuple[list[Node], dict[str, str]]:
    """The nodes that a `redlock://` URL names, and those of its settings that are not about connections.

    `redlock://user:secret@h1:6379,other:secret@h2,[::1]:6381/0?tls=yes&ssl_ca_certs=/etc/ca.pem`: credentials are each
    node's own; the database number and the TLS settings are the same for all.
    """
    parts = urlsplit(url)
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    tls = settings.pop("tls", "no")
    if tls not in ("yes", "no"):
        raise ConfigError(f"tls is yes or no, not {tls!r}")
    passed_on = {key: settings.pop(key) for key in list(settings) if key.startswith("ssl_") or key == "client_name"}
    database = parts.path.strip("/")
    if database and not database.isdigit():
        raise ConfigError(f"the path of a redlock:// URL is a database number, not {parts.path!r}")
    query = urlencode(passed_on)
    nodes = []
    for entry in parts.netloc.split(","):
        credentials, _, place = entry.rpartition("@")
        host, port = _host_and_port(place, url)
        shown = f"[{host}]" if ":" in host else host
        scheme = "rediss" if tls == "yes" else "redis"
        address = f"{scheme}://{credentials}{'@' if credentials else ''}{shown}:{port}/{database or 0}?{query}"
        try:
            pool = ConnectionPool.from_url(address)
        except (ValueError, TypeError) as problem:
            raise ConfigError(f"{shown}:{port} is not a usable address: {problem}") from None
        nodes.append(_node(pool, flavour))
    return checked(nodes), settings


def _host_and_port(place: str, url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError as problem:
        raise ConfigError(f"{place!r} in {safe(url)!r} is not host:port: {problem}") from None
    if not host or parts.path or port == 0:
        raise ConfigError(f"{place!r} in {safe(url)!r} is not host:port")
    return unquote(host), port or DEFAULT_PORT


def safe(url: str) -> str:
    """The URL without secrets."""
    parts = urlsplit(url)
    netloc = ",".join(entry.rpartition("@")[2] for entry in parts.netloc.split(","))
    query = "&".join(part for part in parts.query.split("&") if "password" not in unquote(part.partition("=")[0]))
    return parts._replace(netloc=netloc, query=query).geturl()


def checked(nodes: list[Node]) -> list[Node]:
    """At least three, and none named twice."""
    labels = [node.label for node in nodes]
    if len(nodes) < FEWEST:
        raise ConfigError(
            f"redlock needs at least {FEWEST} independent servers, not {len(nodes)}; for one use redis://"
        )
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"{label} is named twice; a majority has to be of different servers")
    return nodes
