"""The page as a WSGI app."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from ..runtime.blocking import run
from .asgi_page import STILL_HERE
from .routes import LONGEST_BODY, STREAM_HEADERS, Change, NeedsBody, PageAnswer, PageRequest, PageStream, Site, problem

Start = Callable[[str, list[tuple[str, str]]], object]

MOST_STREAMS: Final = 16
"""Browsers that are told at once: each takes a thread of the server. The others ask every few seconds."""


class WsgiPage:
    """One page, for a server that speaks WSGI."""

    def __init__(self, site: Site, user: Callable[[Mapping[str, Any]], str] | None = None) -> None:
        self.site = site
        self._user = user
        self._places = threading.BoundedSemaphore(MOST_STREAMS)

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        request = self._request(environ)
        outcome = self.site.answer(request)
        if isinstance(outcome, NeedsBody):
            body = _read(environ)
            outcome = problem(413, "that is too long") if body is None else self.site.answer(request, body)
        if isinstance(outcome, Change):
            outcome = run(self.site.carry_out(outcome))
        if isinstance(outcome, PageStream):
            if self._places.acquire(blocking=False):
                start("200 OK", list(STREAM_HEADERS))
                return Told(outcome, self._places.release)
            outcome = problem(503, "as many browsers watch as can be told at once; ask now and then")
        assert isinstance(outcome, PageAnswer)
        start(f"{outcome.status} {HTTPStatus(outcome.status).phrase}", outcome.headers)
        return [outcome.sent]

    def _request(self, environ: dict[str, Any]) -> PageRequest:
        headers = {
            key[5:].replace("_", "-").lower(): value for key, value in environ.items() if key.startswith("HTTP_")
        }
        port = environ.get("SERVER_PORT", "")
        return PageRequest(
            method=environ["REQUEST_METHOD"], path=environ.get("PATH_INFO", ""), query=environ.get("QUERY_STRING", ""),
            headers=headers, mount=environ.get("SCRIPT_NAME", ""), secure=environ.get("wsgi.url_scheme") == "https",
            address=environ.get("REMOTE_ADDR", ""), port=int(port) if port.isascii() and port.isdigit() else 0,
            user=self._user(environ) if self._user else "",
        )  # fmt: skip


class Told:
    """Every change, until the server closes it: it does so when the browser has gone."""

    def __init__(self, stream: PageStream, over: Callable[[], None]) -> None:
        self._watch = stream.watch
        self._over: Callable[[], None] | None = over
        self._changed = threading.Event()
        self._watch.join(self._changed.set)

    def __iter__(self) -> Iterator[bytes]:
        version = 0
        yield b"retry: 2000\n\n"
        while self._over is not None:
            self._changed.clear()
            version, told = self._watch.board.since(version)
            yield b"".join(b"data: " + change + b"\n\n" for change in told) or b": still here\n\n"
            self._changed.wait(STILL_HERE)

    def close(self) -> None:
        """The browser has gone."""
        over, self._over = self._over, None
        if over is not None:
            self._watch.leave(self._changed.set)
            over()


def _read(environ: dict[str, Any]) -> bytes | None:
    length = environ.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdigit()) or int(length) > LONGEST_BODY:
        return None
    body: bytes = environ["wsgi.input"].read(int(length))
    return body
