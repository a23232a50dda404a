"""A served application behind a fence: ASGI and WSGI middleware that turns away a holder whose time is over."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple
from urllib.parse import unquote
from weakref import WeakValueDictionary

from ...core.arguments import Seconds, a_ttl
from ...errors import BackendUnavailable, ConfigError, LocklineError, StaleToken
from ..door import Door
from ..rule import Offer, a_name, a_resource
from ..sequencer import GRANT_HEADER, LOCK_HEADER, TOKEN_HEADER, read_number
from ..threads import to_the_end
from .bodies import AsgiAnswer, AsgiRequest, CutOff, Receive, Send, TooLarge, WsgiAnswer, read_all
from .turns import Turns

OFFER_KEY = "lockline.offer"
"""Where the application finds the offer, to enter a fence of its own with it."""
LARGEST_BODY = 100 * 2**20
"""Enough for most; a larger one may be told to go elsewhere before it fills the disk."""
ENTERING = 32
"""Threads in which requests wait at marks that are held elsewhere; more requests than that wait for a thread."""
LEAVING = 8
READING = ("GET", "HEAD", "OPTIONS", "TRACE")
PROBLEM = "application/problem+json"
TOKEN, LOCK, GRANT = TOKEN_HEADER.lower(), LOCK_HEADER.lower(), GRANT_HEADER.lower()

Scope = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Request(NamedTuple):
    """What decides which resource a request is about."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By lower-case name. The values of a header that came twice are joined by a comma."""


