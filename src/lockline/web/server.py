"""`lockline web` by itself: uvicorn on one address, with the doors closed that a mounted page leaves to its owner."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import ConfigError
from .asgi_page import AsgiPage

MOST_CONNECTIONS: Final = 1000
"""More are refused with a word, before they cost anything."""
DEAD_AFTER: Final = 20_000
"""Milliseconds after which the kernel ends a connection whose other side takes nothing."""
ASKS_WITHIN: Final = 10.0
"""Seconds that the head of a request may take; whoever drips it in letter by letter would keep a place for ever."""
PATIENCE: Final = 2
"""Seconds for answers under way when the server ends."""


class Asking(H11Protocol):
    """One connection, which is ended if its request does not come."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._notice()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._notice()

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        super().connection_lost(exc)

    @property
    def _asks(self) -> bool:
        # Between two requests nothing has begun to come: that is the server's own keep-alive. The rest of a body that nobody read is
        # as good as nothing.
        return self.cycle is None or self.cycle.response_complete

    def _notice(self) -> None:
        if not self._asks:
            self._calm()
        elif self._patience is None:
            self._patience = self.loop.call_later(ASKS_WITHIN, self._give_up)

    def _give_up(self) -> None:
        self._patience = None
        if self._asks:
            self.transport.abort()

    def _calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class PageServer(uvicorn.Server):
    """Ends its streams when it ends."""

    def __init__(self, page: AsgiPage) -> None:
        config = uvicorn.Config(
            page, log_config=None, access_log=False, server_header=False, proxy_headers=False, ws="none", lifespan="off",
            http=Asking, limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=10, timeout_graceful_shutdown=PATIENCE,
            h11_max_incomplete_event_size=32 << 10,
        )  # fmt: skip
        super().__init__(config)
        self._page = page

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._page.close()
        await super().shutdown(sockets)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """The socket; ConfigError where the address is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as problem:
        raise ConfigError(f"cannot listen on {host}: {problem.strerror or problem}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What accepts inherits it.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER)
        listener.bind(address)
        listener.listen(128)
    except OSError as problem:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {problem.strerror or problem}; --port takes another"
        ) from None
    return listener


def serve(page: AsgiPage, listener: socket.socket, ready: Callable[[], object] = lambda: None) -> None:
    """Serve until a signal comes."""
    # It tells of each connection that broke: nothing that an operator could do anything about.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server = PageServer(page)
    ready()
    server.run(sockets=[listener])


__all__: Any = ["is_loopback", "listen", "serve"]
