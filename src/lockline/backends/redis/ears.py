"""How a server reaches a waiting client: one subscription per server, to a channel of the client's own.

A message is "id token" (the claim holds now) or "id" (look, something happened to it). Whoever misses one, because the
connection broke or went silent, is made to look: on every new subscription all waiting claims are told to.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import ssl
from collections.abc import Callable
from typing import Any

import hiredis
import redis

from ...errors import BackendUnavailable, ClientClosed
from ...runtime import clock
from ...runtime.looping import stay_cancelled
from ...runtime.section import Inside, Late, Section
from .port import ServerError, pack
from .problems import Address, NoAnswer, failed_login, said_no
from .scripts import NO_CHANNEL
from .streams import alone
from .target import Target
from .wires import Wire

QUIET = 1.0
"""Seconds of silence after which a subscription that somebody waits on is asked whether it still works."""
MENDING = 0.5
"""Seconds that mending one may take; meanwhile nobody hears the others."""
PING = pack(("PING",))

Heard = Callable[[str], str]
"""Takes note of a message, gives back the id of the claim it speaks of."""


def new_channel(prefix: str) -> str:
    """A channel that nobody else can guess or share."""
    return f"{prefix}:{secrets.token_hex(6)}"


def messages(replies: list[Any]) -> list[str]:
    """The messages among what a subscription heard; the rest confirms subscriptions and answers pings."""
    return [reply[2].decode() for reply in replies if isinstance(reply, list) and reply[0] == b"message"]


class Ear:
    """One blocking subscription."""

    __slots__ = ("address", "channel", "heard_at", "pinged_at", "wire")

    def __init__(self, target: Target, address: Address, channel: str, until: float) -> None:
        self.address = address
        self.channel = channel
        self.wire = Wire(target, address)
        self.wire.open(until)
        try:
            self.wire.send(pack(("SUBSCRIBE", channel)))
            self.wire.hurry(until)
            while not (confirmed := self.wire.hear()):
                pass
        except (OSError, hiredis.ProtocolError) as problem:
            self.wire.drop()
            raise NoAnswer(address, problem, sent=False) from problem
        except BaseException:
            self.wire.drop()
            raise
        if isinstance(confirmed[0], ServerError):
            self.wire.drop()
            raise said_no(confirmed[0], address)
        self.wire.sock.setblocking(False)
        self.heard_at = self.pinged_at = clock.now()

    def hear(self) -> list[str]:
        """What has arrived, without waiting; OSError when the connection is gone."""
        try:
            found = messages(self.wire.hear())
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            return []
        except hiredis.ProtocolError as problem:
            raise ConnectionAbortedError(str(problem)) from problem
        self.heard_at = clock.now()
        return found

    def still_works(self) -> bool:
        """Ask when it has been quiet; False when the last question stayed unanswered."""
        now = clock.now()
        if now < self.heard_at + QUIET:
            return True
        if self.pinged_at > self.heard_at:
            return now < self.pinged_at + QUIET
        self.pinged_at = now
        try:
            self.wire.send(PING)
        except OSError:
            return False
        return True


class BlockingEars:
    """Read by whichever waiting thread leads, or by the keeper when nobody waits."""

    def __init__(
        self, target: Target, prefix: str, heard: Heard, deliver: Callable[[str], object], look_all: Callable[[], None]
    ) -> None:
        self._target = target
        self._prefix = prefix
        self._heard = heard
        self._deliver = deliver
        self._look_all = look_all
        self._wake: tuple[int, int] | None = None
        self.forked()

    def forked(self) -> None:
        if self._wake is not None:
            for end in self._wake:
                os.close(end)
        self._ears: dict[Address, Ear] = {}
        self._broken: set[Address] = set()
        self._channels: dict[Address, str] = {}
        self._reading = Section()
        self._opening = Section()
        self._wake = None
        self._closed = False
        self._version = 0
        self._poll_for = -1
        self._polled: dict[int, Ear] = {}
        self._poll: select.poll

    def channel(self, address: Address) -> str:
        ear = self._ears.get(address)
        return NO_CHANNEL if ear is None else ear.channel

    async def listen(self, address: Address, until: float) -> str:
        return self._listen(address, until).channel

    def _listen(self, address: Address, until: float) -> Ear:
        ear = self._ears.get(address)
        if ear is not None and not self._closed:
            return ear
        try:
            return self._opening.by(until, self._open, address, until)
        except Late as problem:
            raise NoAnswer(address, "no time left to connect", sent=False, late=True) from problem
        except Inside as problem:
            error = BackendUnavailable("asked by a signal handler in the middle of connecting to this very server")
            error.unsent = True
            raise error from problem

    def _open(self, address: Address, until: float) -> Ear:
        if self._closed:
            raise ClientClosed("this client is closed; connect a new one")
        ear = self._ears.get(address)
        if ear is None:
            channel = self._channels.setdefault(address, new_channel(self._prefix))
            ear = Ear(self._target, address, channel, until)
            # First, so that it is never polled by one who does not know that there is something new.
            self._version += 1
            self._ears[address] = ear
            if self._closed:
                ear.wire.drop()
            # Whoever reads now does not know of this one yet.
            self.nudge()
        return ear

    def receive(self, seconds: float) -> list[str]:
        """Wait at most that long; the claims that were spoken of."""
        return self._reading(self._receive, seconds)

    def _receive(self, seconds: float) -> list[str]:
        if self._broken:
            self._mend()
        if self._poll_for != self._version:
            self._prepare_poll()
        wait = min(seconds, QUIET if self._polled else 0.1)
        ready = {fd for fd, _ in self._poll.poll(wait * 1000 if wait > 0 else 0)}
        told: list[str] = []
        # Each of them, each time: one that is deaf shall not hide behind another that is busy.
        for fd, ear in self._polled.items():
            if fd in ready:
                told += self._hear(ear)
            elif not ear.still_works():
                self._lose(ear)
        wake = self._wake_pipe()[0]
        if wake in ready:
            os.read(wake, 4096)
        return told

    def _prepare_poll(self) -> None:
        version = self._version
        poll = select.poll()
        polled = {ear.wire.sock.fileno(): ear for ear in list(self._ears.values())}
        for fd in (self._wake_pipe()[0], *polled):
            poll.register(fd, select.POLLIN)
        self._poll = poll
        self._polled = polled
        # Last: cut short before, it is prepared once more.
        self._poll_for = version

    def drain(self) -> None:
        """Hear what has arrived, if nobody else is listening; never waits."""
        if self._ears:
            self._reading.attempt(self._drain)

    def _drain(self) -> None:
        for ear in list(self._ears.values()):
            for claim_id in self._hear(ear):
                self._deliver(claim_id)

    def _hear(self, ear: Ear) -> list[str]:
        try:
            found = ear.hear()
        except OSError:
            self._lose(ear)
            return []
        return [self._heard(message) for message in found]

    def _lose(self, ear: Ear) -> None:
        if self._ears.get(ear.address) is ear:
            # In this order: cut short in between, it is lost once more.
            self._version += 1
            self._broken.add(ear.address)
            self._ears.pop(ear.address, None)
        ear.wire.drop()

    def _mend(self) -> None:
        """Subscribe anew where a subscription broke, and let everybody look: a message may have been missed.

        Once only: the server may be gone for good, and those who look subscribe where their lines are now.
        """
        for address in list(self._broken):
            try:
                self._listen(address, clock.now() + MENDING)
            except Exception:
                pass  # those who look find out why
            self._look_all()
            self._broken.discard(address)

    def _wake_pipe(self) -> tuple[int, int]:
        if self._wake is None:
            self._wake = os.pipe()
            for end in self._wake:
                os.set_blocking(end, False)
        return self._wake

    def nudge(self) -> None:
        """Make a running `receive` return."""
        if self._wake is not None:
            try:
                os.write(self._wake[1], b"!")
            except BlockingIOError:
                pass  # full of wake-ups already

    async def close(self) -> None:
        # First: one that is being opened is closed by who opens it, or by the look below.
        self._closed = True
        self._version += 1
        self._broken.clear()
        while self._ears:
            try:
                self._ears.popitem()[1].wire.drop()
            except KeyError:
                pass  # lost by its reader just now
        self.nudge()

    def __del__(self) -> None:
        wake, self._wake = getattr(self, "_wake", None), None
        for end in wake or ():
            os.close(end)


async def _first(reader: hiredis.Reader, source: asyncio.StreamReader) -> Any:
    """The first reply; what came behind it stays with the reader."""
    while (reply := reader.gets()) is Ellipsis:
        data = await source.read(65536)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        reader.feed(data)
    return reply


def _drop(connection: Any) -> None:
    """Close a connection of redis-py's asyncio flavour, if nobody has."""
    if connection._writer is not None:
        connection._writer.close()
        connection._writer = connection._reader = None


