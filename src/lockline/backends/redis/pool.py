"""The blocking port: a few connections per server, taken and given back by the thread that asks, in order of arrival.

An exception may strike between any two steps of Python: Ctrl-C, an alarm, a soft time limit. So nothing here is counted up in
one step and down in another. What exists is what is alive: a wire that nobody has any more, and that is not among the
free ones, is garbage, and so its place in the pool is free by that alone; a thread that was struck down in the line is no longer
there, because the line knows its people by weak references only. Whoever should have been woken by it looks by himself, a little later.
Nothing here blocks on a lock that the same thread may hold: a signal handler and a finalizer may lock as well.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import hiredis

from ...errors import ClientClosed
from ...runtime import clock
from .port import pack
from .problems import Address, DiedIdle, NoAnswer, vet
from .target import Target
from .wires import Wire

INFO = pack(("INFO", "server"))
LOOK_AGAIN = 0.25
"""Seconds after which whoever stands in the line looks unasked whether it still moves."""


class Turn:
    """One thread's place in the line for a wire, with the bell that is rung for it."""

    __slots__ = ("__weakref__", "bell")

    def __init__(self) -> None:
        self.bell = threading.Lock()
        self.bell.acquire()


class Pool:
    """The wires to one server: at most so many, whatever the number of threads."""

    def __init__(self, target: Target, address: Address, most: int, sentinel: bool) -> None:
        self._target = target
        self.address = address
        self._most = most
        self._sentinel = sentinel
        self.free: list[Wire] = []
        self.line: deque[weakref.ref[Turn]] = deque()
        """Who waits for a wire. While there is anybody, newcomers go to its end, and do not look at what is free."""
        self._made: list[weakref.ref[Wire]] = []
        self._vetted = sentinel
        # Re-entrant, for signal handlers; the worst that an inner turn does to an outer one is a wire too many.
        self._making = threading.RLock()

    def take(self, until: float) -> Wire:
        """A wire of the caller's own until it is given back or dropped."""
        wire = None if self.line else self._free_or_new()
        if wire is None:
            turn = Turn()
            mine = weakref.ref(turn)
            self.line.append(mine)
            try:
                wire = self._wait(mine, turn, until)
            finally:
                self._forget(mine)
                # One ring may have stood for two wires.
                if self.line and (self.free or self._has_room()):
                    self.ring()
        if not wire.is_open:
            self._open(wire, until)
        return wire

    def _wait(self, mine: weakref.ref[Turn], turn: Turn, until: float) -> Wire:
        ahead: object = None
        while True:
            if self._first() in (mine, None):
                wire = self._free_or_new()
                if wire is not None:
                    return wire
            left = until - clock.now()
            if left <= 0:
                raise NoAnswer(self.address, "every connection is in use", sent=False, late=True)
            if turn.bell.acquire(timeout=min(left, LOOK_AGAIN)):
                continue
            first = self._first()
            if first is not None and first is ahead and first is not mine and (self.free or self._has_room()):
                # It had all this time and did not come: struck down, or held up by a signal handler. It may come again.
                self._forget(first)
            elif mine not in self.line:
                self.line.append(mine)
            ahead = first

    def _first(self) -> weakref.ref[Turn] | None:
        """Who is the next; those who are no more are passed over."""
        while True:
            try:
                first = self.line[0]
            except IndexError:
                return None
            if first() is not None:
                return first
            self._forget(first)

    def _forget(self, turn: weakref.ref[Turn]) -> None:
        try:
            self.line.remove(turn)
        except ValueError:
            pass  # passed over, and gone already

    def _free_or_new(self) -> Wire | None:
        try:
            return self.free.pop()
        except IndexError:
            pass
        with self._making:
            if not self._has_room():
                return None
            wire = Wire(self._target, self.address, self._sentinel)
            self._made = [ref for ref in self._made if _is_there(ref)] + [weakref.ref(wire)]
            return wire

    def _has_room(self) -> bool:
        return sum(map(_is_there, self._made)) < self._most

    def _open(self, wire: Wire, until: float) -> None:
        try:
            wire.open(until)
            if not self._vetted:
                vet(wire.ask(INFO, until), self.address)
                self._vetted = True
        except BaseException:
            self.drop(wire)
            raise

    def give_back(self, wire: Wire) -> None:
        """The wire is idle and in order."""
        self.free.append(wire)
        if self.line:
            self.ring()

    def ring(self) -> None:
        """There is a wire, or room for one, and somebody waits: it is the turn of the first."""
        first = self._first()
        turn = None if first is None else first()
        if turn is not None:
            try:
                turn.bell.release()
            except RuntimeError:
                pass  # rung already

    def drop(self, wire: Wire) -> None:
        """The wire is of no use any more."""
        wire.drop()
        if self.line:
            self.ring()

    def clear(self) -> None:
        """Close what is idle."""
        while True:
            try:
                wire = self.free.pop()
            except IndexError:
                return
            self.drop(wire)


def _is_there(ref: weakref.ref[Wire]) -> bool:
    wire = ref()
    return wire is not None and not wire.gone


class BlockingPort:
    """Requests by the calling thread itself."""

    def __init__(self, target: Target, most: int) -> None:
        self._target = target
        self._most = most
        self.forked()

    def forked(self) -> None:
        """Sockets of the parent are closed here by their garbage, without a word: redis-py knows its process."""
        self._pools: dict[Address, Pool] = {}
        self._closed = False

    def _pool(self, address: Address, sentinel: bool) -> Pool:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools.setdefault(address, Pool(self._target, address, self._most, sentinel))
        # After the look, so that nobody is left with a pool that `close` did not see.
        if self._closed:
            raise ClientClosed("this client is closed; connect a new one")
        return pool

    async def ask(self, address: Address, request: bytes, until: float) -> Any:
        pool = self._pools.get(address) or self._pool(address, False)
        while True:
            try:
                wire = pool.take(until) if pool.line else pool.free.pop()
            except IndexError:
                wire = pool.take(until)
            try:
                reply = wire.ask(request, until)
            except DiedIdle:
                pool.drop(wire)
                continue
            except BaseException:
                # Its answer may still come: nobody may read that as the answer to something else.
                pool.drop(wire)
                raise
            # Not a part of the `try`: once it is among the free ones it is no longer ours to drop.
            pool.free.append(wire)
            if pool.line:
                pool.ring()
            return reply

    async def ask_all(
        self, address: Address, requests: Sequence[bytes], until: float, *, sentinel: bool = False
    ) -> list[Any]:
        pool = self._pool(address, sentinel)
        while True:
            wire = pool.take(until)
            try:
                replies = [wire.ask(b"".join(requests), until)]
                while len(replies) < len(requests):
                    replies.append(wire.read())
            except DiedIdle:
                pool.drop(wire)
                continue
            except (OSError, hiredis.ProtocolError) as problem:
                pool.drop(wire)
                raise NoAnswer(address, problem, sent=True) from problem
            except BaseException:
                pool.drop(wire)
                raise
            pool.give_back(wire)
            return replies

    def forget(self, address: Address) -> None:
        pool = self._pools.get(address)
        if pool is not None:
            pool.clear()

    async def close(self) -> None:
        self._closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.clear()
