"""Hints by publish: any node tells that a lease ended there, or that one was evicted. A hint only shortens a wait.

A release is heard from every node; waiters are woken once, when enough nodes have told of it that an attempt can succeed.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hiredis

from ...core import clock
from ...core.looping import TaskWorker, stay_cancelled
from .nodes import TROUBLE, Node
from .pulse import ended
from .rules import majority
from .scripts import FREED, VICTIM

REMEMBERED = 256
RETRY = 1.0

Told = Callable[[str], None]


class Tally:
    """Which releases have been heard of, and from how many nodes."""

    def __init__(self, nodes: int, freed: Told, victim: Told) -> None:
        self._needed = majority(nodes)
        self._freed = freed
        self._victim = victim
        self._heard: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    def hear(self, message: Any, ears: int) -> str | None:
        """Take one push; the channel, if it confirms a subscription."""
        if not isinstance(message, list) or len(message) != 3:
            return None
        kind, channel, payload = message[0], message[1].decode(), message[2]
        if kind == b"subscribe":
            return str(channel)
        if kind != b"message":
            return None
        if channel.startswith(VICTIM):
            self._victim(payload.decode())
            return None
        key = (channel, payload)
        count = self._heard[key] = self._heard.get(key, 0) + 1
        if len(self._heard) > REMEMBERED:
            self._heard.popitem(last=False)
        # With fewer nodes in earshot than a majority, the first word has to do.
        if count == min(self._needed, max(1, ears)):
            self._freed(channel[len(FREED) :])
        return None


class BlockingHints:
    """Subscriptions of a blocking client: read by whichever waiting thread leads."""

    def __init__(self, nodes: Sequence[Node], timeout: float, freed: Told, victim: Told) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._tally = Tally(len(nodes), freed, victim)
        self._begin()

    def _begin(self) -> None:
        self._mutex = threading.RLock()
        self._reading = threading.Lock()
        self._confirmed = threading.Condition(threading.Lock())
        self._channels: dict[str, int] = {}
        self._waits_for: dict[str, set[int]] = {}
        self._ears: dict[int, tuple[int, Any, Any]] = {}
        self._poll = select.poll()
        self._retry_at = [0.0] * len(self._nodes)
        self._opening: set[int] = set()
        self._bell: tuple[socket.socket, socket.socket] | None = None

    def forked(self) -> None:
        self._begin()

    @property
    def listening(self) -> bool:
        return bool(self._channels)

    async def subscribe(self, channel: str, until: float) -> None:
        """From when this returns, what is published there is heard from a majority, or from all that can be reached soon."""
        with self._mutex:
            self._channels[channel] = self._channels.get(channel, 0) + 1
            if self._channels[channel] == 1:
                self._waits_for[channel] = set()
                for fd in list(self._ears):
                    self._say(fd, "SUBSCRIBE", channel)
            self._connect()
        until = min(until, clock.now() + self._timeout)
        while self._unconfirmed(channel) and clock.now() < until:
            if self._reading.acquire(blocking=False):
                try:
                    self._read(0.005)
                finally:
                    self._reading.release()
            else:
                with self._confirmed:
                    self._confirmed.wait(0.005)

    def _unconfirmed(self, channel: str) -> bool:
        with self._mutex:
            waiting = self._waits_for.get(channel, set())
            heard_from = {node for node, _, _ in self._ears.values()} - waiting
            return bool(waiting or self._opening) and len(heard_from) < majority(len(self._nodes))

    def unsubscribe(self, channel: str) -> None:
        """One listener less; the last one ends it."""
        with self._mutex:
            left = self._channels.get(channel, 0) - 1
            if left > 0:
                self._channels[channel] = left
            elif left == 0:
                del self._channels[channel]
                self._waits_for.pop(channel, None)
                for fd in list(self._ears):
                    self._say(fd, "UNSUBSCRIBE", channel)

    def _connect(self) -> None:
        """Open what is missing, if it was not tried lately, without waiting for it. Under the mutex."""
        if self._bell is None:
            self._bell = socket.socketpair()
            for end in self._bell:
                end.setblocking(False)
            self._poll.register(self._bell[0], select.POLLIN)
        have = {node for node, _, _ in self._ears.values()} | self._opening
        now = clock.now()
        for node in range(len(self._nodes)):
            if node not in have and now >= self._retry_at[node]:
                self._retry_at[node] = now + RETRY
                self._opening.add(node)
                # A server that does not answer must not hold up those who listen to the others.
                threading.Thread(target=self._open, args=(node,), name="lockline-ears", daemon=True).start()

    def _open(self, node: int) -> None:
        connection = self._nodes[node].connection(self._timeout)
        mutex = self._mutex
        try:
            connection.connect()
        except TROUBLE:
            connection.disconnect()
            connection = None
        with mutex:
            self._opening.discard(node)
            if connection is None:
                return
            if self._bell is None:
                connection.disconnect()
                return
            fd = connection._sock.fileno()
            self._ears[fd] = (node, connection, hiredis.Reader())
            self._poll.register(fd, select.POLLIN)
            for channel in list(self._channels):
                self._say(fd, "SUBSCRIBE", channel)
        self.wake()

    def _say(self, fd: int, *words: str) -> None:
        node, connection, _ = self._ears[fd]
        try:
            connection.send_command(*words, check_health=False)
        except TROUBLE:
            self._drop(fd)
        else:
            if words[0] == "SUBSCRIBE":
                self._waits_for.setdefault(words[1], set()).add(node)

    def _drop(self, fd: int) -> None:
        with self._mutex:
            ear = self._ears.pop(fd, None)
            if ear is None:
                return
            try:
                self._poll.unregister(fd)
            except (KeyError, OSError):
                pass
            ear[1].disconnect()
            for waiting in self._waits_for.values():
                waiting.discard(ear[0])

    def receive(self, seconds: float) -> list[str]:
        """Listen for at most so long; what is heard is handed out on the way."""
        if len(self._ears) < len(self._nodes):
            with self._mutex:
                self._connect()
            # A dead ear is tried again at times, so do not listen for too long in one go.
            seconds = min(seconds, RETRY)
        if self._reading.acquire(timeout=min(seconds, RETRY)):
            try:
                self._read(seconds)
            finally:
                self._reading.release()
        return []

    def drain(self) -> None:
        """Take in what lies there, if nobody else is listening."""
        if self._ears and self._reading.acquire(blocking=False):
            try:
                self._read(0)
            finally:
                self._reading.release()

    def _read(self, seconds: float) -> None:
        for fd, _ in self._poll.poll(max(0.0, seconds) * 1000):
            if self._bell is not None and fd == self._bell[0].fileno():
                try:
                    self._bell[0].recv(4096)
                except BlockingIOError:
                    pass
                continue
            ear = self._ears.get(fd)
            if ear is None:
                continue
            try:
                self._hear(fd, *ear)
            except BaseException:
                # Half a message may be lost, and with it the place in the stream.
                self._drop(fd)
                raise

    def _hear(self, fd: int, node: int, connection: Any, reader: Any) -> None:
        try:
            data = connection._sock.recv(65536)
        except TimeoutError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(fd)
            return
        reader.feed(data)
        while (message := reader.gets()) is not False:
            if isinstance(message, hiredis.ReplyError):
                # This user may not listen: there is nothing to wait for here.
                for waiting in self._waits_for.values():
                    waiting.discard(node)
                continue
            channel = self._tally.hear(message, len(self._ears))
            if channel is not None and channel in self._waits_for:
                self._waits_for[channel].discard(node)
                with self._confirmed:
                    self._confirmed.notify_all()

    def wake(self) -> None:
        """Make a running `receive` return."""
        if self._bell is not None:
            try:
                self._bell[1].send(b"!")
            except (BlockingIOError, OSError):
                pass

    async def close(self) -> None:
        self.wake()
        with self._mutex:
            for fd in list(self._ears):
                self._drop(fd)
            bell, self._bell = self._bell, None
            if bell is not None:
                self._poll.unregister(bell[0])
                for end in bell:
                    end.close()


class LoopHints:
    """Subscriptions of an asyncio client: a task per node listens."""

    def __init__(self, nodes: Sequence[Node], timeout: float, freed: Told, victim: Told) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._tally = Tally(len(nodes), freed, victim)
        self._workers: list[TaskWorker] = []
        self._inherited: list[list[TaskWorker]] = []
        self.forked()

    def forked(self) -> None:
        # Kept, because the end of a stream would be felt by the parent, which shares the selector.
        self._inherited.append(self._workers)
        self._channels: dict[str, int] = {}
        self._waits_for: dict[str, set[int]] = {}
        self._writers: dict[int, Any] = {}
        self._workers = []
        self._change: asyncio.Event | None = None

    @property
    def listening(self) -> bool:
        return bool(self._channels)

    async def subscribe(self, channel: str, until: float) -> None:
        self._channels[channel] = self._channels.get(channel, 0) + 1
        if self._change is None:
            self._change = asyncio.Event()
        if not self._workers:
            self._waits_for[channel] = set(range(len(self._nodes)))
            loop = asyncio.get_running_loop()
            self._workers = [
                TaskWorker(partial(self._begin, loop, node), lasting=True) for node in range(len(self._nodes))
            ]
        elif self._channels[channel] == 1:
            self._waits_for[channel] = set()
            for node in list(self._writers):
                self._say(node, "SUBSCRIBE", channel)
        until = min(until, clock.now() + self._timeout)
        while self._waits_for.get(channel):
            self._change.clear()
            try:
                async with asyncio.timeout(max(0.0, until - clock.now())):
                    await self._change.wait()
            except TimeoutError:
                return

    def _begin(self, loop: asyncio.AbstractEventLoop, node: int) -> asyncio.Task[None]:
        return loop.create_task(self._listen(node), name=f"lockline-hints-{node}")

    def unsubscribe(self, channel: str) -> None:
        left = self._channels.get(channel, 0) - 1
        if left > 0:
            self._channels[channel] = left
        elif left == 0:
            del self._channels[channel]
            self._waits_for.pop(channel, None)
            for node in list(self._writers):
                self._say(node, "UNSUBSCRIBE", channel)

    def _say(self, node: int, *words: str) -> None:
        self._writers[node].write(hiredis.pack_command(words))  # type: ignore[arg-type]
        if words[0] == "SUBSCRIBE":
            self._waits_for.setdefault(words[1], set()).add(node)

    def _confirmed(self, node: int, channel: str | None = None) -> None:
        for name, waiting in self._waits_for.items():
            if channel is None or name == channel:
                waiting.discard(node)
        assert self._change is not None
        self._change.set()

    async def _listen(self, node: int) -> None:
        while True:
            connection = self._nodes[node].connection(self._timeout)
            try:
                await stay_cancelled(connection.connect())
                reader, stream = hiredis.Reader(), connection._reader
                self._writers[node] = connection._writer
                for channel in self._channels:
                    self._say(node, "SUBSCRIBE", channel)
                while data := await stream.read(65536):
                    reader.feed(data)
                    while (message := reader.gets()) is not False:
                        if isinstance(message, hiredis.ReplyError):
                            # This user may not listen: there is nothing to wait for here.
                            self._confirmed(node)
                            continue
                        channel_confirmed = self._tally.hear(message, len(self._writers))
                        if channel_confirmed is not None:
                            self._confirmed(node, channel_confirmed)
            except TROUBLE:
                pass
            finally:
                self._writers.pop(node, None)
                self._confirmed(node)
                await connection.disconnect(nowait=True)
            await asyncio.sleep(RETRY)

    def drain(self) -> None:
        """The tasks listen all the time."""

    def wake(self) -> None:
        """Nobody is stuck in a read here."""

    async def close(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            await worker.join(clock.now())
        await ended(workers, clock.now() + 1.0)
