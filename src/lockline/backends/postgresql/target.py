"""From `postgresql://user:password@h1,h2/database?schema=…` to where and how to connect; every mistake is found here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...errors import ConfigError
from ..sql.target import PATIENCE, SqlTarget
from ..url import TLS, Endpoint, Grammar, Location, a_count, a_number, a_text, scheme_of
from .engine import settings_of

LIBPQ: Final = (
    "ssl", "gss", "krb", "keepalives", "application_name", "target_session_attrs", "options", "passfile", "service", "channel_binding",
    "tcp_user_timeout", "require_auth", "connect_timeout", "min_protocol_version", "max_protocol_version", "fallback_application_name",
)  # fmt: skip
"""What is handed on to libpq as it is written."""

KEYWORDS: Final = frozenset(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults())


def a_schema(value: object, what: str) -> str:
    """A name that needs no quotes: it stands in statements."""
    text = a_text(value, what)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", text):
        raise ConfigError(f"{what} is a name of small letters, digits and _, at most 41 long, not {text!r}")
    if text.startswith("pg_"):
        raise ConfigError(f"{what} begins with pg_, which PostgreSQL keeps for its own schemas")
    return text


def a_listener(value: object, what: str) -> str:
    """The URL of a direct way; what else is wrong with it is told when it is read."""
    text = a_text(value, what)
    if scheme_of(text) not in ("postgresql", "postgres"):
        raise ConfigError(f"{what} is a postgresql:// URL")
    return text


GRAMMAR: Final = Grammar(
    "postgresql://user@h1:5432,h2:5432/database", 5432,
    {
        **TLS, "schema": a_schema, "prefix": a_text, "listen": a_listener, "timeout": a_number(0.01, 60), "max_connections": a_count(1),
        "host": a_text,
    },
    hands_on=LIBPQ,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PostgresqlLogin:
    """One server, and how to log in there."""

    where: str
    parameters: Mapping[str, Any] = field(repr=False)
    patience: float = PATIENCE

    def conninfo(self, **more: Any) -> bytes:
        """As libpq wants it."""
        return make_conninfo(**{**self.parameters, **more}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresqlTarget(SqlTarget):
    """All that a client needs to know."""

    servers: tuple[PostgresqlLogin, ...]
    listen: tuple[PostgresqlLogin, ...] | None = None
    """A direct way, where the one above leads through a pooler."""


def understand(target: Any, given: Mapping[str, Any]) -> PostgresqlTarget:
    """The target of a URL, or of what the user already has, whose settings are used for connections of our own."""
    if isinstance(target, str):
        return parse(target, given)
    options, others = GRAMMAR.values("postgresql", {name: value for name, value in given.items() if value is not None})
    trust = _trust(Location("postgresql", (), "", options))
    settings = _settings(target, trusted=bool(trust) or "sslmode" in others)
    said = {name: value for name, value in settings.items() if name in KEYWORDS and value not in (None, "")}
    said = {"application_name": "lockline", **said, **trust, **others, "client_encoding": "UTF8"}
    patience = options.get("timeout", PATIENCE)
    listen = None if "listen" not in options else parse(options["listen"])
    host, port = str(said.get("host") or "localhost"), str(said.get("port") or "5432")
    user = said.get("user")
    shown = {**options, **({} if listen is None else {"listen": listen.url})}
    if host.startswith("/") or "," in host:
        shown, host, port = {**shown, "host": host}, "localhost", port.partition(",")[0]
    location = Location(
        "postgresql", (Endpoint(host, int(port), None if user is None else str(user)),), str(said.get("dbname") or ""), shown
    )  # fmt: skip
    return PostgresqlTarget(
        url=location.url, servers=(a_server(said, patience),), listen=None if listen is None else listen.servers, **_shares(options)
    )  # fmt: skip


def _shares(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was said of how much of the database we take."""
    return {name: options[name] for name in ("schema", "prefix", "max_connections") if name in options}


def _settings(target: Any, *, trusted: bool) -> dict[str, Any]:
    """What libpq has to know, from a pool or connection of psycopg, an engine of SQLAlchemy, or Django's connection."""
    if hasattr(target, "get_connection_params"):
        return dict(target.get_connection_params())
    if hasattr(target, "kwargs") and hasattr(target, "conninfo"):
        if callable(target.conninfo) or callable(target.kwargs):
            raise ConfigError("this pool makes up its settings each time anew; connect by URL")
        return {**conninfo_to_dict(target.conninfo), **(target.kwargs or {})}
    if hasattr(target, "info") and hasattr(target, "pgconn"):
        return {**target.info.get_parameters(), "password": target.info.password}
    if hasattr(target, "url"):
        return settings_of(target, trusted=trusted)
    raise ConfigError(
        f"postgresql takes a URL, a pool of psycopg, an engine of SQLAlchemy or Django's connection, not {type(target).__name__}"
    )


def parse(url: str, given: Mapping[str, Any] | None = None) -> PostgresqlTarget:
    """The target in this URL; ConfigError for whatever is wrong with it."""
    if "@" in url.partition("://")[2].partition("?")[0].partition("/")[2]:
        # What stands before it would be taken for a host, and shown.
        raise ConfigError("there is an @ behind the first / of the URL; write the / in a password as %2F")
    found = GRAMMAR.read(url, given)
    options = found.options
    listen = options.get("listen")
    direct = None
    shown = found
    if listen is not None:
        direct = parse(listen)
        shown = found.at(found.path, listen=direct.url)
    patience = options.get("timeout", PATIENCE)
    return PostgresqlTarget(
        url=shown.url, servers=_servers(found, patience), listen=None if direct is None else direct.servers, **_shares(options)
    )  # fmt: skip


def _servers(found: Location, patience: float) -> tuple[PostgresqlLogin, ...]:
    said: dict[str, Any] = {"application_name": "lockline", **_trust(found), **found.others, "client_encoding": "UTF8"}
    if found.path:
        said["dbname"] = found.path
    if len(found.hosts) > 1:
        said.setdefault("target_session_attrs", "primary")
    servers = []
    for host in found.hosts:
        login = {"user": host.user, "password": host.password}
        address = {"host": found.options.get("host", host.host), "port": host.port}
        servers.append(a_server({**said, **{k: v for k, v in login.items() if v}, **address}, patience))
    return tuple(servers)


def a_server(parameters: Mapping[str, Any], patience: float = PATIENCE) -> PostgresqlLogin:
    """The server of these parameters of libpq; ConfigError for one that it does not know."""
    host, port = str(parameters.get("host", "")), int(str(parameters.get("port") or 5432).partition(",")[0])
    database = parameters.get("dbname")
    where = host if host.startswith("/") else str(Endpoint(host or "localhost", port))
    server = PostgresqlLogin(f"{where}/{database}" if database else where, parameters, patience)
    try:
        server.conninfo()
    except psycopg.ProgrammingError as problem:
        raise ConfigError(f"postgresql: {problem}") from None
    return server


def _trust(found: Location) -> dict[str, Any]:
    tls = found.tls()
    if tls is None:
        return {"sslmode": "disable"} if found.options.get("tls") is False else {}
    verified = "verify-ca" if tls.check_hostname is False else "verify-full"
    mode = verified if tls.verify else "require"
    said = {"sslmode": mode, "sslcert": tls.cert, "sslkey": tls.key, "sslpassword": tls.key_password}
    if tls.verify:
        said["sslrootcert"] = tls.ca or "system"
    return {name: value for name, value in said.items() if value is not None}
