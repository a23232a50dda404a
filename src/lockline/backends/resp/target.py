"""One server: where it is, and how redis-py connects to it.

Own connections, because a claim must never wait for a reply that another user of a shared pool left behind, and because
redis-py's own retries would repeat requests without Lockline knowing. Login, TLS, protocol and timeouts stay the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

import redis.asyncio.connection
import redis.asyncio.retry
import redis.connection
import redis.retry
from redis.backoff import NoBackoff

from ...core.arguments import a_ttl
from ..url import Tls
from ..url import spelled as spelled

Address = tuple[str, int]
"""Host and port; a Unix socket is its path and port 0."""

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
    "driver_info", "lib_name", "lib_version",
})  # fmt: skip

try:
    from redis.maint_notifications import MaintNotificationsConfig

    # They ask the server for more round trips at each connect, and swallow a cancel that comes meanwhile.
    _QUIETLY: dict[str, Any] = {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}
except ImportError:  # redis-py before it had them
    _QUIETLY = {}
# Nor the two round trips that tell the server the library's name and version.
_QUIETLY |= {"driver_info": None} if find_spec("redis.driver_info") else {"lib_name": None, "lib_version": None}


@dataclass(frozen=True)
class Server:
    """A server and the login that is used there; nothing is open."""

    address: Address
    flavour: str
    options: dict[str, Any] = field(default_factory=dict)
    """Those of redis-py's connections, without the address."""
    tls: bool = False

    @property
    def patience(self) -> float:
        """Seconds that one try may take."""
        return float(self.options.get("socket_timeout", PATIENCE))

    def connection(self) -> Any:
        """A connection of redis-py, not yet open, that repeats nothing by itself."""
        asynchronous = self.flavour == "asyncio"
        module: Any = redis.asyncio.connection if asynchronous else redis.connection
        retry: Any = redis.asyncio.retry.Retry if asynchronous else redis.retry.Retry
        options = {name: value for name, value in self.options.items() if self.tls or not name.startswith("ssl_")}
        options.setdefault("socket_timeout", PATIENCE)
        options.setdefault("socket_connect_timeout", options["socket_timeout"])
        host, port = self.address
        if not port:
            make, options["path"] = module.UnixDomainSocketConnection, host
        else:
            make = module.SSLConnection if self.tls else module.Connection
            options["host"], options["port"] = host, port
        return make(**options, **_QUIETLY, retry=retry(NoBackoff(), 0), decode_responses=False)


def settled(options: dict[str, Any]) -> dict[str, Any]:
    """The options that our connections take; what is None was not said, but for the one that has None for a value."""
    kept = {name: value for name, value in options.items() if name not in _OF_POOLS and value is not None}
    if options.get("ssl_cert_reqs", "") is None:
        kept["ssl_cert_reqs"] = "none"
    for name in ("socket_timeout", "socket_connect_timeout"):
        if name in kept:
            kept[name] = a_ttl(kept[name], name)
    return kept


def carried(kwargs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """What a caller's client was made with, as far as it concerns us, and what the caller says besides."""
    kept = {
        name: value
        for name, value in kwargs.items()
        # The asyncio flavour does not know some switches of TLS that are off by default.
        if name in _CARRIED or name == "ssl_check_hostname" or (name.startswith("ssl_") and value is not False)
    }
    return settled({**kept, **options})


TLS_NAMES: Final = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile", "key_password": "ssl_password"}
"""What redis-py calls what a URL says."""


def tls_options(tls: Tls | None) -> dict[str, Any]:
    """How a server is trusted, for redis-py."""
    if tls is None:
        return {}
    said = {theirs: getattr(tls, ours) for ours, theirs in TLS_NAMES.items() if getattr(tls, ours) is not None}
    if tls.check_hostname is not None:
        said["ssl_check_hostname"] = tls.check_hostname
    return said if tls.verify else {**said, "ssl_cert_reqs": "none", "ssl_check_hostname": False}


def has_tls(kwargs: dict[str, Any], made_by: type | None = None) -> bool:
    """Whether a client that was made with these arguments encrypts."""
    made_by = made_by or kwargs.get("connection_class")
    return bool(kwargs.get("ssl")) or (made_by is not None and "SSL" in made_by.__name__)


def server_of(pool: Any, flavour: str, options: dict[str, Any], *, port: int = 6379) -> Server:
    """The server that a pool of redis-py's leads to, and its login."""
    kwargs = pool.connection_kwargs
    if kwargs.get("path"):
        return Server((kwargs["path"], 0), flavour, carried(kwargs, options))
    address = (kwargs.get("host") or "localhost", int(kwargs.get("port") or port))
    return Server(address, flavour, carried(kwargs, options), has_tls({**kwargs, **options}, pool.connection_class))
