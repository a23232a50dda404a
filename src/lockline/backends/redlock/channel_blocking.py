"""The blocking channel: send to all nodes, then one poll over their sockets. No thread per node.

A conversation has a bundle of connections, one to each node, for itself; bundles are kept for the next call. One background
thread, alive only while there is something to do, reconnects what broke and repeats what must arrive.
"""

from __future__ import annotations

import time
from _thread import LockType, allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Sequence

from ...errors import ClientClosed, QuorumNotReached
from ...runtime import clock
from ...runtime.blocking import ring
from ..pool import SharedPool
from ..resp.commands import ServerError
from ..resp.connection_blocking import BlockingConnection
from ..resp.errors import NoAnswer
from .channel import LAST_CHANCE, SETTLE, Fanout, OwedReleases, TakeAnswer, connect_timeout, time_to_connect
from .commands import NodeRequest, packed
from .connection_blocking import Bundle
from .membership import PREPARATION, Greeting, durable, greet, greeting
from .rules import majority
from .target import Node

BUNDLES = 4
"""Conversations that may go on at once; more threads take turns, in order of arrival."""
KEPT = 2
"""Beside them, for renewals alone: no number of busy threads makes a lease late."""
MOST_SPARES = BUNDLES + KEPT
TICK = 0.25
LINGER = 5.0
OVERDUE = 30.0
"""Seconds after which a bundle that was taken and not given back counts as lost, though something still refers to it: the traceback
of an exception that somebody keeps. No conversation lasts that long."""


class Wakeup:
    """Wakes one thread, now or when it next waits; one instruction each way."""

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        self._gate: LockType = allocate_lock()
        self._gate.acquire()

    def call(self) -> None:
        # One that was called already finds whatever was noted before this, too.
        if self._gate.locked():
            ring(self._gate)

    def wait(self, seconds: float) -> bool:
        """Whether it was called by then."""
        return self._gate.acquire(True, max(0.0, min(seconds, 60.0)))


def busy() -> QuorumNotReached:
    """The error for a thread that found every bundle in use for all of its time."""
    error = QuorumNotReached("every connection of this client was in use, by other threads", nodes={})
    error.unsent = True
    return error


def bundle_pool(most: int, make: Callable[[SharedPool[Bundle]], Bundle]) -> SharedPool[Bundle]:
    """A pool that counts no bundle as taken for ever."""

    def counts(bundle: Bundle) -> bool:
        return not bundle.gone and (clock.now() - bundle.began < OVERDUE or bundle in pool.free)

    pool: SharedPool[Bundle] = SharedPool(most, lambda: make(pool), counts)
    return pool


