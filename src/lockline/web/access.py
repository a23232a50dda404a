"""Who may look, and who may evict: pure decisions about one request's headers.

Three doors, each for a different stranger. The *token* is for other people and programs that reach the port: whoever has not
read it from the terminal sees nothing. *Host* is for a page elsewhere whose name was turned to this address (DNS rebinding).
*Origin* and the *CSRF* token are for a page elsewhere that sends a request with the visitor's cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

CSRF_HEADER: Final = "x-lockline-csrf"
COOKIE: Final = "lockline-web"
"""Browsers share cookies between the ports of a host, so the port belongs to the name."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing from elsewhere, nothing inline, and no text that is made into markup: the browser itself refuses innerHTML."""

HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
    ("Cache-Control", "no-store"),
)
"""With every answer."""


class Access:
    """The doors of one server."""

    def __init__(self, token: str | None, hosts: Iterable[str] | None, secret: str | None = None) -> None:
        """Without a token somebody else has let the visitor in; without hosts somebody else has checked the name."""
        self._token = token
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        key = (secret or secrets.token_urlsafe(32)).encode()
        self.csrf = hmac.new(key, b"csrf", hashlib.sha256).hexdigest()
        self._session = hmac.new(key, b"session", hashlib.sha256).hexdigest()

    def knows_host(self, host: str) -> bool:
        """Whether the visitor asked for us: by an address, which nobody can turn to another, or by a name that we have."""
        if self._hosts is None:
            return True
        name = _host_name(host)
        return name is not None and (_is_address(name) or name in self._hosts)

    def opens(self, offered: str) -> bool:
        """Whether that is the token."""
        return self._token is not None and _same(offered, self._token)

    def admits(self, headers: Mapping[str, str], cookie: str) -> bool:
        """Whether this visitor has shown the token before."""
        if self._token is None:
            return True
        return _same(_cookie(headers.get("cookie", ""), cookie), self._session)

    def set_cookie(self, cookie: str, path: str, *, secure: bool) -> str:
        """What to send to whoever has shown it; never the token itself."""
        only = "; Secure" if secure else ""
        return f"{cookie}={self._session}; HttpOnly; SameSite=Strict; Path={path or '/'}{only}"

    def refuses_change(self, headers: Mapping[str, str]) -> str:
        """Why this request may change nothing, in words; empty if it may.

        A browser sends Origin with every POST. Whoever sends none is no browser, and the CSRF token stands alone there.
        """
        site = headers.get("sec-fetch-site", "same-origin")
        if site != "same-origin":
            return f"the request comes from another site ({'cross-site' if site == 'cross-site' else 'not this page'})"
        origin = headers.get("origin")
        if origin is not None and not _is_own(origin, headers.get("host", "")):
            return "the request comes from another origin"
        if not _same(headers.get(CSRF_HEADER, ""), self.csrf):
            return "the request has no CSRF token of this server; load the page again"
        return ""


def _same(offered: str, expected: str) -> bool:
    return hmac.compare_digest(offered.encode("utf-8", "surrogateescape"), expected.encode())


def _host_name(host: str) -> str | None:
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # ValueError where it is none
    except ValueError:
        return None
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        return None
    return parts.hostname


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_own(origin: str, host: str) -> bool:
    """Whether the page that sent this came from the host that it was sent to; behind a proxy the scheme may differ."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()


def _cookie(header: str, name: str) -> str:
    # By hand: what other programs of this host have set, on other ports, comes along, and a stricter reader would stop at the first
    # cookie that is not by the book, and not get as far as ours.
    for part in header.split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""
