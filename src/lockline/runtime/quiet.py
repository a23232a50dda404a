"""Sockets that somebody else closes."""

from __future__ import annotations

import socket


class QuietSocket(socket.socket):
    """A socket whose owner closes it, also when both are dropped.

    In one sweep of garbage Python may end the socket first: it would close it there, with a warning about somebody who forgot.
    """

    __slots__ = ()

    def __del__(self) -> None:
        pass


def hush(sock: socket.socket) -> socket.socket:
    """The same socket, which from now on leaves its end to its owner; one over TLS stays as it is."""
    if type(sock) is socket.socket:
        sock.__class__ = QuietSocket
    return sock
