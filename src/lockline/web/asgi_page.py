"""The page as an ASGI app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from .. import sync
from ..runtime.blocking import run
from .routes import LONGEST_BODY, STREAM_HEADERS, Change, NeedsBody, PageAnswer, PageRequest, PageStream, Site, problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MOST_STREAMS: Final = 200
"""Browsers that are told at once; the others ask every few seconds, which the page does by itself."""
SLOWEST: Final = 10.0
"""Seconds that a browser may take to read what it was sent, or to send what it said, before it is dropped."""
STILL_HERE: Final = 15.0
"""Seconds of silence after which a word is sent, so that no proxy takes the connection for dead."""

log = logging.getLogger("lockline.web")


class AsgiPage:
    """One page, for a server that speaks ASGI."""

    def __init__(self, site: Site, user: Callable[[Mapping[str, Any]], str] | None = None) -> None:
        self.site = site
        self._user = user
        self._streams: set[asyncio.Event] = set()
        self._closing = False

    def close(self) -> None:
        """End the streams, so that the server can end. In the loop's thread."""
        self._closing = True
        for changed in self._streams:
            changed.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                self.close()
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._request(scope)
        outcome = self.site.answer(request)
        if isinstance(outcome, NeedsBody):
            body = await _read(receive)
            outcome = (
                problem(413, "that is too long, or came too slowly")
                if body is None
                else self.site.answer(request, body)
            )
        if isinstance(outcome, Change):
            work = self.site.carry_out(outcome)
            blocks = isinstance(outcome.watch.client, sync.Client)
            outcome = await (asyncio.to_thread(run, work) if blocks else work)
        if isinstance(outcome, PageStream):
            if len(self._streams) < MOST_STREAMS:
                await self._tell(outcome, receive, send)
                return
            outcome = problem(503, "as many browsers watch as can be told at once; ask now and then")
        assert isinstance(outcome, PageAnswer)
        await send({"type": "http.response.start", "status": outcome.status, "headers": _packed(outcome.headers)})
        await send({"type": "http.response.body", "body": outcome.sent})

    def _request(self, scope: Scope) -> PageRequest:
        mount = scope.get("root_path", "")
        path = scope["path"]
        # Where the app is mounted, some frameworks leave the mount in the path, and some take it out.
        below = path[len(mount) :] if mount and (path == mount or path.startswith(mount + "/")) else path
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        client, server = scope.get("client") or ("", 0), scope.get("server") or ("", 0)
        return PageRequest(
            method=scope["method"], path=below, query=scope.get("query_string", b"").decode("latin-1"), headers=headers,
            mount=mount, secure=scope.get("scheme") == "https", address=str(client[0]), port=server[1] or 0,
            user=self._user(scope) if self._user else "",
        )  # fmt: skip

    async def _tell(self, stream: PageStream, receive: Receive, send: Send) -> None:
        """Every change, until the browser goes, or does not read."""
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        gone = loop.create_task(_disconnect(receive, changed))

        def listener() -> None:
            try:
                loop.call_soon_threadsafe(changed.set)
            except RuntimeError:  # the loop has ended, and everybody with it
                pass

        self._streams.add(changed)
        stream.watch.join(listener)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _packed(STREAM_HEADERS)})
            await self._tell_all(stream, changed, gone, send)
        except TimeoutError:
            log.info("a browser was dropped that did not read for %g s", SLOWEST)
        finally:
            stream.watch.leave(listener)
            self._streams.discard(changed)
            gone.cancel()

    async def _tell_all(self, stream: PageStream, changed: asyncio.Event, gone: asyncio.Task[None], send: Send) -> None:
        version, news = 0, b"retry: 2000\n\n"
        while not (gone.done() or self._closing):
            changed.clear()
            version, told = stream.watch.board.since(version)
            news += b"".join(b"data: " + change + b"\n\n" for change in told)
            async with asyncio.timeout(SLOWEST):
                await send({"type": "http.response.body", "body": news or b": still here\n\n", "more_body": True})
            news = b""
            try:
                async with asyncio.timeout(STILL_HERE):
                    await changed.wait()
            except TimeoutError:
                pass
        if not gone.done():
            await send({"type": "http.response.body", "body": b""})


async def _disconnect(receive: Receive, changed: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    changed.set()


async def _read(receive: Receive) -> bytes | None:
    """The body; None if it is too long, too slow, or its sender went away."""
    try:
        async with asyncio.timeout(SLOWEST):
            return await _read_all(receive)
    except TimeoutError:
        return None


async def _read_all(receive: Receive) -> bytes | None:
    body = b""
    while len(body) <= LONGEST_BODY:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body if len(body) <= LONGEST_BODY else None
    return None


def _packed(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
