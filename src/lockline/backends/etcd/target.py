"""From `etcd://user:password@h1,h2,h3/prefix?ca=…` to where and how to connect; every mistake is found here."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError
from ..keyed.prefix import read
from ..url import TLS, Endpoint, Grammar, Tls, a_text

GRAMMAR = Grammar("etcd://h1:2379,h2:2379,h3:2379/prefix", 2379, {**TLS, "prefix": a_text})


@dataclass(frozen=True, slots=True)
class EtcdTarget:
    """All that a connection needs to know."""

    url: str
    """The way here for people: the secrets left out."""
    endpoints: tuple[Endpoint, ...]
    prefix: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    tls_for_http: ssl.SSLContext | None = None
    """The same for HTTP/1.1, where etcd tells the time."""

    @property
    def scheme(self) -> str:
        """As HTTP/2 calls it."""
        return "http" if self.tls is None else "https"


def parse(url: str, given: Mapping[str, Any] | None = None) -> EtcdTarget:
    """The target in this URL; ConfigError for whatever is wrong with it."""
    found, prefix, shown = read(GRAMMAR, url, given, "etcd")
    if found.user and found.password is None:
        raise ConfigError("etcd needs a password with a user: etcd://user:password@host, or connect(url, password=…)")
    tls = found.tls()
    return EtcdTarget(
        shown, found.hosts, prefix, found.user, found.password, _context(tls, "h2"), _context(tls, "http/1.1")
    )


def _context(tls: Tls | None, protocol: str) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = tls.context()
    context.set_alpn_protocols([protocol])
    return context
