"""A TCP proxy of our own: it can lose a reply, cut the line, swallow everything, or be slow.

with Proxy(("127.0.0.1", port)) as proxy:
    client = lockline.connect(f"redis://127.0.0.1:{proxy.port}")
    proxy.drop_reply()        # the next request reaches the server; its answer does not come back, the line is cut
    proxy.cut()               # every connection breaks now
    proxy.black_hole()        # packets vanish in both directions, connections stay open
    proxy.delay(0.5)          # everything takes that long, each way
    proxy.refuse()            # new connections are cut at once
    proxy.mute()              # requests pass, answers vanish
    proxy.lead_to(address)    # new connections go to another server
    proxy.heal()              # all is well again (what was swallowed stays lost)

`on_packet(passes_to_server, data, fate)` is told of every packet: "passed", "held back" or "lost".
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from ..packets import is_upkeep


class ProxyLink:
    """One client's connection and its partner at the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.ends = {client: server, server: client}
        self.client = client
        self.late: dict[socket.socket, deque[tuple[float, bytes]]] = {client: deque(), server: deque()}
        self.swallowed: dict[socket.socket, bytes] = {client: b"", server: b""}
        self.reply_instead: bytes | None = None
        """What the client gets for its next answer: nothing and the end, or this."""
        self.stranded = False
        self.ended = False
        """Whether the client has gone since; its packets may still be under way."""
        self.hung_up = False
        """Whether the server has gone since."""
        self.unanswered = False
        """Whether something was handed on late, and the server has neither answered nor hung up since."""


