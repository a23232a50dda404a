"""How a server reaches a waiting client: one subscription per server, to a channel of the client's own.

A message is "id token" (the claim holds now) or "id" (look, something happened to it). Whoever misses one, because the
connection broke or went silent, is made to look: on every new subscription all waiting claims are told to.
"""

from __future__ import annotations

import asyncio
import secrets
import select
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from ...core.waiting import Hints, begun
from ...errors import BackendUnavailable, ClientClosed, LocklineError
from ...runtime import clock
from ...runtime.exclusive import Exclusive
from ...runtime.limits import let_through
from ...runtime.section import Inside, Late, Section
from ...runtime.wake_pipe import WakePipe
from ..resp import subscription
from ..resp.errors import NoAnswer
from ..resp.link_asyncio import alone, turns
from ..resp.subscription import AsyncioSubscription, BlockingSubscription
from ..resp.target import Address
from .changes import BEGINNING, BlockingTracker, Tracked
from .target import Target

T = TypeVar("T")

MENDING = 0.5
"""Seconds that mending one may take; meanwhile nobody hears the others."""


class Subscriptions:
    """The one subscription of a client at each server where it has waiting claims."""

    hints: Hints

    def __init__(self, target: Target, prefix: str, take_note: Callable[[str], str]) -> None:
        self._target = target
        self._prefix = prefix
        self._take_note = take_note
        """Notes what a message says, and gives back the id of the claim that it speaks of, if it has to hear of it."""
        self._channels: dict[Address, str] = {}

    def _channel(self, address: Address) -> str:
        """The same one each time that we listen there, which nobody else can guess or share."""
        return self._channels.setdefault(address, f"{self._prefix}:{secrets.token_hex(6)}")

    def _spoken_of(self, heard: Sequence[Any]) -> list[str]:
        """The claims that the messages among what was heard, read byte by byte, speak of; the rest confirms subscriptions and answers pings."""
        told = []
        for each in heard:
            if isinstance(each, list) and each[0] == b"message":
                claim_id = self._take_note(each[2].decode("latin-1"))
                if claim_id:
                    told.append(claim_id)
        return told


