"""From `etcd://user:password@h1,h2,h3/prefix?ca=…` to where and how to connect; every mistake is found here."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError
from ..url import TLS, Endpoint, Grammar, Tls, a_text

DEFAULT_PREFIX = "lockline"
GRAMMAR = Grammar("etcd://h1:2379,h2:2379,h3:2379/prefix", 2379, {**TLS, "prefix": a_text})
OURS = {"claims", "clients"}
"""What Lockline calls its own folders below a prefix; another prefix in there would mix its keys with those claims."""


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

    @property
    def scheme(self) -> str:
        """As HTTP/2 calls it."""
        return "http" if self.tls is None else "https"


def parse(url: str, given: Mapping[str, Any] | None = None) -> EtcdTarget:
    """The target in this URL; ConfigError for whatever is wrong with it."""
    if not isinstance(url, str) or not url.startswith("etcd://"):
        raise ConfigError("etcd is reached by URL: etcd://host1,host2,host3")
    if re.match(r"etcd://([^/@]*@)?([^/]*,)?https?:/", url):
        raise ConfigError(
            "the hosts of an etcd URL have no http:// or https:// before them: etcd://h1:2379,h2:2379, "
            "and ?tls=yes (or ?ca=…) at its end for https"
        )
    found = GRAMMAR.read(url, given)
    if found.user and found.password is None:
        raise ConfigError("etcd needs a password with a user: etcd://user:password@host, or connect(url, password=…)")
    asked = found.options.get("prefix", found.path).strip("/")
    if found.path not in ("", asked):
        raise ConfigError(f"the prefix is {found.path!r} by the path of the URL and {asked!r} by the option")
    prefix = asked or DEFAULT_PREFIX
    if OURS.intersection(prefix.split("/")[1:]):
        raise ConfigError(f"the prefix {prefix!r} may lie among the keys of another; call no folder claims or clients")
    shown = found.at("" if prefix == DEFAULT_PREFIX else prefix, prefix=None).url
    return EtcdTarget(shown, found.hosts, prefix, found.user, found.password, _context(found.tls()))


def _context(tls: Tls | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = tls.context()
    context.set_alpn_protocols(["h2"])
    return context
