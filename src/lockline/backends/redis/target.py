"""What the caller named (a URL, or a client of redis-py) as the addresses and options of connections of our own.

Own connections, because a claim must never wait for a reply that another user of a shared pool left behind, and because
redis-py's own retries would repeat requests without Lockline knowing. Login, TLS, protocol and timeouts stay the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.sentinel
from redis.backoff import NoBackoff

from ...core.arguments import a_ttl
from ...errors import ConfigError
from .problems import Address

PATIENCE: Final = 2.0
"""Seconds after which one unanswered try is given up for another, on a new connection (`socket_timeout`)."""

# What survives of a caller's client: everything about who we are and how we talk, nothing about pools and retries.
_CARRIED: Final = frozenset({
    "db", "username", "password", "credential_provider", "client_name", "protocol", "socket_timeout",
    "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options", "socket_type",
})  # fmt: skip
_OF_POOLS: Final = frozenset({
    "max_connections", "timeout", "health_check_interval", "retry_on_timeout", "retry_on_error", "decode_responses",
    "encoding", "encoding_errors", "socket_read_size", "legacy_responses", "ssl", "retry", "maint_notifications_config",
})  # fmt: skip

try:
    from redis.maint_notifications import MaintNotificationsConfig

    # They ask the server for more round trips at each connect, and swallow a cancel that comes meanwhile.
    _QUIETLY: dict[str, Any] = {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}
except ImportError:  # redis-py before it had them
    _QUIETLY = {}

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
        hosts = ",".join(_spelled(address) for address in self.addresses)
        db = f"/{self.options['db']}" if self.options.get("db") else ""
        if self.kind == "sentinel":
            return f"redis+sentinel://{hosts}/{self.service}{db}"
        if self.kind == "cluster":
            return f"redis+cluster://{hosts}"
        if not self.addresses[0][1]:
            return f"unix://{hosts}" + (f"?db={db[1:]}" if db else "")
        return f"{'rediss' if self.tls else 'redis'}://{hosts}{db}"

    def connection(self, address: Address, *, sentinel: bool = False) -> Any:
        """A connection of redis-py to this address, not yet open, that repeats nothing by itself."""
        module: Any = redis.asyncio.connection if self.flavour == "asyncio" else redis.connection
        retry: Any = redis.asyncio.retry.Retry if self.flavour == "asyncio" else redis.retry.Retry
        options = dict(self.sentinel_options if sentinel else self.options)
        tls = self.sentinel_tls if sentinel else self.tls
        if not tls:
            options = {name: value for name, value in options.items() if not name.startswith("ssl_")}
        options.setdefault("socket_timeout", PATIENCE)
        options.setdefault("socket_connect_timeout", options["socket_timeout"])
        host, port = address
        if not port:
            make, options["path"] = module.UnixDomainSocketConnection, host
        else:
            make = module.SSLConnection if tls else module.Connection
            options["host"], options["port"] = host, port
        return make(**options, **_QUIETLY, retry=retry(NoBackoff(), 0), decode_responses=False)


def understand(given: Any, flavour: str, options: dict[str, Any]) -> Target:
    """The target that a URL or a client object stands for; nothing is sent."""
    try:
        target = _of_url(given, flavour, options) if isinstance(given, str) else _of_object(given, flavour, options)
        # Made and thrown away: an option that redis-py does not know is found now, not at the first request.
        for sentinel in (False, True) if target.kind == "sentinel" else (False,):
            target.connection(target.addresses[0], sentinel=sentinel)
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
    read = _settled(read)
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
        {**timeouts, **_settled({name: _typed(name, value) for name, value in of_sentinels.items()})}, sentinel_tls,
    )  # fmt: skip


def _typed(name: str, value: Any) -> Any:
    """A query parameter that redis-py did not know by our name for it, as it would have read it."""
    read = redis.connection.URL_QUERY_ARGUMENT_PARSERS.get(name)
    return read(value) if read and isinstance(value, str) else value  # type: ignore[operator]


def _is_yes(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def _settled(options: dict[str, Any]) -> dict[str, Any]:
    """The options that our connections take; what is None was not said, but for the one that has None for a value."""
    settled = {name: value for name, value in options.items() if name not in _OF_POOLS and value is not None}
    if options.get("ssl_cert_reqs", "") is None:
        settled["ssl_cert_reqs"] = "none"
    for name in ("socket_timeout", "socket_connect_timeout"):
        if name in settled:
            settled[name] = a_ttl(settled[name], name)
    return settled


def _addresses(hosts: str, port: int) -> tuple[Address, ...]:
    """h1:1,h2,[::1]:3 as addresses."""
    found = []
    for text in hosts.split(","):
        part = urlsplit(f"//{text.strip()}")
        if not part.hostname:
            raise ConfigError(f"{text!r} is not a host in {hosts!r}")
        found.append((part.hostname, part.port or port))
    return tuple(found)


def _spelled(address: Address) -> str:
    host, port = address
    if not port:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _of_object(client: Any, flavour: str, options: dict[str, Any]) -> Target:
    service = options.pop("service", None)
    if isinstance(client, (redis.cluster.RedisCluster, redis.asyncio.cluster.RedisCluster)):
        nodes = client.nodes_manager.startup_nodes.values()
        kwargs = client.get_connection_kwargs()
        addresses = tuple((node.host, int(node.port)) for node in nodes)
        return Target("cluster", addresses, flavour, _carried(kwargs, options), _has_tls({**kwargs, **options}))
    if isinstance(client, (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel)):
        if not service:
            raise ConfigError("name the service that the sentinels watch: connect(sentinel, service='mymaster')")
        return _of_sentinel(client, service, client.connection_kwargs, flavour, options)
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        raise ConfigError(f"connect() takes a Redis, RedisCluster or Sentinel object, not {client!r}")
    kwargs = dict(pool.connection_kwargs)
    if hasattr(pool, "sentinel_manager"):
        return _of_sentinel(pool.sentinel_manager, pool.service_name, kwargs, flavour, options, pool.connection_class)
    if kwargs.get("path"):
        return Target("one", ((kwargs["path"], 0),), flavour, _carried(kwargs, options))
    address = (kwargs.get("host") or "localhost", int(kwargs.get("port") or 6379))
    tls = _has_tls({**kwargs, **options}, pool.connection_class)
    return Target("one", (address,), flavour, _carried(kwargs, options), tls)


def _of_sentinel(
    sentinel: Any,
    service: str,
    kwargs: dict[str, Any],
    flavour: str,
    options: dict[str, Any],
    made_by: type | None = None,
) -> Target:
    pools = [watcher.connection_pool for watcher in sentinel.sentinels]
    watching = [pool.connection_kwargs for pool in pools]
    addresses = tuple((each.get("host") or "localhost", int(each.get("port") or 26379)) for each in watching)
    return Target(
        "sentinel", addresses, flavour, _carried(kwargs, options), _has_tls({**kwargs, **options}, made_by), service,
        _carried(watching[0], {}), _has_tls(watching[0], pools[0].connection_class),
    )  # fmt: skip


def _carried(kwargs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """What a caller's client was made with, as far as it concerns us, and what the caller says besides."""
    kept = {
        name: value
        for name, value in kwargs.items()
        # The asyncio flavour does not know some switches of TLS that are off by default.
        if name in _CARRIED or name == "ssl_check_hostname" or (name.startswith("ssl_") and value is not False)
    }
    return _settled({**kept, **options})


def _has_tls(kwargs: dict[str, Any], made_by: type | None = None) -> bool:
    made_by = made_by or kwargs.get("connection_class")
    return bool(kwargs.get("ssl")) or (made_by is not None and "SSL" in made_by.__name__)
