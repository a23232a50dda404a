"""Where below a store's keys Lockline's own begin, as the URL says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...errors import ConfigError
from ..url import Grammar, Location

DEFAULT_PREFIX: Final = "lockline"
OURS: Final = {"claims", "clients", "kept"}
"""What Lockline calls its own folders below a prefix; another prefix in there would mix its keys with those."""


class Below(NamedTuple):
    """What a URL says of a store with keys."""

    found: Location
    prefix: str
    url: str
    """The way here for people: the secrets left out."""


def read(grammar: Grammar, url: str, given: Mapping[str, Any] | None, system: str) -> Below:
    """The URL by this grammar; ConfigError for whatever is wrong with it."""
    scheme = grammar.example.partition(":")[0]
    if not isinstance(url, str) or not url.startswith(f"{scheme}://"):
        raise ConfigError(f"{system} is reached by URL: {grammar.example}")
    if re.match(rf"{scheme}://([^/@]*@)?([^/]*,)?https?:/", url):
        raise ConfigError(
            f"the hosts of a URL of {system} have no http:// or https:// before them: {grammar.example}, "
            "and ?tls=yes (or ?ca=…) at its end for https"
        )
    found = grammar.read(url, given)
    asked = found.options.get("prefix", found.path).strip("/")
    if found.path not in ("", asked):
        raise ConfigError(f"the prefix is {found.path!r} by the path of the URL and {asked!r} by the option")
    prefix = asked or DEFAULT_PREFIX
    if OURS.intersection(prefix.split("/")[1:]):
        raise ConfigError(
            f"the prefix {prefix!r} may lie among the keys of another; call no folder claims, clients or kept"
        )
    return Below(found, prefix, found.at("" if prefix == DEFAULT_PREFIX else prefix, prefix=None).url)
