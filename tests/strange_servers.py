"""Servers that are none: one that never says a word, and one that says something else than its clients understand."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def a_server_that(talks: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of one who talks like this with each that comes, and hangs up after it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            talks(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        # Closed alone it would go on to accept, as long as somebody waits in there.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def says_nothing(connection: socket.socket) -> None:
    """Reads, and does not answer."""
    while connection.recv(65536):
        pass


def says_nothing_else_than(words: bytes) -> Callable[[socket.socket], None]:
    """Says this over and over, asked or not."""

    def talks(connection: socket.socket) -> None:
        for _ in range(100):
            connection.sendall(words)
            time.sleep(0.02)

    return talks
