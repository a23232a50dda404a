"""Hints for threads: a subscribed connection to each node, read by whichever waiting thread leads."""

from __future__ import annotations

import select
import socket
import time
from _thread import start_new_thread
from collections.abc import Sequence
from typing import Any, NamedTuple

import hiredis

from ...runtime import clock
from ...runtime.blocking import BlockingSignal
from ...runtime.section import Inside, Section
from .rules import majority
from .subscription_asyncio import RETRY, HeardReleases, Told
from .target import TROUBLE, Node

A_LOOK = 0.005
"""How long one who subscribes reads, or lets another read, before he looks whether it was confirmed."""


class Ear(NamedTuple):
    """One subscribed connection of a blocking client."""

    node: int
    connection: Any
    sock: Any
    """The connection's own; it is still there to be asked when the connection was ended by another thread."""
    reader: Any


class BlockingHints:
    """Subscriptions of a blocking client: read by whichever waiting thread leads.

    An exception may strike the reading thread between any two instructions. So no lock is held around a piece of work, and what was
    cut short is at worst a hint that does not come.
    """

    def __init__(self, nodes: Sequence[Node], timeout: float, freed: Told, victim: Told) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._tally = HeardReleases(len(nodes), freed, victim)
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._changing = Section()
        self._reading = Section()
        self._confirmed = BlockingSignal()
        self._channels: dict[str, int] = {}
        self._waits_for: dict[str, set[int]] = {}
        self._ears: dict[int, Ear] = {}
        self._poll = select.poll()
        self._retry_at = [0.0] * len(self._nodes)
        self._opening: dict[int, float] = {}
        """Which are being opened, and until when that is believed: its thread may never have begun."""
        self._bell: tuple[socket.socket, socket.socket] | None = None

    def forked(self) -> None:
        self._begin()

    @property
    def listening(self) -> bool:
        return bool(self._channels)

    async def subscribe(self, channel: str, until: float) -> None:
        """From when this returns, what is published there is heard from a majority, or from all that can be reached soon."""
        try:
            self._changing(self._add, channel)
        except Inside:
            return  # a signal handler in the middle of just this: it does without hints, here and in `unsubscribe`
        until = min(until, clock.now() + self._timeout)
        while self._unconfirmed(channel) and clock.now() < until:
            self._confirmed.clear()
            if not self._reading.attempt(self._read, A_LOOK):
                await self._confirmed.wait(clock.now() + A_LOOK)

    def _add(self, channel: str) -> None:
        self._channels[channel] = self._channels.get(channel, 0) + 1
        if self._channels[channel] == 1:
            self._waits_for[channel] = set()
            for fd in list(self._ears):
                self._say(fd, "SUBSCRIBE", channel)
        self._connect()

    def _unconfirmed(self, channel: str) -> bool:
        waiting = set(self._waits_for.get(channel, ()))
        heard_from = {ear.node for ear in list(self._ears.values())} - waiting
        opening = any(until > clock.now() for until in list(self._opening.values()))
        return bool(waiting or opening) and len(heard_from) < majority(len(self._nodes))

    def unsubscribe(self, channel: str) -> None:
        """One listener less; the last one ends it."""
        try:
            self._changing(self._remove, channel)
        except Inside:
            pass

    def _remove(self, channel: str) -> None:
        left = self._channels.get(channel, 0) - 1
        if left > 0:
            self._channels[channel] = left
        elif left == 0:
            del self._channels[channel]
            self._waits_for.pop(channel, None)
            for fd in list(self._ears):
                self._say(fd, "UNSUBSCRIBE", channel)

    def _connect(self) -> None:
        """Open what is missing, if it was not tried lately, without waiting for it. While nobody else changes anything."""
        if self._closed:
            return
        if self._bell is None:
            bell = socket.socketpair()
            for end in bell:
                end.setblocking(False)
            self._poll.register(bell[0], select.POLLIN)
            self._bell = bell
        now = clock.now()
        have = {ear.node for ear in self._ears.values()} | {
            node for node, until in self._opening.items() if until > now
        }
        for node in range(len(self._nodes)):
            if node not in have and now >= self._retry_at[node]:
                self._retry_at[node] = now + RETRY
                self._opening[node] = now + self._timeout + RETRY
                # A server that does not answer must not hold up those who listen to the others. Started in one instruction.
                start_new_thread(self._open, (node, self._changing))

    def _open(self, node: int, changing: Section) -> None:
        connection = self._nodes[node].connection(self._timeout)
        try:
            connection.connect()
        except TROUBLE:
            connection.disconnect()
            self._opening.pop(node, None)
            return
        changing(self._adopt, node, connection)
        self.nudge()

    def _adopt(self, node: int, connection: Any) -> None:
        self._opening.pop(node, None)
        if self._closed or node in [ear.node for ear in self._ears.values()]:
            connection.disconnect()
            return
        sock = connection._sock
        fd = sock.fileno()
        self._ears[fd] = Ear(node, connection, sock, hiredis.Reader())
        self._poll.register(fd, select.POLLIN)
        for channel in list(self._channels):
            self._say(fd, "SUBSCRIBE", channel)
        if self._closed:
            self._drop(fd)

    def _say(self, fd: int, *words: str) -> None:
        ear = self._ears.get(fd)
        if ear is None:
            return
        try:
            ear.connection.send_command(*words, check_health=False)
        except TROUBLE:
            self._drop(fd)
        else:
            if words[0] == "SUBSCRIBE":
                self._waits_for.setdefault(words[1], set()).add(ear.node)

    def _drop(self, fd: int) -> None:
        ear = self._ears.pop(fd, None)
        if ear is None:
            return
        self._unregister(fd)
        ear.connection.disconnect()
        for waiting in list(self._waits_for.values()):
            waiting.discard(ear.node)

    def _forget(self, fd: int) -> None:
        """Poll no longer what is nobody's: its end was cut short."""
        bell = self._bell
        if fd not in self._ears and (bell is None or bell[0].fileno() != fd):
            self._unregister(fd)

    def _unregister(self, fd: int) -> None:
        try:
            self._poll.unregister(fd)
        except (KeyError, ValueError, OSError):
            pass

    def receive(self, seconds: float) -> list[str]:
        """Listen for at most so long; what is heard is handed out on the way."""
        if len(self._ears) < len(self._nodes):
            self._changing.attempt(self._connect)
            # A dead ear is tried again at times, so do not listen for too long in one go.
            seconds = min(seconds, RETRY)
        if not self._reading.attempt(self._read, seconds):
            # One who subscribes looks for his confirmation, for a moment.
            time.sleep(max(0.0, min(seconds, A_LOOK)))
        return []

    def drain(self) -> None:
        """Take in what lies there, if nobody else is listening."""
        if self._ears:
            self._reading.attempt(self._read, 0)

    def _read(self, seconds: float) -> None:
        bell = self._bell
        for fd, _ in self._poll.poll(max(0.0, seconds) * 1000):
            if bell is not None and fd == bell[0].fileno():
                try:
                    bell[0].recv(4096)
                except OSError:
                    pass  # nothing there, or closed just now
                continue
            ear = self._ears.get(fd)
            if ear is None:
                self._changing.attempt(self._forget, fd)
                continue
            try:
                self._hear(fd, ear)
            except BaseException:
                # Half a message may be lost, and with it the place in the stream.
                self._drop(fd)
                raise

    def _hear(self, fd: int, ear: Ear) -> None:
        try:
            data = ear.sock.recv(65536)
        except TimeoutError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(fd)
            return
        reader = ear.reader
        reader.feed(data)
        while (message := reader.gets()) is not False:
            if isinstance(message, hiredis.ReplyError):
                # This user may not listen: there is nothing to wait for here.
                for waiting in list(self._waits_for.values()):
                    waiting.discard(ear.node)
                continue
            channel = self._tally.hear(message, len(self._ears))
            if channel is not None and channel in self._waits_for:
                self._waits_for.get(channel, set()).discard(ear.node)
                self._confirmed.set()

    def nudge(self) -> None:
        """Make a running `receive` return."""
        bell = self._bell
        if bell is not None:
            try:
                bell[1].send(b"!")
            except OSError:
                pass

    async def close(self) -> None:
        # First: one that is being opened is closed by who opens it, or by the look below.
        self._closed = True
        self.nudge()
        for fd in list(self._ears):
            self._drop(fd)
        bell, self._bell = self._bell, None
        if bell is not None:
            self._unregister(bell[0].fileno())
            for end in bell:
                end.close()
