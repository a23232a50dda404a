"""From `mysql://user:password@h1,h2/database?prefix=…` to where and how to connect; every mistake is found here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import ConfigError
from ..sql.target import DEFAULT_PREFIX, DEFAULT_SCHEMA, MOST, PATIENCE, SqlTarget
from ..url import TLS, Grammar, a_count, a_number, a_text

LONGEST_PREFIX: Final = 200
"""Bytes: with a name's 512 it has to fit into an index."""

GRAMMAR: Final = Grammar(
    "mysql://user@h1:3306,h2:3306/database", 3306,
    {**TLS, "prefix": a_text, "timeout": a_number(0.01, 60), "max_connections": a_count(1), "socket": a_text},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MysqlLogin:
    """One server, and how to log in there."""

    where: str
    parameters: Mapping[str, Any] = field(repr=False)

    @property
    def tls(self) -> bool:
        """Whether it was asked for."""
        return "ssl" in self.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlTarget(SqlTarget):
    """All that a client needs to know; the schema is what MySQL calls a database."""

    servers: tuple[MysqlLogin, ...]
    patience: float = PATIENCE

    @property
    def greetings(self) -> tuple[str, str]:
        """The statements that begin each session, so that no step depends on a default of the server or the user."""
        return (
            # A step that its client no longer waits for must not come after its withdrawal is forgotten.
            f"SET SESSION innodb_lock_wait_timeout = {math.ceil(min(self.patience, 4.0))}",
            # With READ UNCOMMITTED a look would see a removal that is rolled back: two holders.
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )


def parse(url: str, given: Mapping[str, Any] | None = None) -> MysqlTarget:
    """The target in this URL; ConfigError for whatever is wrong with it."""
    if "@" in url.partition("://")[2].partition("?")[0].partition("/")[2]:
        # What stands before it would be taken for a host, and shown.
        raise ConfigError("there is an @ behind the first / of the URL; write the / in a password as %2F")
    found = GRAMMAR.read(url, given)
    options = found.options
    database = found.path or DEFAULT_SCHEMA
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
        servers.append(MysqlLogin(f"{path or host}/{database}", {**trust, **said}))
    return MysqlTarget(
        url=found.url, servers=tuple(servers), schema=database, prefix=prefix,
        max_connections=options.get("max_connections", MOST), patience=options.get("timeout", PATIENCE),
    )  # fmt: skip
