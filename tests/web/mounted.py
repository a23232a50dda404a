"""The page mounted in a program of one's own: in this process, so that it shows `memory:` too."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import uvicorn

from lockline.web.server import listen

from ..servers.process import wait_for


@dataclass(frozen=True)
class Address:
    """What a visitor needs to know of a server."""

    address: str

    @property
    def entrance(self) -> str:
        return self.address


Server = TypeVar("Server", bound=uvicorn.Server)


def aborting(kind: type[Server]) -> type[Server]:
    """A server that closes what is still open when its patience is over: a browser that is busy reads no end."""

    class Aborting(kind):  # type: ignore[valid-type, misc]
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            connections: list[Any] = list(self.server_state.connections)
            await super().shutdown(sockets)
            # The loop closes them in its next turn; and one that was being accepted comes some turns later.
            for _ in range(20):
                for connection in {*connections, *self.server_state.connections}:
                    connection.transport.abort()
                await asyncio.sleep(0.005)

    return Aborting


@contextlib.contextmanager
def under_uvicorn(app: Any, path: str = "/") -> Iterator[Address]:
    """The app on a free port for as long as the block lasts."""
    listener = listen("127.0.0.1", 0)
    server = aborting(uvicorn.Server)(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started, 60, "uvicorn")
        yield Address(f"http://127.0.0.1:{listener.getsockname()[1]}{path}")
    finally:
        server.should_exit = True
        thread.join(120)
        listener.close()


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


@contextlib.contextmanager
def under_wsgiref(app: Any) -> Iterator[Address]:
    """The same for WSGI."""
    server = make_server("127.0.0.1", 0, app, _Threads, _Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield Address(f"http://127.0.0.1:{server.server_port}/")
    finally:
        server.shutdown()
        server.server_close()
        thread.join(120)
