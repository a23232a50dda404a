"""From `consul://agent1,agent2/prefix?token=…` to where and how to connect; every mistake is found here."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import ConfigError
from ..keyed.prefix import read
from ..url import TLS, Endpoint, Grammar, a_number, a_text

SHORTEST_SESSION: Final = 10.0
"""Consul gives no session a shorter ttl, unless its servers are set up otherwise (`session_ttl_min`)."""
LONGEST_SESSION: Final = 86400.0
GRAMMAR: Final = Grammar(
    "consul://agent:8500/prefix",
    8500,
    {
        **TLS,
        "prefix": a_text,
        "token": a_text,
        "datacenter": a_text,
        "session_ttl": a_number(0.1, LONGEST_SESSION),
    },
)


@dataclass(frozen=True, slots=True)
class ConsulTarget:
    """All that a connection needs to know."""

    url: str
    """The way here for people: the secrets left out."""
    endpoints: tuple[Endpoint, ...]
    prefix: str
    token: str | None = field(default=None, repr=False)
    datacenter: str | None = None
    session_ttl: float = SHORTEST_SESSION
    tls: ssl.SSLContext | None = None


def parse(url: str, given: Mapping[str, Any] | None = None) -> ConsulTarget:
    """The target in this URL; ConfigError for whatever is wrong with it."""
    found, prefix, shown = read(GRAMMAR, url, given, "Consul")
    if found.user or found.password:
        raise ConfigError(
            "Consul has no users: give its ACL token as connect(url, token=…), or with ?token=… in the URL"
        )
    token = found.options.get("token")
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ConfigError("the token of Consul is plain ASCII: it travels in a header")
    tls = found.tls()
    return ConsulTarget(
        shown, found.hosts, prefix, token, found.options.get("datacenter"),
        found.options.get("session_ttl", SHORTEST_SESSION), None if tls is None else tls.context(),
    )  # fmt: skip
