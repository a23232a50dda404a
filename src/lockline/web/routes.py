"""From a request to an answer, the same for ASGI and WSGI: no socket, no loop, no thread here."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs, quote

from ..core import arguments
from ..core.evicting import evict
from ..core.shells import engine_of
from ..errors import ConfigError, LocklineError
from .access import COOKIE, HEADERS, Access
from .audit import Audit, Eviction
from .audit import Outcome as Outcomes
from .board import encoded
from .watch import WatchedBoard

log = logging.getLogger("lockline.web")

LONGEST_BODY: Final = 16 << 10
"""Bytes of a request: a name, a token and a reason are less."""
MOST_FIELDS: Final = 20
"""Parts of a query; the page asks with two."""
LONGEST_REASON: Final = 500
LONGEST_PERSON: Final = 100
TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FILES: Final = (
    "index.html", "page.css", "page.js", "evicting.js", "format.js", "lines.js", "model.js", "opened.js", "row.js", "stream.js",
    "icon.svg",
)  # fmt: skip
"""All that is ever sent from the disk: a name that is not here is not looked for."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a server has read of a request; header names in lower case."""

    method: str
    path: str
    """Below where the app is mounted, with its slash."""
    query: str
    headers: Mapping[str, str]
    mount: str = ""
    secure: bool = False
    address: str = ""
    port: int = 0
    user: str = ""
    """Who the login in front of the page says it is."""

    def asked(self, name: str) -> str:
        """The first value of that name in the query."""
        found = parse_qs(self.query).get(name)
        return found[0] if found else ""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """A whole answer."""

    status: int
    body: bytes
    content_type: str = "application/json"
    more: Sequence[tuple[str, str]] = ()
    bare: bool = False
    """Whether only its headers are sent."""

    @property
    def sent(self) -> bytes:
        """What follows the headers."""
        return b"" if self.bare else self.body

    @property
    def headers(self) -> list[tuple[str, str]]:
        kind = f"{self.content_type}; charset=utf-8"
        return [("Content-Type", kind), ("Content-Length", str(len(self.body))), *HEADERS, *self.more]


STREAM_HEADERS: Final = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    *HEADERS,
    ("X-Accel-Buffering", "no"),
)


@dataclass(frozen=True, slots=True)
class PageStream:
    """An answer without end: what that store shows, as it changes."""

    watch: WatchedBoard


@dataclass(frozen=True, slots=True)
class Change:
    """An eviction that was asked for as it should be; whoever can talk to the store carries it out."""

    watch: WatchedBoard
    eviction: Eviction


@dataclass(frozen=True, slots=True)
class NeedsBody:
    """Nothing stands against this request so far: read its body and ask again with it."""


Outcome = PageAnswer | PageStream | Change | NeedsBody


def problem(status: int, text: str, *more: tuple[str, str]) -> PageAnswer:
    """A refusal, for the page and for people."""
    return PageAnswer(status, encoded({"problem": text}), more=more)


