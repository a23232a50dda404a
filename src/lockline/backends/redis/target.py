"""What the caller named (a URL, or a client of redis-py) as the addresses and options of connections of our own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.sentinel

from ...errors import ConfigError
from ..resp.target import PATIENCE, Address, Server, carried, has_tls, server_of, settled, spelled

Kind = Literal["one", "sentinel", "cluster"]


@dataclass(frozen=True)
class Target:
    """Where the servers are and how to talk to them."""

    kind: Kind
    addresses: tuple[Address, ...]
    flavour: str
    options: dict[str, Any]
    tls: bool = False
    service: str = ""
    sentinel_options: dict[str, Any] = field(default_factory=dict)
    sentinel_tls: bool = False

    @property
    def patience(self) -> float:
        """Seconds that one try may take."""
        return float(self.options.get("socket_timeout", PATIENCE))

    @property
    def url(self) -> str:
        """The target without secrets."""
        hosts = ",".join(spelled(address) for address in self.addresses)
        db = f"/{self.options['db']}" if self.options.get("db") else ""
        if self.kind == "sentinel":
            return f"redis+sentinel://{hosts}/{self.service}{db}"
        if self.kind == "cluster":
            return f"redis+cluster://{hosts}"
        if not self.addresses[0][1]:
            return f"unix://{hosts}" + (f"?db={db[1:]}" if db else "")
        return f"{'rediss' if self.tls else 'redis'}://{hosts}{db}"

    def server(self, address: Address, *, sentinel: bool = False) -> Server:
        """One of the servers, or one of the sentinels."""
        if sentinel:
            return Server(address, self.flavour, self.sentinel_options, self.sentinel_tls)
        return Server(address, self.flavour, self.options, self.tls)


def understand(given: Any, flavour: str, options: dict[str, Any]) -> Target:
    """The target that a URL or a client object stands for; nothing is sent."""
    try:
        target = _of_url(given, flavour, options) if isinstance(given, str) else _of_object(given, flavour, options)
        # Made and thrown away: an option that redis-py does not know is found now, not at the first request.
        for sentinel in (False, True) if target.kind == "sentinel" else (False,):
            target.server(target.addresses[0], sentinel=sentinel).connection()
    except (ValueError, TypeError, redis.RedisError, OSError) as problem:
        if isinstance(problem, ConfigError):
            raise
        raise ConfigError(f"this Redis target is not usable: {problem}") from None
    return target


def _of_url(url: str, flavour: str, options: dict[str, Any]) -> Target:
    parts = urlsplit(url)
    # redis-py knows the types of its own query parameters; let it read them, and the rest of a plain URL.
    plain = url if parts.scheme in ("redis", "rediss", "unix") else f"redis://localhost?{parts.query}"
    read = {**redis.connection.parse_url(plain), **options}  # type: ignore[no-untyped-call]
    of_sentinels = {
        name.removeprefix("sentinel_"): read.pop(name) for name in list(read) if name.startswith("sentinel_")
    }
    tls = parts.scheme == "rediss" or _is_yes(read.get("ssl"))
    read.pop("connection_class", None)
    if "protocol" in read:
        read["protocol"] = int(read["protocol"])  # a text, as older releases of redis-py read it
    read = settled(read)
    if parts.scheme == "unix":
        path = read.pop("path", "")
        if not path:
            raise ConfigError("the URL names no socket; write unix:///path/redis.sock")
        return Target("one", ((path, 0),), flavour, read)
    if parts.scheme in ("redis", "rediss"):
        address = (read.pop("host", "localhost"), read.pop("port", 6379))
        return Target("one", (address,), flavour, read, tls)
    read.pop("host", None)
    read.pop("port", None)
    login, _, hosts = parts.netloc.rpartition("@")
    if login:
        user, colon, password = login.partition(":")
        if user:
            read["username"] = unquote(user)
        if colon:
            read["password"] = unquote(password)
    path = unquote(parts.path).strip("/")
    if parts.scheme == "redis+cluster":
        if path not in ("", "0") or read.get("db"):
            raise ConfigError(f"a Redis cluster has only database 0, not {path or read['db']!r}")
        return Target("cluster", _addresses(hosts, 6379), flavour, read, tls)
    service, _, db = path.partition("/")
    if not service:
        raise ConfigError("name the service that the sentinels watch: redis+sentinel://h1,h2,h3/service")
    if db:
        read["db"] = int(db)
    timeouts = {name: value for name, value in read.items() if name.startswith("socket_")}
    # An option of TLS asks for TLS, unless the contrary was said.
    sentinel_tls = _is_yes(of_sentinels.get("ssl", any(name.startswith("ssl_") for name in of_sentinels)))
    return Target(
        "sentinel", _addresses(hosts, 26379), flavour, read, tls, service,
        {**timeouts, **settled({name: _typed(name, value) for name, value in of_sentinels.items()})}, sentinel_tls,
    )  # fmt: skip


def _typed(name: str, value: Any) -> Any:
    """A query parameter that redis-py did not know by our name for it, as it would have read it."""
    read = redis.connection.URL_QUERY_ARGUMENT_PARSERS.get(name)
    return read(value) if read and isinstance(value, str) else value  # type: ignore[operator]


def _is_yes(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def _addresses(hosts: str, port: int) -> tuple[Address, ...]:
    """h1:1,h2,[::1]:3 as addresses."""
    found = []
    for text in hosts.split(","):
        part = urlsplit(f"//{text.strip()}")
        if not part.hostname:
            raise ConfigError(f"{text!r} is not a host in {hosts!r}")
        found.append((part.hostname, part.port or port))
    return tuple(found)


def _of_object(client: Any, flavour: str, options: dict[str, Any]) -> Target:
    service = options.pop("service", None)
    if isinstance(client, (redis.cluster.RedisCluster, redis.asyncio.cluster.RedisCluster)):
        nodes = client.nodes_manager.startup_nodes.values()
        kwargs = client.get_connection_kwargs()
        addresses = tuple((node.host, int(node.port)) for node in nodes)
        return Target("cluster", addresses, flavour, carried(kwargs, options), has_tls({**kwargs, **options}))
    if isinstance(client, (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel)):
        if not service:
            raise ConfigError("name the service that the sentinels watch: connect(sentinel, service='mymaster')")
        return _of_sentinel(client, service, client.connection_kwargs, flavour, options)
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        raise ConfigError(f"connect() takes a Redis, RedisCluster or Sentinel object, not {client!r}")
    if hasattr(pool, "sentinel_manager"):
        kwargs = dict(pool.connection_kwargs)
        return _of_sentinel(pool.sentinel_manager, pool.service_name, kwargs, flavour, options, pool.connection_class)
    server = server_of(pool, flavour, options)
    return Target("one", (server.address,), flavour, server.options, server.tls)


def _of_sentinel(
    sentinel: Any,
    service: str,
    kwargs: dict[str, Any],
    flavour: str,
    options: dict[str, Any],
    made_by: type | None = None,
) -> Target:
    watchers = [server_of(watcher.connection_pool, flavour, {}, port=26379) for watcher in sentinel.sentinels]
    return Target(
        "sentinel", tuple(watcher.address for watcher in watchers), flavour, carried(kwargs, options),
        has_tls({**kwargs, **options}, made_by), service, watchers[0].options, watchers[0].tls,
    )  # fmt: skip