class BlockingFanout(Fanout):
    """Sockets and threads."""

    def __init__(self, nodes: Sequence[Node], node_timeout: float) -> None:
        super().__init__([node.label for node in nodes], node_timeout)
        self._nodes = nodes
        self._needed = majority(len(nodes))
        self._begin()

    def _begin(self) -> None:
        self._bundles = bundle_pool(BUNDLES, lambda pool: Bundle(self, pool))
        self._kept = bundle_pool(KEPT, lambda pool: Bundle(self, pool))
        self.spares: list[deque[BlockingConnection]] = [deque() for _ in self._nodes]
        self._wanted: dict[int, None] = {}
        self._retry_at = [0.0] * len(self._nodes)
        self._backoff = [0.1] * len(self._nodes)
        self._owed = [OwedReleases(self.membership) for _ in self._nodes]
        self.silent: set[int] = set()
        """Nodes that were last seen not to answer, or not to be there."""
        self._wakeup = Wakeup()
        self._background: Wakeup | None = None
        """Called when the background thread that has it ends."""
        self._used = 0.0

    def forked(self) -> None:
        """In a child: the parent's sockets are left alone, without a word on them."""
        self._begin()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this is the blocking flavour

    # -- conversations -----------------------------------------------------------------------------

    async def talk(self, note: TakeAnswer, until: float, *, kept: bool = False) -> Bundle:
        if self.closed:
            raise ClientClosed()
        self._used = clock.now()
        # Its own are for when the others are in use: those have their connections already.
        bundle = self._bundles.take_free() or (self._kept if kept else self._bundles).take(until)
        if bundle is None:
            raise busy()
        try:
            if bundle.begin(note) < self._needed or self.membership.cluster is None:
                if self.membership.cluster is None:
                    # What the servers said when they were greeted may be out of date: greet them again.
                    bundle.close()
                    self._no_spares()
                self._connect(bundle, note, until)
                if self.membership.cluster is None:
                    raise self.membership.error()
        except BaseException:
            bundle.part()
            raise
        return bundle

    # -- connections -------------------------------------------------------------------------------

    def _connect(self, bundle: Bundle, note: TakeAnswer, until: float) -> None:
        """Connect to all nodes at once and wait for a majority; a moment longer for the others, if they are quick."""
        until = time_to_connect(
            clock.now(), until, self.node_timeout, len(self.labels) - len(self.silent), len(self.labels)
        )
        opening: set[int] = set()
        failed: set[int] = set()
        ended: deque[tuple[int, bool]] = deque()
        wakeup = Wakeup()

        def open_one(node: int) -> None:
            opened = False
            try:
                opened = self._open(node)
            finally:
                ended.append((node, opened))
                wakeup.call()

        settled = float("inf")
        while True:
            while ended:
                node, opened = ended.popleft()
                opening.discard(node)
                if not opened:
                    failed.add(node)
            up = bundle.begin(note)
            now = clock.now()
            missing = [one.node for one in bundle.connections if one.sock is None]
            if up >= self._needed and self.membership.cluster is not None:
                settled = min(settled, now + SETTLE)
            if now >= min(until, settled) or failed.issuperset(missing):
                return
            # Another bundle may have taken the connection that was made for this one: then make another.
            for node in missing:
                if node not in opening and node not in failed and not self.spares[node]:
                    opening.add(node)
                    start_new_thread(open_one, (node,))
            if not any(self.spares[node] for node in missing):
                wakeup.wait(min(until, settled, now + TICK) - now)

    def _open(self, node: int) -> bool:
        """Make a connection and be greeted on it: a server that has restarted finds it out here, before anything else."""
        timeout = connect_timeout(self.node_timeout)
        connection = BlockingConnection(self._nodes[node].within(timeout))
        try:
            _, said = greeted(connection, clock.now() + 2 * timeout)
            self.membership.met(node, said)
            self._pay(node, connection)
        except Exception as problem:
            # Whatever it is, also a greeting that makes no sense: this server is of no use now.
            connection.close()
            self.silent.add(node)
            self.membership.failed(node, f"unreachable: {problem}")
            return False
        self.silent.discard(node)
        if len(self.spares[node]) < MOST_SPARES and not self.closed:
            self.spares[node].append(connection)
        else:
            # Many calls asked for it while the server was silent, and none of them waits any more.
            connection.close()
        return True

    def take_spare(self, node: int) -> BlockingConnection | None:
        """A connection to this node that nobody uses yet; if there is none, the background makes one."""
        spares = self.spares[node]
        # Mostly there is none, for as long as a node is away: no exception for that.
        if spares:
            try:
                return spares.popleft()
            except IndexError:
                pass  # taken by another thread in this moment
        self.want(node)
        return None

    def want(self, node: int) -> None:
        """A connection to this node is missing: let the background make one."""
        if not self.closed:
            self._wanted[node] = None
            self._wakeup.call()

    def hurry(self) -> None:
        self._retry_at = [0.0] * len(self._nodes)
        self._wakeup.call()

    def owe(self, node: int, request: NodeRequest) -> None:
        """The node has not answered: if it is a release, it has to arrive."""
        self._owed[node].add(request)
        if self._owed[node] and node not in self._wanted:
            # Whoever made a connection meanwhile found nothing that was owed, and is through.
            self.want(node)

    def _pay(self, node: int, connection: BlockingConnection) -> None:
        for request in self._owed[node].due():
            said = connection.ask(packed(request, self.cluster), clock.now() + connection.patience)
            # Refused for now (no memory, no replicas), it stays owed, and the background asks again.
            if not isinstance(said, ServerError):
                self._owed[node].settle(request)

    def _pay_over_spare(self, node: int) -> bool:
        try:
            connection = self.spares[node].popleft()
        except IndexError:
            return False
        try:
            self._pay(node, connection)
        except NoAnswer:
            connection.close()
            return False
        self.spares[node].append(connection)
        return True

    # -- the background ----------------------------------------------------------------------------

    def look_after(self) -> None:
        """A conversation is over: somebody has to look after what it left."""
        if self._background is None and not self.closed:
            # Started in one instruction, and it enters itself: nothing is left half done. Of two, the first finds itself replaced.
            start_new_thread(self._work, (Wakeup(),))

    def _work(self, me: Wakeup) -> None:
        try:
            if self._background is None:
                self._background = me
                self._work_while_needed(me)
        finally:
            # Whatever ended it, the next conversation can start another.
            if self._background is me:
                self._background = None
            me.call()

    def _work_while_needed(self, me: Wakeup) -> None:
        while not self.closed and self._background is me:
            self._wakeup.wait(TICK)
            now = clock.now()
            for node, owed in enumerate(self._owed):
                if owed:
                    # Also what came to be owed in the very moment in which this thread was through with the node.
                    self._wanted[node] = None
            for node in list(self._wanted):
                if self.spares[node] and not self._owed[node]:
                    self._wanted.pop(node, None)
                elif now >= self._retry_at[node]:
                    self._retry(node)
            due = [_tidy(pool) for pool in (self._bundles, self._kept)]
            if not any(due) and not any(self._owed) and clock.now() - self._used > LINGER:
                return
            if self._wanted:
                pause = min((self._retry_at[node] for node in list(self._wanted)), default=0.0) - clock.now()
                if pause > 0:
                    # Somebody may ask again and again for a node that is not to be tried yet.
                    time.sleep(min(pause, TICK))

    def _retry(self, node: int) -> None:
        there = self._pay_over_spare(node) if self.spares[node] else self._open(node)
        if there and not self._owed[node]:
            self._wanted.pop(node, None)
            self._backoff[node] = 0.1
        else:
            self._backoff[node] = min(2.0, self._backoff[node] * 2)
        self._retry_at[node] = clock.now() + self._backoff[node]

    async def close(self) -> None:
        self.closed = True
        background, self._background = self._background, None
        self._wakeup.call()
        # A release repeated over another connection may have to leave a tombstone: better to hear of the first one.
        until = clock.now() + min(self.node_timeout, LAST_CHANCE)
        for bundle in (*self._bundles.take_all_free(), *self._kept.take_all_free()):
            while bundle.tidy() and (left := until - clock.now()) > 0:
                bundle.read(left)
            bundle.drop()
        if background is not None:
            background.wait(1.0)
        # What could not be delivered yet gets a last chance; after that only its ttl ends it.
        owing = [node for node, owed in enumerate(self._owed) if owed]
        paid: deque[int] = deque()
        wakeup = Wakeup()

        def pay(node: int) -> None:
            try:
                self._open(node)
            finally:
                paid.append(node)
                wakeup.call()

        for node in owing:
            start_new_thread(pay, (node,))
        until = clock.now() + LAST_CHANCE
        while len(paid) < len(owing) and (left := until - clock.now()) > 0:
            wakeup.wait(left)
        self._no_spares()

    def _no_spares(self) -> None:
        for spares in self.spares:
            while spares:
                try:
                    spares.pop().close()
                except IndexError:
                    pass  # taken by another thread in this moment


def greeted(connection: BlockingConnection, until: float) -> tuple[str, Greeting]:
    """Open it and load the scripts of the hot path; whether everything is on the server's disk, and what it says of itself."""
    connection.open(until)
    settings, *_ = connection.ask_all(PREPARATION, until)
    return durable(settings), greeting(connection.ask(greet(settings), until))


def _tidy(pool: SharedPool[Bundle]) -> bool:
    """Take in what came late for the bundles that are free; whether anything is still due on them. For the background."""
    due = False
    for _ in range(len(pool.free)):
        try:
            # The other end of what `take` pops: those are the ones least used.
            bundle = pool.free.popleft()
        except IndexError:
            break
        try:
            due = bundle.tidy() or due
        finally:
            pool.free.appendleft(bundle)
            pool.make_room()
    return due
