"""What the caller named (a URL, or a client of redis-py) as the addresses and options of connections of our own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.sentinel

from ...errors import ConfigError
from ..resp.target import PATIENCE, TLS_NAMES, Address, Server, carried, has_tls, server_of, settled, tls_options
from ..url import TLS, Endpoint, Grammar, Location, a_count, a_number, a_text, scheme_of

Kind = Literal["one", "sentinel", "cluster"]

OWN: Final = {"prefix": a_text, "wait_replicas": a_count(0), "max_connections": a_count(1)}
"""What is Lockline's and no connection's."""
_OPTIONS: Final = {**TLS, **OWN, "timeout": a_number(0.001, 3600), "db": a_count(0)}
# All the others are redis-py's.
_HOW: Final[dict[str, Any]] = {
    "options": _OPTIONS,
    "old": {"ssl": "tls", "socket_timeout": "timeout"},
    "hands_on": ("",),
}
ONE: Final = Grammar("redis://host:6379/0", 6379, **_HOW)
GRAMMARS: Final = {
    "redis": ONE,
    "rediss": ONE,
    "unix": Grammar("unix:///path/redis.sock", 0, **_HOW),
    "redis+sentinel": Grammar("redis+sentinel://h1,h2,h3/service", 26379, host=None, **_HOW),
    "redis+cluster": Grammar("redis+cluster://h1,h2,h3", 6379, host=None, **_HOW),
}


@dataclass(frozen=True)
class Target:
    """Where the servers are and how to talk to them."""

    url: str
    """The way there without secrets."""
    kind: Kind
    addresses: tuple[Address, ...]
    flavour: str
    options: dict[str, Any]
    tls: bool = False
    service: str = ""
    sentinel_options: dict[str, Any] = field(default_factory=dict)
    sentinel_tls: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)
    """What was said of `OWN`."""

    @property
    def patience(self) -> float:
        """Seconds that one try may take."""
        return float(self.options.get("socket_timeout", PATIENCE))

    def server(self, address: Address, *, sentinel: bool = False) -> Server:
        """One of the servers, or one of the sentinels."""
        if sentinel:
            return Server(address, self.flavour, self.sentinel_options, self.sentinel_tls)
        return Server(address, self.flavour, self.options, self.tls)


def understand(given: Any, flavour: str, options: dict[str, Any]) -> Target:
    """The target that a URL or a client object stands for; nothing is sent."""
    if "ssl_cert_reqs" in options:
        # The one option that has None for a value.
        options = {**options, "ssl_cert_reqs": options["ssl_cert_reqs"] or "none"}
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
    # redis-py takes a port without a host, too.
    url = re.sub(r"^(rediss?://(?:[^/?]*@)?)(?=:[0-9]+(?:[/?]|$))", r"\1localhost", url)
    found = GRAMMARS[scheme_of(url)].read(url, {"user": options.get("username"), **options, "username": None})
    read, of_sentinels = _of_redis(found)
    tls = read.pop("tls")
    own = _own(found.options)
    service, path = "", found.path
    if found.scheme == "redis+sentinel":
        service, _, path = found.path.partition("/")
        if not service:
            raise ConfigError(f"name the service that the sentinels watch: {GRAMMARS[found.scheme].example}")
    if found.scheme == "unix":
        if not path:
            raise ConfigError(f"the URL names no socket; write {GRAMMARS[found.scheme].example}")
        if tls:
            raise ConfigError("a Unix socket has no TLS")
        return Target(found.url, "one", ((path, 0),), flavour, read, own=own)
    db = found.options.get("db", int(path) if path.isdecimal() else path or 0)
    if not isinstance(db, int):
        raise ConfigError(f"the path of a {found.scheme}:// URL ends with the number of a database, not with {db!r}")
    if db:
        read["db"] = db
    addresses = tuple((host.host, host.port) for host in found.hosts)
    shown = found.at("/".join(filter(None, (service, str(db or "")))), db=None).url
    if found.scheme == "redis+cluster":
        if db:
            raise ConfigError(f"a Redis cluster has only database 0, not {db}")
        return Target(shown, "cluster", addresses, flavour, read, tls, own=own)
    if found.scheme != "redis+sentinel":
        if len(addresses) > 1:
            raise ConfigError(f"{found.scheme}:// is one server; several are redis+sentinel, redis+cluster or redlock")
        return Target(shown, "one", addresses, flavour, read, tls, own=own)
    timeouts = {name: value for name, value in read.items() if name.startswith("socket_")}
    # An option of TLS asks for TLS, unless the contrary was said.
    sentinel_tls = of_sentinels.pop("ssl", any(name.startswith("ssl_") for name in of_sentinels))
    watching = {**timeouts, **settled(of_sentinels)}
    return Target(shown, "sentinel", addresses, flavour, read, tls, service, watching, _is_yes(sentinel_tls), own)


def _of_redis(found: Location) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was said as redis-py's connections take it, and what was said for the sentinels."""
    read = {name: _typed(name, value) for name, value in found.others.items()}
    begins = "sentinel_"
    sentinels = {name.removeprefix(begins): read.pop(name) for name in tuple(read) if name.startswith(begins)}
    read |= {"username": found.user or read.get("username"), "password": found.password or read.get("password")}
    read |= {"socket_timeout": found.options.get("timeout"), "db": found.options.get("db")}
    tls = found.tls(always=found.scheme == "rediss")
    settle = settled({**read, **tls_options(tls)})
    return {**settle, "tls": tls is not None}, {name: _typed(name, value) for name, value in sentinels.items()}


