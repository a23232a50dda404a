"""Hints for threads: a subscription to each node, read by whichever waiting thread leads."""

from __future__ import annotations

import select
import socket
import time
from _thread import start_new_thread
from typing import NamedTuple

from ...runtime import clock
from ...runtime.blocking import BlockingSignal
from ...runtime.limits import let_through
from ...runtime.section import Inside, Section
from ..resp.subscription import QUIET, BlockingSubscription
from .channel import TROUBLE
from .rules import majority
from .subscription import RETRY, HintSource

A_LOOK = 0.005
"""How long one who subscribes reads, or lets another read, before he looks whether it was confirmed."""


class NodeListener(NamedTuple):
    """The subscription to one node."""

    node: int
    subscription: BlockingSubscription


class BlockingHints(HintSource):
    """Subscriptions of a blocking client: read by whichever waiting thread leads.

    An exception may strike the reading thread between any two instructions. So no lock is held around a piece of work, and what was
    cut short is at worst a hint that does not come.
    """

    _closed = False

    def _begin(self) -> None:
        super()._begin()
        self._changing = Section()
        self._reading = Section()
        self._confirmed = BlockingSignal()
        self._listeners: dict[int, NodeListener] = {}
        """By the number of the socket."""
        self._poll = select.poll()
        self._retry_at = [0.0] * len(self._nodes)
        self._opening: dict[int, float] = {}
        """Which are being opened, and until when that is believed: its thread may never have begun."""
        self._nudger: tuple[socket.socket, socket.socket] | None = None

    def forked(self) -> None:
        self._begin()

    def _listened_to(self) -> list[int]:
        return [one.node for one in list(self._listeners.values())]

    def _something_confirmed(self) -> None:
        self._confirmed.set()

    async def subscribe(self, channel: str, until: float) -> None:
        """From when this returns, what is published there is heard from a majority, or from all that can be reached soon."""
        try:
            self._changing(self._add, channel)
        except Inside:
            return  # a signal handler in the middle of just this: it does without hints, here and in `unsubscribe`
        until = min(until, clock.now() + self._timeout)
        while self._may_be_confirmed(channel) and clock.now() < until:
            self._confirmed.clear()
            if not self._reading.attempt(self._read, A_LOOK):
                await self._confirmed.wait(clock.now() + A_LOOK)

    def _add(self, channel: str) -> None:
        super()._add(channel)
        self._connect()

    def _may_be_confirmed(self, channel: str) -> bool:
        """Whether a majority has not confirmed it yet, and somebody still may."""
        waiting = set(self._unconfirmed.get(channel, ()))
        opening = any(until > clock.now() for until in list(self._opening.values()))
        heard_from = set(self._listened_to()) - waiting
        return bool(waiting or opening) and len(heard_from) < majority(len(self._nodes))

    def unsubscribe(self, channel: str) -> None:
        """One listener less; the last one ends it."""
        try:
            self._changing(self._remove, channel)
        except Inside:
            pass

    def _connect(self) -> None:
        """Open what is missing, if it was not tried lately, without waiting for it. While nobody else changes anything."""
        if self._closed:
            return
        if self._nudger is None:
            nudger = socket.socketpair()
            for end in nudger:
                end.setblocking(False)
            self._poll.register(nudger[0], select.POLLIN)
            self._nudger = nudger
            if self._closed:
                # `close` ran since the look above and found no pair to close.
                self._close_nudger()
                return
        now = clock.now()
        have = {*self._listened_to(), *(node for node, until in self._opening.items() if until > now)}
        for node in range(len(self._nodes)):
            if node not in have and now >= self._retry_at[node]:
                self._retry_at[node] = now + RETRY
                self._opening[node] = now + self._timeout + RETRY
                # A server that does not answer must not hold up those who listen to the others. Started in one instruction.
                start_new_thread(self._open, (node, self._changing))

    def _open(self, node: int, changing: Section) -> None:
        try:
            subscription = BlockingSubscription(self._nodes[node].within(self._timeout), clock.now() + self._timeout)
        except TROUBLE:
            self._opening.pop(node, None)
            return
        changing(self._adopt, NodeListener(node, subscription))
        self.nudge()

    def _adopt(self, listener: NodeListener) -> None:
        self._opening.pop(listener.node, None)
        if self._closed or listener.node in self._listened_to():
            listener.subscription.close()
            return
        fd = listener.subscription.sock.fileno()
        self._listeners[fd] = listener
        self._poll.register(fd, select.POLLIN)
        for channel in list(self._channels):
            self._ask_for(listener.node, channel)
        if self._closed:
            self._drop(fd)

    def _say(self, node: int, *words: str) -> bool:
        for fd, one in list(self._listeners.items()):
            if one.node == node:
                try:
                    one.subscription.say(*words)
                except OSError as problem:
                    self._drop(fd)
                    let_through(problem)
                    return False
                return True
        return False

    def _drop(self, fd: int) -> None:
        listener = self._listeners.pop(fd, None)
        if listener is None:
            return
        self._unregister(fd)
        listener.subscription.close()
        self._confirm(listener.node)

    def _forget(self, fd: int) -> None:
        """Poll no longer what is nobody's: its end was cut short."""
        nudger = self._nudger
        if fd not in self._listeners and (nudger is None or nudger[0].fileno() != fd):
            self._unregister(fd)

    def _unregister(self, fd: int) -> None:
        try:
            self._poll.unregister(fd)
        except (KeyError, ValueError, OSError):
            pass

    def receive(self, seconds: float) -> list[str]:
        """Listen for at most so long; what is heard is handed out on the way."""
        self._connect_again()
        # Not for too long in one go: what is quiet is asked whether it still works.
        seconds = min(seconds, RETRY, QUIET)
        if not self._reading.attempt(self._read, seconds):
            # One who subscribes looks for his confirmation, for a moment.
            time.sleep(max(0.0, min(seconds, A_LOOK)))
        return []

    def drain(self) -> None:
        """Take in what lies there, if nobody else is listening."""
        if self._channels:
            self._connect_again()
            self._reading.attempt(self._read, 0)

    def _connect_again(self) -> None:
        """One that ended is tried again at times."""
        if len(self._listeners) < len(self._nodes):
            self._changing.attempt(self._connect)

    def _read(self, seconds: float) -> None:
        nudger = self._nudger
        for fd, _ in self._poll.poll(max(0.0, seconds) * 1000):
            if nudger is not None and fd == nudger[0].fileno():
                try:
                    nudger[0].recv(4096)
                except OSError:
                    pass  # nothing there, or closed just now
                continue
            listener = self._listeners.get(fd)
            if listener is None:
                self._changing.attempt(self._forget, fd)
                continue
            try:
                for message in listener.subscription.hear():
                    self._hear(listener.node, message)
            except OSError as problem:
                self._drop(fd)
                let_through(problem)
            except BaseException:
                # Half a message may be lost, and with it the place in the stream.
                self._drop(fd)
                raise
        for fd, listener in list(self._listeners.items()):
            if not listener.subscription.still_works():
                self._drop(fd)

    def nudge(self) -> None:
        """Make a running `receive` return."""
        nudger = self._nudger
        if nudger is not None:
            try:
                nudger[1].send(b"!")
            except OSError:
                pass

    async def close(self) -> None:
        # First: one that is being opened is closed by who opens it, or by the look below.
        self._closed = True
        self.nudge()
        for fd in list(self._listeners):
            self._drop(fd)
        self._close_nudger()

    def _close_nudger(self) -> None:
        nudger, self._nudger = self._nudger, None
        if nudger is not None:
            self._unregister(nudger[0].fileno())
            for end in nudger:
                end.close()