class LoopEars:
    """One reading task per subscription."""

    def __init__(
        self, target: Target, prefix: str, heard: Heard, deliver: Callable[[str], object], look_all: Callable[[], None]
    ) -> None:
        self._target = target
        self._prefix = prefix
        self._heard = heard
        self._deliver = deliver
        self._look_all = look_all
        self.forked()

    def forked(self) -> None:
        self._inherited = getattr(self, "_tasks", None)
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._channels: dict[Address, str] = {}
        self._listening: dict[Address, str] = {}
        self._opening: dict[Address, asyncio.Lock] = {}
        self._under_way: set[asyncio.Timeout] = set()
        self._closed = False

    def channel(self, address: Address) -> str:
        return self._listening.get(address, NO_CHANNEL)

    async def listen(self, address: Address, until: float) -> str:
        async with alone(self._opening.setdefault(address, asyncio.Lock()), address, until):
            if self._closed:
                raise ClientClosed("this client is closed; connect a new one")
            channel = self._listening.get(address)
            if channel is not None:
                return channel
            before = self._tasks.pop(address, None)
            if before is not None:
                before.cancel()
                await asyncio.wait([before])
            channel = self._channels.setdefault(address, new_channel(self._prefix))
            try:
                connection, reader = await self._subscribe(address, channel, until)
            finally:
                if before is not None and before.cancelled():
                    # It was mending, and would have let everybody look.
                    self._look_all()
            if self._closed:
                await connection.disconnect(nowait=True)
                raise ClientClosed("this client is closed; connect a new one")
            self._listening[address] = channel
            self._tasks[address] = task = asyncio.get_running_loop().create_task(
                self._read(address, channel, connection, reader), name="lockline-redis-ear"
            )
            # Cancelled before it began, it would leave the connection open.
            task.add_done_callback(lambda _: _drop(connection))
            task.add_done_callback(lambda ended: self._ended(address, ended))
            return channel

    def _ended(self, address: Address, task: asyncio.Task[None]) -> None:
        """Cancelled by somebody else, who cancels all tasks that he finds: those who look listen again."""
        if task.cancelled() and self._tasks.get(address) is task:
            del self._tasks[address]
            self._listening.pop(address, None)
            self._look_all()

    async def _subscribe(self, address: Address, channel: str, until: float) -> tuple[Any, hiredis.Reader]:
        """A connection on which the server has confirmed the channel, and what has read it, perhaps further."""
        connection = self._target.connection(address)
        reader = hiredis.Reader(notEnoughData=Ellipsis)
        try:
            async with asyncio.timeout(max(0.001, until - clock.now())) as limit:
                self._under_way.add(limit)
                try:
                    await stay_cancelled(connection.connect())
                    # No drain: it is one short line, and whoever reads finds out if the connection is gone.
                    connection._writer.write(pack(("SUBSCRIBE", channel)))
                    # Nobody may be sent to a channel on which nobody listens yet: it would be taken for dead.
                    async with asyncio.timeout(self._target.patience):
                        confirmed = await _first(reader, connection._reader)
                finally:
                    self._under_way.discard(limit)
        except (redis.RedisError, OSError, TimeoutError, hiredis.ProtocolError) as problem:
            await connection.disconnect(nowait=True)
            raise failed_login(problem, address) from problem
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if isinstance(confirmed, ServerError):
            await connection.disconnect(nowait=True)
            raise said_no(confirmed, address)
        return connection, reader

    async def _read(self, address: Address, channel: str, connection: Any, reader: hiredis.Reader) -> None:
        while True:
            try:
                await self._read_until_it_breaks(connection, reader)
            except (OSError, TimeoutError, hiredis.ProtocolError):
                pass
            finally:
                self._listening.pop(address, None)
                await connection.disconnect(nowait=True)
            try:
                connection, reader = await self._subscribe(address, channel, clock.now() + MENDING)
            except Exception:
                # Perhaps gone for good: those who look subscribe where their lines are now.
                self._look_all()
                return
            self._listening[address] = channel
            # A message may have been missed.
            self._look_all()

    async def _read_until_it_breaks(self, connection: Any, reader: hiredis.Reader) -> None:
        source: asyncio.StreamReader = connection._reader
        pinged = False
        while True:
            replies = []
            while (reply := reader.gets()) is not Ellipsis:
                replies.append(reply)
            for message in messages(replies):
                self._deliver(self._heard(message))
            try:
                async with asyncio.timeout(QUIET):
                    data = await source.read(65536)
            except TimeoutError:
                if pinged:
                    raise
                pinged = True
                connection._writer.write(PING)
                continue
            if not data:
                return
            pinged = False
            reader.feed(data)

    def receive(self, seconds: float) -> list[str]:
        """Nobody asks: the tasks deliver."""
        raise AssertionError("the loop's ears are read by their own tasks")

    def drain(self) -> None:
        """Nothing to do: the tasks read."""

    def nudge(self) -> None:
        """Nothing to do: nobody blocks."""

    async def close(self) -> None:
        self._closed = True
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        for limit in self._under_way:
            if not limit.expired():
                limit.reschedule(0)
        await asyncio.gather(*tasks, return_exceptions=True)
