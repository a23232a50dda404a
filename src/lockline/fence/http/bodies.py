"""What goes over the line, kept apart from what is done inside a fence.

A body is read before its request enters, and an answer is sent after it has left. So the time inside is the application's
own, and a caller that is frozen in the middle of its upload or its download keeps nobody out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final

IN_MEMORY: Final = 2**20
"""What is longer lies in a temporary file."""
PIECE: Final = 2**16

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class TooLarge(Exception):
    """The body is longer than it may be."""


class CutOff(Exception):
    """The caller went away before its request was whole."""


def a_spool() -> IO[bytes]:
    """Room for a body, on the disk if need be."""
    return SpooledTemporaryFile(IN_MEMORY)


class AsgiRequest:
    """A request with all of its body here already."""

    def __init__(self, then: Receive) -> None:
        self._then = then
        self._first: Message | None = None
        self._spool: IO[bytes] | None = None
        self._left = 0

    async def read(self, largest: int) -> None:
        """Wait for the last of the body; TooLarge or CutOff if that cannot be."""
        while True:
            part = await self._then()
            if part["type"] != "http.request":
                raise CutOff
            body = part.get("body", b"")
            self._left += len(body)
            if self._left > largest:
                raise TooLarge
            more = part.get("more_body", False)
            if self._spool is None and not more:
                self._first = part  # all of it came at once, as most do
                return
            if self._spool is None:
                self._spool = a_spool()
            self._spool.write(body)
            if not more:
                self._spool.seek(0)
                return

    async def receive(self) -> Message:
        """What the application gets: the body, then what the server has to say, that the caller has gone."""
        if self._first is not None:
            part, self._first = self._first, None
            return part
        if self._spool is None:
            return await self._then()
        piece = self._spool.read(PIECE)
        self._left -= len(piece)
        if self._left <= 0:
            self.close()
        return {"type": "http.request", "body": piece, "more_body": self._spool is not None}

    def close(self) -> None:
        """Let go of what was kept."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None


class AsgiAnswer:
    """The messages of an answer, until they are sent."""

    def __init__(self) -> None:
        self._messages: list[tuple[Message, int]] = []
        self._in_memory = 0
        self._spool: IO[bytes] | None = None

    async def keep(self, message: Message) -> None:
        """What the application has for `send`."""
        body = message.get("body", b"") if message["type"] == "http.response.body" else b""
        self._in_memory += len(body)
        if self._in_memory <= IN_MEMORY:
            self._messages.append((message, 0))
            return
        if self._spool is None:
            self._spool = a_spool()
        self._spool.write(body)
        self._messages.append(({**message, "body": b""} if body else message, len(body)))

    async def send(self, send: Send) -> None:
        """Hand all of it on."""
        if self._spool is not None:
            self._spool.seek(0)
        for message, length in self._messages:
            if self._spool is None or not length:
                await send(message)
                continue
            while length > 0:
                piece = self._spool.read(min(length, PIECE))
                length -= len(piece)
                await send({**message, "body": piece, "more_body": length > 0 or message.get("more_body", False)})

    def close(self) -> None:
        """Let go of what was kept."""
        if self._spool is not None:
            self._spool.close()


def read_all(environ: dict[str, Any], largest: int) -> IO[bytes] | None:
    """All of a WSGI request's body; None if it has none. TooLarge or CutOff if that cannot be, ValueError at a bad length."""
    text = environ.get("CONTENT_LENGTH") or ""
    if text:
        if not text.isdecimal():
            raise ValueError("the length of the body is not a number")
        if int(text) > largest:
            raise TooLarge
        left = int(text)
    elif environ.get("wsgi.input_terminated"):
        left = largest + 1
    else:
        return None  # there is no end that one could read to, and so no body
    spool = a_spool()
    try:
        while left > 0:
            try:
                piece = environ["wsgi.input"].read(min(left, PIECE))
            except OSError as problem:
                raise CutOff from problem
            if not piece:
                break
            left -= len(piece)
            spool.write(piece)
        if text and left > 0:
            raise CutOff
        if not text and left == 0:
            raise TooLarge
    except BaseException:
        spool.close()
        raise
    spool.seek(0)
    return spool


class WsgiAnswer:
    """An answer that is whole before it is sent."""

    def __init__(self, app: Callable[..., Iterable[bytes]], environ: dict[str, Any]) -> None:
        self._start: tuple[Any, ...] = ()
        self._spool = a_spool()
        try:
            body = app(environ, self._started)
            try:
                for piece in body:
                    self._spool.write(piece)
            finally:
                close = getattr(body, "close", None)
                if close is not None:
                    close()
        except BaseException:
            self._spool.close()
            raise

    def _started(self, status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], Any]:
        # Nothing has been sent yet, so a second call with an error may take the place of the first.
        self._start = (status, headers)
        return self._spool.write

    def send(self, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Hand all of it on."""
        if self._start:
            start_response(*self._start)
        length = self._spool.tell()
        self._spool.seek(0)
        if length <= PIECE:
            with self._spool:
                return [self._spool.read()]
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        with self._spool:
            while piece := self._spool.read(PIECE):
                yield piece
