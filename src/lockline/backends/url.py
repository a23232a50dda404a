"""URLs of stores, as people write them and as messages may show them."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

PORTS: Final = {6379: "redis", 26379: "redis+sentinel", 2181: "zk", 2379: "etcd"}
"""Whose port it usually is."""
_SECRET = re.compile(r"((?:password|secret|token|key)[^=&#]*=)([^&#]*)", re.IGNORECASE)


def redacted(url: str) -> str:
    """The URL without its login and without whatever else sounds like a secret."""
    head, at, rest = url.rpartition("@")
    if at:
        scheme, slashes, _ = head.partition("//")
        if not slashes:
            scheme = "".join(scheme.partition(":")[:2]) if ":" in scheme else ""
        url = f"{scheme}{slashes}…@{rest}"
    return _SECRET.sub(r"\1…", url)


def scrubbed(message: str, url: str) -> str:
    """The message without the parts of the URL's login that it quotes, whole or in pieces as a parser cut them, and without
    whatever else of the URL sounds like a secret.
    """
    pieces = {text for _, value in _SECRET.findall(url) for text in (value, unquote(value))}
    head, at, _ = url.rpartition("@")
    if at:
        login = head.partition("//")[2] or head.partition(":")[2]
        password = login.partition(":")[2] or login
        pieces |= {login, unquote(login), password, unquote(password), *re.split(r"[/?#:@,\[\]]", password)}
    for piece in sorted(pieces, key=len, reverse=True):
        if len(piece) >= 3:
            message = message.replace(piece, "…")
    return message


def guess(text: str) -> str | None:
    """The URL that somebody meant who wrote a host and a port."""
    found = re.fullmatch(r"([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})((?:,[\w.\[\]:-]+)*)(/.*)?", text)
    if found is None:
        return None
    scheme = PORTS.get(int(found[2]))
    return None if scheme is None else f"{scheme}://{text}"


def shortened(value: object) -> str:
    """The value as a message may show it: no page of it, and none of its secrets."""
    text = redacted(repr(value))
    return text if len(text) <= 80 else f"{text[:79]}…"
