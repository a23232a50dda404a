"""From `etcd://user:password@h1,h2,h3/prefix?ca=…` to where and how to connect; every mistake is found here."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ...errors import ConfigError

DEFAULT_PORT = 2379
DEFAULT_PREFIX = "lockline"
KNOWN = ("tls", "ca", "cert", "key")
OURS = {"claims", "clients"}
"""What Lockline calls its own folders below a prefix; another prefix in there would mix its keys with those claims."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One member's client address."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Address:
    """All that a connection needs to know."""

    endpoints: tuple[Endpoint, ...]
    prefix: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def scheme(self) -> str:
        """As HTTP/2 calls it."""
        return "http" if self.tls is None else "https"

    @property
    def url(self) -> str:
        """The way here for people: the password left out."""
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        hosts = ",".join(map(str, self.endpoints))
        query = "&".join(f"{name}={quote(value, safe='/')}" for name, value in self.options)
        path = "" if self.prefix == DEFAULT_PREFIX else f"/{quote(self.prefix)}"
        return f"etcd://{user}{hosts}{path}" + (f"?{query}" if query else "")


def parse(url: str, user: str | None = None, password: str | None = None) -> Address:
    """The address in this URL; ConfigError for whatever is wrong with it."""
    if not isinstance(url, str) or not url.startswith("etcd://"):
        raise ConfigError("etcd is reached by URL: etcd://host1,host2,host3")
    if re.match(r"etcd://([^/@]*@)?([^/]*,)?https?:/", url):
        raise ConfigError(
            "the hosts of an etcd URL have no http:// or https:// before them: etcd://h1:2379,h2:2379, "
            "and ?tls=yes (or ?ca=…) at its end for https"
        )
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    if credentials:
        name, _, secret = credentials.partition(":")
        user, password = user or unquote(name), password or unquote(secret) or None
    if user and password is None:
        raise ConfigError("etcd needs a password with a user: etcd://user:password@host, or connect(url, password=…)")
    if parts.fragment:
        raise ConfigError("an etcd URL has no #fragment; quote the # in a password or prefix")
    query = parse_qsl(parts.query, keep_blank_values=True)
    unknown = sorted({name for name, _ in query} - set(KNOWN))
    if unknown:
        raise ConfigError(f"an etcd URL does not know {', '.join(unknown)}; it knows {', '.join(KNOWN)}")
    endpoints = tuple(_endpoint(host) for host in hosts.split(",") if host) or (Endpoint("localhost", DEFAULT_PORT),)
    try:
        prefix = unquote(parts.path.strip("/"), errors="strict") or DEFAULT_PREFIX
        for text in (prefix, user or "", password or ""):
            text.encode()
    except (UnicodeError, AttributeError):
        raise ConfigError("the prefix, the user and the password of etcd are text in UTF-8") from None
    if OURS.intersection(prefix.split("/")[1:]):
        raise ConfigError(f"the prefix {prefix!r} may lie among the keys of another; call no folder claims or clients")
    return Address(endpoints, prefix, user or None, password, _tls(dict(query)), tuple(query))


def _endpoint(text: str) -> Endpoint:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as problem:
        raise ConfigError(f"{text!r} is not a host and port: {problem}") from None
    if not host:
        raise ConfigError(f"{text!r} names no host")
    return Endpoint(host, DEFAULT_PORT if port is None else port)


def _tls(query: dict[str, str]) -> ssl.SSLContext | None:
    wanted = query.get("tls", "yes" if set(query) & {"ca", "cert"} else "no")
    if wanted not in ("yes", "no"):
        raise ConfigError(f"tls is yes or no, not {wanted!r}")
    if "key" in query and "cert" not in query:
        raise ConfigError("a key needs its certificate: ?cert=…&key=…")
    if wanted == "no":
        if set(query) & {"ca", "cert"}:
            raise ConfigError("ca and cert have no meaning with tls=no")
        return None
    try:
        context = ssl.create_default_context(cafile=query.get("ca"))
        if "cert" in query:
            context.load_cert_chain(query["cert"], query.get("key"))
    except (OSError, ValueError) as problem:
        raise ConfigError(f"the certificates cannot be read: {problem}") from None
    context.set_alpn_protocols(["h2"])
    return context