class BlockingSubscriptions(Subscriptions):
    """Read by whichever waiting thread leads, or by the keeper when nobody waits."""

    def __init__(self, target: Target, prefix: str, take_note: Callable[[str], str]) -> None:
        super().__init__(target, prefix, take_note)
        self._wake = WakePipe()
        self.forked()

    def forked(self) -> None:
        self._wake.close()
        self.open: dict[Address, BlockingSubscription] = {}
        self.trackers: dict[Address, BlockingTracker] = {}
        self._broken: set[Address] = set()
        self._channels = {}
        self._reading = Section()
        self._opening = Section()
        self._closed = False
        self._version = 0
        self._poll_for = -1
        self._polled: dict[int, BlockingSubscription] = {}
        self._poll: select.poll

    async def listen(self, address: Address, until: float) -> str:
        return self._listen(address, until).channel

    def _listen(self, address: Address, until: float) -> BlockingSubscription:
        one = self.open.get(address)
        if one is not None and not self._closed:
            return one
        return self._in_turn(self._subscribe, address, until)

    def _in_turn(self, work: Callable[..., T], address: Address, until: float, *args: Any) -> T:
        """One thread at a time connects, or says something on what is connected."""
        try:
            return self._opening.by(until, work, address, until, *args)
        except Late as problem:
            raise NoAnswer(address, "no time left to connect", sent=False, late=True) from problem
        except Inside as problem:
            error = BackendUnavailable("asked by a signal handler in the middle of connecting to this very server")
            error.unsent = True
            raise error from problem

    def _subscribe(self, address: Address, until: float) -> BlockingSubscription:
        if self._closed:
            raise ClientClosed()
        one = self.open.get(address)
        if one is None:
            channel = self._channel(address)
            one = BlockingSubscription(self._target.server(address), until, channel)
            # First, so that it is never polled by one who does not know that there is something new.
            self._version += 1
            self.open[address] = one
            if self._closed:
                one.close()
            # Whoever reads now does not know of this one yet.
            self.nudge()
        return one

    async def watch(self, key: bytes, watcher: str, address: Address, until: float) -> bool:
        """Have the server tell of the next change of this key; whether it does such things."""
        return self._in_turn(self._watch, address, until, key, watcher)

    def _watch(self, address: Address, until: float, key: bytes, watcher: str) -> bool:
        if self._closed:
            raise ClientClosed()
        one = self.trackers.get(address)
        if one is None:
            one = BlockingTracker(self._target.server(address), until)
            self._version += 1
            self.trackers[address] = one
            if self._closed:
                one.close()
            self.nudge()
        if one.tracked.refused:
            return False
        request = one.tracked.ask(key, watcher)
        if not request:
            self.hints.heard(begun(watcher))
            return True
        try:
            one.send(request)
        except OSError as problem:
            self._lose(one)
            let_through(problem)
            raise NoAnswer(address, problem, sent=False) from problem
        return True

    def unwatch(self, watcher: str) -> None:
        for one in list(self.trackers.values()):
            if one.tracked.drop(watcher):
                self._lose(one)

    def receive(self, seconds: float) -> list[str]:
        """Wait at most that long; the claims that were spoken of."""
        return self._reading(self._receive, seconds)

    def _receive(self, seconds: float) -> list[str]:
        if self._broken:
            self._mend()
        if self._poll_for != self._version:
            self._prepare_poll()
        wait = min(seconds, subscription.QUIET if self._polled else 0.1)
        found = self._poll.poll(wait * 1000 if wait > 0 else 0)
        if len(found) == len(self._polled) == 1 and (only := self._polled.get(found[0][0])) is not None:
            # The common case, kept short: all who stand in the line wait for what is done from here to the next one's body.
            return self._hear(only)
        ready = {fd for fd, _ in found}
        told: list[str] = []
        # Each of them, each time: one that is deaf shall not hide behind another that is busy.
        for fd, one in self._polled.items():
            if fd in ready:
                told += self._hear(one)
            elif not one.still_works():
                self._lose(one)
        if self._wake.fileno() in ready:
            self._wake.clear()
        return told

    def _prepare_poll(self) -> None:
        version = self._version
        poll = select.poll()
        polled = {one.sock.fileno(): one for one in (*self.open.values(), *self.trackers.values())}
        for fd in (self._wake.fileno(), *polled):
            poll.register(fd, select.POLLIN)
        self._poll = poll
        self._polled = polled
        # Last: cut short before, it is prepared once more.
        self._poll_for = version

    def drain(self) -> None:
        """Hear what has arrived, if nobody else is listening; never waits."""
        if self.open:
            self._reading.attempt(self._drain)

    def _drain(self) -> None:
        for one in list(self.open.values()):
            for claim_id in self._hear(one):
                self.hints.heard(claim_id)
            if one.gone or not one.still_works():
                self._lose(one)
                self.hints.heard_all()  # nobody waits who would mend it

    def _hear(self, one: BlockingSubscription) -> list[str]:
        try:
            heard = one.hear()
        except OSError as problem:
            self._lose(one)
            let_through(problem)
            return []
        if isinstance(one, BlockingTracker):
            return [watcher for reply in heard for watcher in one.tracked.take(reply)]
        return self._spoken_of(heard)

    def _lose(self, one: BlockingSubscription) -> None:
        if self.open.get(one.address) is one:
            # In this order: cut short in between, it is lost once more.
            self._version += 1
            self._broken.add(one.address)
            self.open.pop(one.address, None)
        elif isinstance(one, BlockingTracker) and self.trackers.get(one.address) is one:
            self._version += 1
            self.trackers.pop(one.address, None)
            for watcher in one.tracked.end():
                self.hints.heard(watcher)
        one.close()

    def _mend(self) -> None:
        """Subscribe anew where a subscription broke, and let everybody look: a message may have been missed.

        Once only: the server may be gone for good, and those who look subscribe where their lines are now.
        """
        for address in list(self._broken):
            try:
                self._listen(address, clock.now() + MENDING)
            except (NoAnswer, LocklineError):
                # Those who look find out why. Nothing else: a soft time limit of the thread that leads is the thread's own.
                pass
            self.hints.heard_all()
            self._broken.discard(address)

    def nudge(self) -> None:
        """Make a running `receive` return."""
        self._wake.ring()

    async def close(self) -> None:
        # First: one that is being opened is closed by who opens it, or by the look below.
        self._closed = True
        self._version += 1
        self._broken.clear()
        for these in (self.open, self.trackers):
            while these:
                try:
                    these.popitem()[1].close()
                except KeyError:
                    pass  # lost by its reader just now
        self.nudge()