def _own(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in OWN if name in options}


def _typed(name: str, value: Any) -> Any:
    """A query parameter as redis-py reads it, which knows the types of its own."""
    if not isinstance(value, str):
        return value
    if name == "protocol":
        return int(value)
    read: Any = redis.connection.URL_QUERY_ARGUMENT_PARSERS.get(name, str)
    return read(value)


def _is_yes(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def _of_object(client: Any, flavour: str, given: dict[str, Any]) -> Target:
    service = given.pop("service", None)
    ours, others = ONE.values("redis", {name: value for name, value in given.items() if value is not None})
    besides, _ = _of_redis(Location("redis", (Endpoint("", 0),), "", ours, others))
    tls = besides.pop("tls")
    # None takes back what the client was made with.
    besides |= {name: None for name, value in given.items() if value is None}
    if isinstance(client, (redis.cluster.RedisCluster, redis.asyncio.cluster.RedisCluster)):
        kwargs = client.get_connection_kwargs()
        addresses = tuple((node.host, int(node.port)) for node in client.nodes_manager.startup_nodes.values())
        return _named(Target("", "cluster", addresses, flavour, carried(kwargs, besides), tls or has_tls(kwargs)), ours)
    pool: Any = getattr(client, "connection_pool", None)
    if isinstance(client, (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel)):
        if not service:
            raise ConfigError("name the service that the sentinels watch: connect(sentinel, service='mymaster')")
        sentinel, kwargs, made_by = client, client.connection_kwargs, None
    elif hasattr(pool, "sentinel_manager"):
        sentinel, service = pool.sentinel_manager, pool.service_name
        kwargs, made_by = pool.connection_kwargs, pool.connection_class
    elif pool is None:
        raise ConfigError(f"connect() takes a Redis, RedisCluster or Sentinel object, not {client!r}")
    else:
        server = server_of(pool, flavour, besides)
        return _named(Target("", "one", (server.address,), flavour, server.options, tls or server.tls), ours)
    watchers = [server_of(watcher.connection_pool, flavour, {}, port=26379) for watcher in sentinel.sentinels]
    addresses, watching = tuple(watcher.address for watcher in watchers), watchers[0]
    tls = tls or has_tls(kwargs, made_by)
    options = carried(kwargs, besides)
    target = Target("", "sentinel", addresses, flavour, options, tls, service, watching.options, watching.tls)
    return _named(target, ours)


def _named(target: Target, said: Mapping[str, Any]) -> Target:
    """The target with the URL that leads where the client object does, and with what the program said besides."""
    own, db = _own(said), str(target.options.get("db") or "")
    (host, port), *_ = target.addresses
    user = target.options.get("username")
    hosts = tuple(Endpoint(*address, user) for address in target.addresses)
    trust = {new: target.options[old] for new, old in TLS_NAMES.items() if target.tls and old in target.options}
    if not port:
        where = Location("unix", (Endpoint("", 0, user),), host, {**own, **({"db": db} if db else {})})
    elif target.kind == "one":
        where = Location("rediss" if target.tls else "redis", hosts, db, {**own, **trust})
    else:
        path = "/".join(filter(None, (target.service, db)))
        where = Location(f"redis+{target.kind}", hosts, path, {**own, **({"tls": True} if target.tls else {}), **trust})
    return replace(target, url=where.url, own=own)