class Refusal(Exception):
    """A request that does not reach the application."""

    def __init__(self, status: int, kind: str, title: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.body = json.dumps(
            {"type": f"urn:lockline:{kind}", "title": title, "status": status, "detail": detail, **more}
        ).encode()

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers of the answer."""
        found = [("Content-Type", PROBLEM), ("Content-Length", str(len(self.body))), ("Cache-Control", "no-store")]
        if self.status == 503:
            found.append(("Retry-After", "1"))
        return found


class HttpFence:
    """Middleware for an application: `fence.asgi(app)` or `fence.wsgi(app)`.

    A request shows its lease by `lease.headers()`. While one is served, others to the same resource wait, so that the
    check and what the application does are one act. A stale one gets 412, one without a token 428, both as problem+json.
    """

    def __init__(
        self,
        marks: Door,
        *,
        resource: Callable[[Request], str | None] | None = None,
        optional: Collection[str] = READING,
        patience: Seconds = 30.0,
        largest: int = LARGEST_BODY,
    ) -> None:
        """`resource` names what a request is about, None for what needs no fence; without it, the path does.
        `optional` are the methods that may come without a token. `largest` is how long a body may be: it is read as a whole
        before the request enters, so that one who is frozen in the middle of it keeps nobody out."""
        if not hasattr(marks, "admit_at_once"):
            raise ConfigError(f"marks is a FileMarks, SqlMarks or RedisMarks, not {type(marks).__name__}")
        self._marks = marks
        self._resource = resource
        self._optional = frozenset(method.upper() for method in optional)
        self._patience = a_ttl(patience, "patience")
        if isinstance(largest, bool) or not isinstance(largest, int) or largest < 0:
            raise ConfigError(f"largest is a number of bytes, not {largest!r}")
        self._largest = largest

    def asgi(self, app: AsgiApp) -> AsgiApp:
        """The ASGI application behind the fence. WebSockets and lifespan events go through as they are."""
        # One for each resource, for as long as somebody is there.
        locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        marks, patience = self._marks, self._patience
        # None of the loop's own, which the application may use up; and two kinds: a request that leaves must not wait behind those that wait for it.
        entering = ThreadPoolExecutor(ENTERING, "lockline-fence-enter")
        leaving = ThreadPoolExecutor(LEAVING, "lockline-fence-leave")

        async def serve(
            resource: str, offer: Offer, writes: bool, until: float, call: Callable[[], Awaitable[None]]
        ) -> None:
            try:
                leave = marks.admit_at_once(resource, offer, writes=writes)
                if leave is None:
                    slow = await to_the_end(
                        lambda: marks.admit(resource, offer, writes=writes, patience=_left(until)),
                        undo=lambda leave: leave(),
                        threads=entering,
                    )
            except LocklineError as problem:
                raise _refusal(problem) from None
            try:
                await call()
            finally:
                if leave is None:
                    await to_the_end(slow, threads=leaving)
                else:
                    leave()

        async def fenced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            try:
                asked = self._question(scope["method"], scope["path"], _asgi_headers(scope, self._resource is not None))
                if asked is None:
                    await app(scope, receive, send)
                    return
                resource, offer, writes = asked
                request, answer = AsgiRequest(receive), AsgiAnswer()
                try:
                    await self._receive(scope, request)
                    until = time.monotonic() + patience
                    lock = locks.setdefault(resource, asyncio.Lock())
                    await _take(lock, patience, resource)
                    try:
                        inner = {**scope, OFFER_KEY: offer}
                        await serve(resource, offer, writes, until, lambda: app(inner, request.receive, answer.keep))
                    finally:
                        lock.release()
                    await answer.send(send)
                finally:
                    request.close()
                    answer.close()
            except CutOff:
                pass  # nobody waits for an answer
            except Refusal as refusal:
                raw = [(name.lower().encode(), value.encode()) for name, value in refusal.headers]
                await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
                await send({"type": "http.response.body", "body": refusal.body})

        return fenced

    def wsgi(self, app: WsgiApp) -> WsgiApp:
        """The WSGI application behind the fence."""
        turns = Turns()

        def fenced(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            try:
                raw = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
                path = raw.encode("latin-1").decode(errors="replace")
                asked = self._question(
                    environ["REQUEST_METHOD"], path, _wsgi_headers(environ, self._resource is not None)
                )
                if asked is None:
                    return app(environ, start_response)
                resource, offer, writes = asked
                body = self._read(environ)
                until = time.monotonic() + self._patience
                turn = turns.line_up(resource)
                try:
                    if not turns.wait(resource, turn, until):
                        raise _busy(resource)
                    try:
                        leave = self._marks.admit(resource, offer, writes=writes, patience=_left(until))
                    except LocklineError as problem:
                        raise _refusal(problem) from None
                    try:
                        inner = {**environ, OFFER_KEY: offer}
                        answer = WsgiAnswer(app, inner if body is None else {**inner, "wsgi.input": body})
                    finally:
                        leave()
                finally:
                    turns.leave(resource, turn)
                    if body is not None:
                        body.close()
                return answer.send(start_response)
            except Refusal as refusal:
                start_response(f"{refusal.status} {refusal.title}", refusal.headers)
                return [refusal.body]

        return fenced

    async def _receive(self, scope: Scope, request: AsgiRequest) -> None:
        try:
            for name, value in scope["headers"]:
                if name == b"content-length" and value.isdigit() and int(value) > self._largest:
                    raise TooLarge
            await request.read(self._largest)
        except TooLarge:
            raise self._too_large() from None

    def _read(self, environ: dict[str, Any]) -> IO[bytes] | None:
        try:
            return read_all(environ, self._largest)
        except TooLarge:
            raise self._too_large() from None
        except CutOff:
            raise Refusal(400, "body-cut-off", "Bad Request", "the request ended before its body did") from None
        except ValueError as problem:
            raise Refusal(400, "body-malformed", "Bad Request", str(problem)) from None

    def _too_large(self) -> Refusal:
        return Refusal(
            413, "body-too-large", "Content Too Large",
            f"a body at this fence has at most {self._largest} bytes; HttpFence(largest=...) says how many",
        )  # fmt: skip

    def _question(self, method: str, path: str, headers: dict[str, str]) -> tuple[str, Offer, bool] | None:
        """Which resource, who asks, and whether to write; None if the request needs no fence."""
        resource = path if self._resource is None else self._resource(Request(method, path, headers))
        if resource is None:
            return None
        writes = method not in READING
        try:
            resource = a_resource(resource)
            text = headers.get(TOKEN)
            if text is None:
                if method in self._optional:
                    return None
                raise Refusal(
                    428, "token-missing", "Precondition Required",
                    f"a {method} of {resource!r} needs the header {TOKEN_HEADER}; lease.headers() has it", resource=resource,
                )  # fmt: skip
            return resource, self._offer(resource, text, headers), writes
        except ConfigError as problem:
            raise Refusal(400, "token-malformed", "Bad Request", str(problem)) from None

    def _offer(self, resource: str, text: str, headers: dict[str, str]) -> Offer:
        lock, grant = headers.get(LOCK), headers.get(GRANT)
        name = a_name(unquote(lock), "lock") if lock else resource
        if getattr(self._marks, "exact", False) and not text.isdigit():
            return Offer(name, 0, a_name(text, "owner"))
        return Offer(name, read_number(text), a_name(unquote(grant), "grant") if grant else "")


def raise_if_stale(response: Any) -> None:
    """On the calling side: StaleToken if this answer (of httpx or requests) is an HttpFence's refusal; else nothing."""
    if response.status_code != 412 or not response.headers.get("Content-Type", "").startswith(PROBLEM):
        return
    problem = response.json()
    if problem.get("type") == "urn:lockline:stale-token":
        raise StaleToken(problem["resource"], problem["offered"], problem["highest"])


def _left(until: float) -> float:
    """What is left of a request's patience; a moment at least, so that a free resource is entered."""
    return max(0.001, until - time.monotonic())


async def _take(lock: asyncio.Lock, patience: float, resource: str) -> None:
    """Take the lock; a 503 if another request stayed that long."""
    if not lock.locked():
        await lock.acquire()
        return
    try:
        async with asyncio.timeout(patience):
            await lock.acquire()
    except TimeoutError:
        raise _busy(resource) from None


def _refusal(problem: LocklineError) -> Exception:
    """What the caller is told; an error of the server's own set-up goes to the server's log instead."""
    if isinstance(problem, StaleToken):
        return Refusal(
            412, "stale-token", "Precondition Failed", str(problem),
            resource=problem.resource, offered=problem.offered, highest=problem.highest,
        )  # fmt: skip
    if isinstance(problem, BackendUnavailable):
        return Refusal(503, "fence-busy", "Service Unavailable", str(problem))
    return problem


def _busy(resource: str) -> Refusal:
    return Refusal(503, "fence-busy", "Service Unavailable", f"another request stayed inside the fence of {resource!r}")


def _asgi_headers(scope: Scope, every: bool) -> dict[str, str]:
    """The headers by lower-case name: every one, or those of the fence alone."""
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        if every or raw in SHOWN_ASGI:
            name, text = raw.decode("latin-1").lower(), value.decode("latin-1").strip()
            # Two tokens are no token: joined, they are not a number.
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def _wsgi_headers(environ: Mapping[str, Any], every: bool) -> dict[str, str]:
    keys = [key for key in environ if key.startswith("HTTP_")] if every else SHOWN_WSGI
    return {key[5:].replace("_", "-").lower(): str(environ[key]).strip() for key in keys if key in environ}


SHOWN_ASGI = frozenset(name.encode() for name in (TOKEN, LOCK, GRANT))
SHOWN_WSGI = [f"HTTP_{name.upper().replace('-', '_')}" for name in (TOKEN, LOCK, GRANT)]
