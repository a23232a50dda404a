"""What time it is at etcd. Its own calls do not tell; the HTTP server on the same port does, with every answer."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from ...errors import BackendUnavailable, ClientClosed
from ...runtime import Runtime
from ...runtime.limits import let_through
from ..keyed.clock import AskedClock
from ..url import Endpoint
from .channel import EtcdChannel
from .target import EtcdTarget

LONGEST_HEAD: Final = 1 << 16
"""Bytes before the body; whoever sends more is no etcd."""
END: Final = b"\r\n\r\n"
A_LOOK: Final = 0.25
"""Seconds after which a thread that waits for the answer looks whether its client was closed."""


class NoTime(Exception):
    """This member did not tell the time."""


class MemberClock(AskedClock):
    """The clock of the member that the client is connected to, or of another one if that does not tell."""

    def __init__(self, target: EtcdTarget, channel: EtcdChannel, runtime: Runtime) -> None:
        super().__init__(runtime, self._ask_members)
        self._target = target
        self._channel = channel

    async def _ask_members(self, until: float) -> None:
        """Ask one member after the other, each for its share of the time."""
        link, endpoints = self._channel.link, list(self._target.endpoints)
        if link is not None:
            endpoints.sort(key=lambda endpoint: endpoint != link.endpoint)
        problem = ""
        for at, endpoint in enumerate(endpoints):
            sent = self._runtime.now()
            by = sent + max(0.001, until - sent) / (len(endpoints) - at)
            try:
                date = _date(await self._head(endpoint, by))
                if self.note(endpoint, date, sent, self._runtime.now()):
                    return
                problem = f"{endpoint} answers no HTTP with a date: is it served elsewhere (--listen-client-http-urls)?"
            except ClientClosed:
                raise
            except (OSError, NoTime) as failed:
                if self._channel.blocking:  # on a loop there is no limit that strikes here, and a TimeoutError is ours
                    let_through(failed)
                problem = f"{endpoint}: {failed or 'no answer in time'}"
        raise BackendUnavailable(
            f"etcd at {self._target.url} does not tell the time, which once and once_per need: {problem}"
        )

    async def _head(self, endpoint: Endpoint, by: float) -> bytes:
        request = f"GET /version HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n".encode()
        if self._channel.blocking:
            return self._head_blocking(endpoint, request, by)
        async with asyncio.timeout(max(0.001, by - self._runtime.now())):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=self._target.tls_for_http)
            try:
                writer.write(request)
                return await reader.readuntil(END)
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                raise NoTime("that is no answer in HTTP") from None
            finally:
                writer.transport.abort()

    def _head_blocking(self, endpoint: Endpoint, request: bytes, by: float) -> bytes:
        def left() -> float:
            return max(0.001, by - self._runtime.now())

        sock = socket.create_connection((endpoint.host, endpoint.port), left())
        try:
            if self._target.tls_for_http is not None:
                sock = self._target.tls_for_http.wrap_socket(sock, server_hostname=endpoint.host)
            sock.sendall(request)
            head = b""
            while END not in head:
                sock.settimeout(min(left(), A_LOOK))
                try:
                    more = sock.recv(4096)
                except TimeoutError as nothing:
                    let_through(nothing)
                    if self._channel.closed:
                        raise ClientClosed() from None
                    if self._runtime.now() >= by:
                        raise
                    continue
                if not more or len(head) > LONGEST_HEAD or self._runtime.now() >= by:
                    raise NoTime("that is no answer in HTTP")
                head += more
            return head
        finally:
            sock.close()


def _date(head: bytes) -> str:
    """What stands in the line of the date; nothing if there is none."""
    lines = head.decode(errors="replace").split("\r\n")
    return next((line[5:].strip() for line in lines if line[:5].lower() == "date:"), "")