class Proxy:
    """Stands between clients and one server; each method takes effect at once."""

    def __init__(
        self,
        server: tuple[str, int],
        on_packet: Callable[[bool, bytes, str], None] = lambda to_server, data, fate: None,
    ) -> None:
        self._server = server
        self.on_packet = on_packet
        self._mutes = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._links: dict[socket.socket, ProxyLink] = {}
        self._mutex = threading.Lock()
        self._holes = False
        self._refuses = False
        self._delay = 0.0
        self._lose: list[tuple[bytes, int, bytes]] = []
        self._closing = False
        self.requests = 0
        """How many packets came from clients."""
        self.answers = 0
        """How many came from the server, whatever became of them."""
        self.lost = 0
        """How many replies were lost on purpose."""
        self.accepted = 0
        """How many connections there have been."""
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    # -- what a test does to the line ----------------------------------------------------------------

    def drop_reply(self, containing: bytes = b"", skip: int = 0) -> None:
        """Lose the answer to the next request (that contains this, after `skip` such ones), and cut that connection."""
        self.spoil_reply(b"", containing, skip)

    def spoil_reply(self, instead: bytes, containing: bytes = b"", skip: int = 0) -> None:
        """The same with another answer in its place, on a connection that lives on."""
        with self._mutex:
            self._lose.append((containing, skip, instead))

    def cut(self) -> None:
        """Break every connection."""
        with self._mutex:
            for link in set(self._links.values()):
                self._close(link)
        self._poke()

    def reset(self) -> None:
        """Break every connection as a firewall does that has forgotten it: not by an end, but by an error."""
        with self._mutex:
            for link in set(self._links.values()):
                for end in link.ends:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.cut()

    def black_hole(self) -> None:
        """From now on nothing passes, in either direction; nobody is told."""
        with self._mutex:
            self._holes = True

    def mute(self) -> None:
        """From now on requests pass and no answer comes back; nobody is told."""
        with self._mutex:
            self._mutes = True

    def lead_to(self, server: tuple[str, int]) -> None:
        """From now on this is the server; the connections there are break, as when an address moves."""
        with self._mutex:
            self._server = server
        self.cut()

    def strand(self) -> None:
        """The connections there are never bring anything again, and nobody is told; new ones work."""
        with self._mutex:
            for link in self._links.values():
                link.stranded = True

    def delay(self, seconds: float) -> None:
        """Hold everything back for that long, each way."""
        with self._mutex:
            self._delay = seconds

    def refuse(self) -> None:
        """Cut new connections at once."""
        with self._mutex:
            self._refuses = True

    def heal(self) -> None:
        """Let everything pass, also what was held up; only stranded connections stay as they are."""
        with self._mutex:
            self._holes = self._refuses = self._mutes = False
            self._delay = 0.0
            self._lose.clear()
            self._hand_on(stranded=False)

    def deliver(self) -> None:
        """Hand on now what stranded connections held: packets that were very long under way."""
        with self._mutex:
            self._hand_on(stranded=True)

    @property
    def unanswered(self) -> bool:
        """Whether the server has still to answer something that was delivered."""
        with self._mutex:
            return any(link.unanswered for link in self._links.values())

    def _hand_on(self, stranded: bool) -> None:
        for link in set(self._links.values()):
            if link.stranded == stranded:
                for end, data in list(link.swallowed.items()):
                    link.swallowed[end] = b""
                    if data:
                        link.unanswered = link.unanswered or (end is not link.client and not link.hung_up)
                        self._send(link, end, data)
                if link.ended:
                    self._end(link)

    @staticmethod
    def _end(link: ProxyLink) -> None:
        with contextlib.suppress(OSError):
            link.ends[link.client].shutdown(socket.SHUT_WR)

    # -- the machinery -------------------------------------------------------------------------------

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it and every connection through it."""
        self._closing = True
        self._poke()
        self._thread.join(5)
        for link in set(self._links.values()):
            self._close(link)
        self._selector.close()
        for each in (self._listener, self._wake, self._woken):
            each.close()

    def _poke(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b"!")

    def _run(self) -> None:
        while not self._closing:
            ready = self._selector.select(self._next_late())
            with self._mutex:
                for key, _ in ready:
                    end: socket.socket = key.fileobj  # type: ignore[assignment]
                    if end is self._listener:
                        self._accept()
                    elif end is self._woken:
                        with contextlib.suppress(OSError):
                            self._woken.recv(4096)
                    elif end in self._links:
                        self._pass_on(self._links[end], end)
                self._send_late()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        self.accepted += 1
        if self._refuses:
            client.close()
            return
        try:
            server = socket.create_connection(self._server, timeout=5)
        except OSError:
            client.close()
            return
        link = ProxyLink(client, server)
        for end in link.ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._links[end] = link
            self._selector.register(end, selectors.EVENT_READ)

    def _pass_on(self, link: ProxyLink, end: socket.socket) -> None:
        try:
            data = end.recv(65536)
        except OSError:
            data = b""
        speaks = not is_upkeep(data)
        if end is not link.client:
            link.unanswered = link.unanswered and not speaks
            self.answers += 1
        if not data:
            if link.stranded or self._holes:
                # The other side is not told of this either; not before what was sent before has arrived.
                self._selector.unregister(end)
                link.ended = link.ended or end is link.client
                link.hung_up = link.hung_up or end is not link.client
            else:
                self._close(link)
            return
        partner = link.ends[end]
        dark = self._holes or link.stranded
        if end is link.client:
            self.requests += 1
            self.on_packet(True, data, "held back" if dark else "passed")
            if speaks:
                self._note_request(link, data)
        elif self._mutes:
            self.lost += speaks
            self.on_packet(False, data, "lost")
            return
        elif link.reply_instead is not None and speaks:
            self.lost += 1
            self.on_packet(False, data, "lost")
            data, link.reply_instead = link.reply_instead, None
            if not data:
                self._close(link)
                return
        elif end is not link.client:
            self.on_packet(False, data, "lost" if dark else "passed")
        if dark:
            link.swallowed[partner] += data
        elif self._delay or link.late[partner]:
            link.late[partner].append((time.monotonic() + self._delay, data))
        else:
            self._send(link, partner, data)

    def _note_request(self, link: ProxyLink, data: bytes) -> None:
        for at, (containing, skip, instead) in enumerate(self._lose):
            if containing in data:
                if skip:
                    self._lose[at] = (containing, skip - 1, instead)
                else:
                    del self._lose[at]
                    link.reply_instead = instead
                return

    def _send(self, link: ProxyLink, end: socket.socket, data: bytes) -> None:
        try:
            end.settimeout(5)
            end.sendall(data)
        except OSError:
            self._close(link)

    def _next_late(self) -> float:
        with self._mutex:
            times = [late[0][0] for link in self._links.values() for late in link.late.values() if late]
        return max(0.0, min(times) - time.monotonic()) if times else 0.5

    def _send_late(self) -> None:
        now = time.monotonic()
        for link in set(self._links.values()):
            for end, late in link.late.items():
                while late and late[0][0] <= now and end in self._links:
                    self._send(link, end, late.popleft()[1])

    def _close(self, link: ProxyLink) -> None:
        for end in link.ends:
            if self._links.pop(end, None) is not None:
                with contextlib.suppress(KeyError, ValueError, OSError):
                    self._selector.unregister(end)
            end.close()