class AsyncioSubscriptions(Subscriptions):
    """Brought by the loop itself."""

    def __init__(self, target: Target, prefix: str, take_note: Callable[[str], str]) -> None:
        super().__init__(target, prefix, take_note)
        self.forked()

    def forked(self) -> None:
        # Kept, never closed: the parent's loop is a stranger here.
        self._inherited = dict(self.__dict__)
        self.open: dict[Address, AsyncioSubscription] = {}
        self.trackers: dict[Address, tuple[AsyncioSubscription, Tracked]] = {}
        self._unready: set[AsyncioSubscription] = set()
        self._lost: set[Address] = set()
        """Where a message may have been missed that nobody has looked for yet."""
        self._mending: set[asyncio.Task[None]] = set()
        self._channels = {}
        self._opening: dict[Address, Exclusive] = {}
        self._closed = False

    async def listen(self, address: Address, until: float) -> str:
        async with alone(self._opening.setdefault(address, turns()), address, until):
            if self._closed:
                raise ClientClosed()
            channel = self._channel(address)
            if address not in self.open:
                one = AsyncioSubscription(self._target.server(address), self._take, partial(self._lose, address))
                self.open[address] = await self._open(one, until, channel)
            if address in self._lost:
                self._lost.discard(address)
                self.hints.heard_all()
            return channel

    async def _open(self, one: AsyncioSubscription, until: float, channel: str = "") -> AsyncioSubscription:
        self._unready.add(one)
        try:
            await one.open(until, channel)
        finally:
            self._unready.discard(one)
        if self._closed:
            one.close(ConnectionAbortedError("the client was closed"))
            raise ClientClosed()
        return one

    async def watch(self, key: bytes, watcher: str, address: Address, until: float) -> bool:
        """Have the server tell of the next change of this key; whether it does such things."""
        async with alone(self._opening.setdefault(address, turns()), address, until):
            if self._closed:
                raise ClientClosed()
            if address not in self.trackers:
                tracked = Tracked()
                one = AsyncioSubscription(
                    self._target.server(address),
                    lambda reply: self._tell(tracked.take(reply)),
                    lambda why: self._lose_tracker(address, tracked),
                )
                self.trackers[address] = await self._open(one, until), tracked
                one.send(BEGINNING)
        one, tracked = self.trackers[address]
        if tracked.refused:
            return False
        request = tracked.ask(key, watcher)
        if request:
            one.send(request)
        else:
            self.hints.heard(begun(watcher))
        return True

    def unwatch(self, watcher: str) -> None:
        for one, tracked in list(self.trackers.values()):
            if tracked.drop(watcher):
                one.close(ConnectionAbortedError("nobody watches any more"))

    def _lose_tracker(self, address: Address, tracked: Tracked) -> None:
        if self.trackers.get(address, (None, None))[1] is tracked:
            self.trackers.pop(address)
        self._tell(tracked.end())

    def _tell(self, watchers: Sequence[str]) -> None:
        for watcher in watchers:
            self.hints.heard(watcher)

    def _take(self, reply: Any) -> None:
        for claim_id in self._spoken_of([reply]):
            self.hints.heard(claim_id)

    def _lose(self, address: Address, why: Exception) -> None:
        self.open.pop(address, None)
        self._lost.add(address)
        if not self._closed:
            mending = asyncio.get_running_loop().create_task(self._mend(address), name="lockline-redis-listen")
            self._mending.add(mending)
            mending.add_done_callback(self._mended)

    async def _mend(self, address: Address) -> None:
        """Subscribe anew, and let everybody look: a message may have been missed.

        Once only: the server may be gone for good, and those who look subscribe where their lines are now.
        """
        try:
            await self.listen(address, clock.now() + MENDING)
        except Exception:
            pass  # those who look find out why

    def _mended(self, mending: asyncio.Task[None]) -> None:
        """Or not, or cancelled by somebody who cancels all tasks that he finds."""
        self._mending.discard(mending)
        if self._lost:
            self.hints.heard_all()

    def drain(self) -> None:
        """Nothing to do: the loop reads."""

    async def close(self) -> None:
        self._closed = True
        why = ConnectionAbortedError("the client was closed")
        trackers = [one for one, _ in self.trackers.values()]
        for one in (*self.open.values(), *trackers, *self._unready):
            one.close(why)
        self.open.clear()
        mending = list(self._mending)
        for task in mending:
            task.cancel()
        await asyncio.gather(*mending, return_exceptions=True)
