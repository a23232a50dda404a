"""A TCP proxy before each server that can refuse, swallow, or lose one direction: faults of the network, not of the server."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator, Sequence

from tests.servers.process import free_port


class Proxy:
    """Passes bytes to and from one server, as long as it is well."""

    def __init__(self, server_port: int) -> None:
        self.port = free_port()
        self._server_port = server_port
        self._requests = self._answers = True
        self._nonsense = False
        self._listener: socket.socket | None = None
        self._pairs: dict[socket.socket, tuple[socket.socket, bool]] = {}
        self._held: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._mutex = threading.RLock()
        self._stopped = False
        self._listen()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        listener.setblocking(False)
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)

    def refuse(self) -> None:
        """As if the server were dead: connections break, new ones are refused."""
        with self._mutex:
            if self._listener is not None:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None
            self._drop_all()

    def black_hole(self) -> None:
        """Nothing passes, and nobody is told."""
        self._requests = self._answers = False

    def lose_answers(self) -> None:
        """Requests arrive; answers do not."""
        self._answers = False

    def speak_nonsense(self) -> None:
        """Instead of each answer comes what no server says."""
        self._nonsense = True

    def heal(self) -> None:
        """As if nothing had been; what was swallowed is lost, so the old connections break."""
        with self._mutex:
            if self._nonsense or not (self._requests and self._answers):
                self._drop_all()
            self._requests = self._answers = True
            self._nonsense = False
            if self._listener is None:
                self._listen()

    def _drop_all(self) -> None:
        for one in [*self._pairs, *self._held]:
            self._drop(one)
        self._held.clear()

    def _drop(self, one: socket.socket) -> None:
        pair = self._pairs.pop(one, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(one)
        one.close()
        if pair is not None:
            self._drop(pair[0])

    def _run(self) -> None:
        while not self._stopped:
            for key, _ in self._selector.select(0.05):
                with self._mutex:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._pairs:
                        self._pass(key.fileobj)

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            if not self._requests:
                # Connected, as a kernel would, and never answered.
                self._held.append(client)
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port), timeout=1)
            except OSError:
                client.close()
                return
            for one, other, from_client in ((client, server, True), (server, client, False)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pairs[one] = (other, from_client)
                self._selector.register(one, selectors.EVENT_READ)

    def _pass(self, one: socket.socket) -> None:
        other, from_client = self._pairs[one]
        try:
            data = one.recv(65536)
            if not data:
                self._drop(one)
            elif self._nonsense and not from_client:
                other.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            elif self._requests if from_client else self._answers:
                other.sendall(data)
        except OSError:
            self._drop(one)

    def close(self) -> None:
        self._stopped = True
        self._thread.join(5)
        self.refuse()
        self._selector.close()


@contextlib.contextmanager
def proxies(ports: Sequence[int]) -> Iterator[list[Proxy]]:
    """A proxy before each of these ports."""
    made = [Proxy(port) for port in ports]
    try:
        yield made
    finally:
        for proxy in made:
            proxy.close()
