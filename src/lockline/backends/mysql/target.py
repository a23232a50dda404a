"""From `mysql://user:password@h1,h2/database?prefix=…` to where and how to connect; every mistake is found here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import ConfigError
from ..url import TLS, Grammar, a_count, a_number, a_text

DEFAULT_DATABASE: Final = "lockline"
DEFAULT_PREFIX: Final = "lockline"
LONGEST_PREFIX: Final = 200
"""Bytes: with a name's 512 it has to fit into an index."""
PATIENCE: Final = 2.0
"""Seconds after which one unanswered try is given up."""

GRAMMAR: Final = Grammar(
    "mysql://user@h1:3306,h2:3306/database", 3306,
    {**TLS, "prefix": a_text, "timeout": a_number(0.01, 60), "max_connections": a_count(1), "socket": a_text},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Server:
    """One server, and how to log in there."""

    where: str
    parameters: Mapping[str, Any] = field(repr=False)

    @property
    def tls(self) -> bool:
        """Whether it was asked for."""
        return "ssl" in self.parameters


@dataclass(frozen=True, slots=True)
class Target:
    """All that a client needs to know."""

    url: str
    """The way here for people: the secrets left out."""
    servers: tuple[Server, ...]
    database: str = DEFAULT_DATABASE
    prefix: str = DEFAULT_PREFIX
    max_connections: int = 4
    patience: float = PATIENCE

    @property
    def greeting(self) -> str:
        """What each session is told first: a step that nobody waits for any more shall not come late, after its withdrawal is forgotten."""
        return f"SET SESSION innodb_lock_wait_timeout = {math.ceil(min(self.patience, 4.0))}"


def parse(url: str, given: Mapping[str, Any] | None = None) -> Target:
    """The target in this URL; ConfigError for whatever is wrong with it."""
    if "@" in url.partition("://")[2].partition("?")[0].partition("/")[2]:
        # What stands before it would be taken for a host, and shown.
        raise ConfigError("there is an @ behind the first / of the URL; write the / in a password as %2F")
    found = GRAMMAR.read(url, given)
    options = found.options
    database = found.path or DEFAULT_DATABASE
    if not re.fullmatch(r"[0-9A-Za-z_$-]{1,64}", database):
        raise ConfigError(f"the database is a name of letters, digits, _, $ and -, at most 64 long, not {database!r}")
    prefix = options.get("prefix", DEFAULT_PREFIX)
    if len(prefix.encode()) > LONGEST_PREFIX:
        raise ConfigError(f"prefix is at most {LONGEST_PREFIX} bytes long")
    tls = found.tls()
    trust = {} if tls is None else {"ssl": tls.context()}
    path = options.get("socket")
    if path is not None and len(found.hosts) > 1:
        raise ConfigError("a socket leads to one server: name one host, or none")
    servers = []
    for host in found.hosts:
        login = {"user": host.user, "password": host.password}
        address = {"host": host.host, "port": host.port, "unix_socket": path}
        said = {name: value for name, value in {**login, **address}.items() if value}
        servers.append(Server(f"{path or host}/{database}", {**trust, **said}))
    return Target(
        found.url, tuple(servers), database, prefix, options.get("max_connections", 4), options.get("timeout", PATIENCE)
    )  # fmt: skip