@dataclass(slots=True)
class Site:
    """One page: its stores, its doors, what it may do."""

    watches: Sequence[WatchedBoard]
    titles: Sequence[str]
    access: Access
    allow_evict: bool = False
    audit: Audit = field(default_factory=Audit)
    knows_user: bool = False
    """Whether requests say who asks; otherwise the person is asked."""

    def answer(self, request: PageRequest, body: bytes | None = None) -> Outcome:
        """What to answer; with the body, if it was asked for."""
        if request.query.count("&") >= MOST_FIELDS:
            return problem(400, "no question here has so many parts")
        if request.method != "HEAD":
            return self._answer(request, body)
        # What a GET would get, but for the body; of a stream there is no end to be had.
        outcome = self._answer(replace(request, method="GET"), body)
        return replace(
            outcome if isinstance(outcome, PageAnswer) else PageAnswer(200, b"", "text/event-stream"), bare=True
        )

    def _answer(self, request: PageRequest, body: bytes | None) -> Outcome:
        headers = request.headers
        if not self.access.knows_host(headers.get("host", "")):
            return problem(
                421,
                "this host name is not one of ours; open the page by its address, or allow the name with --allow-host",
            )
        if request.path == "":
            # Without the slash the page's own links would lead beside it.
            return PageAnswer(308, b"", "text/plain", [("Location", quote(request.mount or "") + "/")])
        if request.path == "/" and request.method == "GET" and request.asked("token"):
            return self._let_in(request)
        if not self.access.admits(headers, _cookie_name(request)):
            return _stranger(request)
        if request.method == "GET":
            return self._get(request)
        if request.path != "/api/evict" or request.method != "POST":
            return problem(405, "this page can be read, and nothing else", ("Allow", "GET, HEAD"))
        if not self.allow_evict:
            return problem(403, "this page only shows; start it with --allow-evict to take locks away")
        if refusal := self.access.refuses_change(headers):
            return problem(403, refusal)
        if body is None:
            return NeedsBody()
        return self._evict(request, body)

    def _let_in(self, request: PageRequest) -> PageAnswer:
        if not self.access.opens(request.asked("token")):
            return _stranger(request)
        cookie = self.access.set_cookie(_cookie_name(request), quote(request.mount) + "/", secure=request.secure)
        # A page that leads on, not a redirect: after a link on another site only the next step is the visitor's own,
        # and only with that one a strict cookie is sent. The address bar loses the token by it.
        return PageAnswer(200, ENTRANCE, "text/html", [("Set-Cookie", cookie)])

    def _get(self, request: PageRequest) -> Outcome:
        path = request.path
        name = "index.html" if path == "/" else path.removeprefix("/")
        if name in FILES:
            return PageAnswer(200, _file(name), TYPES[name.rpartition(".")[2]])
        if path == "/api/about":
            return PageAnswer(200, encoded(self._about()))
        if path not in ("/api/stream", "/api/changes", "/api/line"):
            return problem(404, "there is nothing here")
        watch = self._watch(request.asked("store"))
        if watch is None:
            return problem(404, "there is no such store")
        if path == "/api/stream":
            return PageStream(watch)
        if path == "/api/line":
            return PageAnswer(200, watch.board.detail(request.asked("name")))
        watch.want()
        _, told = watch.board.since(_number(request.asked("since")) or 0)
        return PageAnswer(200, b"[" + b",".join(told) + b"]")

    def _about(self) -> dict[str, Any]:
        stores = [{"title": title, "url": watch.url} for title, watch in zip(self.titles, self.watches, strict=True)]
        about: dict[str, Any] = {"stores": stores, "evict": self.allow_evict, "asks_who": not self.knows_user}
        return {**about, "csrf": self.access.csrf} if self.allow_evict else about

    def _watch(self, number: str) -> WatchedBoard | None:
        at = _number(number) if number else 0
        return self.watches[at] if at is not None and at < len(self.watches) else None

    def _evict(self, request: PageRequest, body: bytes) -> Outcome:
        try:
            wish = json.loads(body)
            store, name, token = wish["store"], wish["name"], wish["token"]
            reason, person, owner = wish["reason"], wish.get("who", ""), wish.get("owner", "")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return problem(400, "an eviction is a JSON object with store, name, token and reason")
        if not all(isinstance(text, str) for text in (name, token, reason, person, owner)) or type(store) is not int:
            return problem(400, "store is a number; name, token, reason and who are text")
        watch = self._watch(str(store))
        if watch is None:
            return problem(404, "there is no such store")
        if not (meant := _number(token)):
            return problem(400, "which holder? an eviction names the token of the one that is meant")
        try:
            arguments.a_name(name)
        except ConfigError as wrong:
            return problem(400, str(wrong))
        if not reason.strip() or len(reason) > LONGEST_REASON:
            return problem(400, f"a reason of 1 to {LONGEST_REASON} characters is needed")
        if not self.knows_user and (not person.strip() or len(person) > LONGEST_PERSON):
            return problem(400, f"who asks? a name of 1 to {LONGEST_PERSON} characters is needed")
        who = request.user if self.knows_user else person.strip()
        return Change(watch, Eviction(watch.url, name, meant, owner[:200], who, request.address, reason.strip()))

    async def carry_out(self, change: Change) -> PageAnswer:
        """Evict that holder, with a line before and one after; with a client that blocks this never suspends."""
        meant, watch = change.eviction, change.watch
        engine, by = engine_of(watch.client), f"{meant.who}: {meant.reason}"
        try:
            self.audit.write(meant, "asked")
        except OSError as trouble:
            return problem(500, f"nobody was evicted, because the audit line cannot be written: {trouble.strerror}")
        # Before the eviction: a look may see it at once, and shows then who did it.
        watch.board.evicted(meant.name, meant.token, f"by {by}")
        try:
            victims = await evict(engine, meant.name, meant.token, by)
        except LocklineError as trouble:
            self._write_what_came(meant, "unanswered")
            return problem(502, str(trouble))
        if not victims:
            watch.board.evicted(meant.name, meant.token, "")
        watch.look_now()
        self._write_what_came(meant, "evicted" if victims else "held no more")
        return PageAnswer(200, encoded({"evicted": victims}))

    def _write_what_came(self, meant: Eviction, outcome: Outcomes) -> None:
        try:
            self.audit.write(meant, outcome)
        except OSError as trouble:
            # It has happened, and whoever asked has to hear that; the line before says who asked and for what.
            log.error("the audit line (%s) cannot be written: %s", outcome, trouble.strerror)


def _number(value: str) -> int | None:
    return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None


def _cookie_name(request: PageRequest) -> str:
    return f"{COOKIE}-{request.port}"


def _stranger(request: PageRequest) -> PageAnswer:
    if request.path == "/":
        return PageAnswer(401, STRANGER, "text/html")
    return problem(401, "open the page with the address that `lockline web` has printed: it carries the token")


@functools.cache
def _file(name: str) -> bytes:
    return (resources.files(__package__) / "page" / name).read_bytes()


def a_title(title: object) -> str:
    """What stands on the tab of a store."""
    if not isinstance(title, str) or not title.strip():
        raise ConfigError(f"a store's title is a text, not {title!r}")
    return title


ENTRANCE: Final = b"""<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=./">
<link rel="icon" href="icon.svg"><title>Lockline</title><p><a href="./">Go on to the page</a></p></html>"""
STRANGER: Final = b"""<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Lockline</title><h1>Who are you?</h1>
<p>Open this page with the address that <code>lockline web</code> has printed on its terminal: it carries the token.</p></html>"""
