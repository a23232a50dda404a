"""The blocking channel: send to all nodes, then one poll over their sockets. No thread per node.

A conversation has a bundle of connections, one to each node, for itself; bundles are kept for the next call. One background
thread, alive only while there is something to do, reconnects what broke and repeats what must arrive.
"""

from __future__ import annotations

import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Sequence
from typing import Any

import redis

from ...errors import ClientClosed, QuorumNotReached
from ...runtime import clock
from . import commands
from .channel import Note
from .commands import NodeRequest, command
from .connection_blocking import Bundle
from .membership import PREPARATION, Membership, durable, greeting
from .pool import Bell, Pool
from .rules import majority
from .target import TROUBLE, Node

BUNDLES = 4
"""Conversations that may go on at once; more threads take turns, in order of arrival."""
KEPT = 2
"""Beside them, for renewals alone: no number of busy threads makes a lease late."""
MOST_SPARES = BUNDLES + KEPT
SETTLE = 0.02
"""How long a first connection waits for the slower nodes once a majority is there."""
TICK = 0.25
LINGER = 5.0
LAST_CHANCE = 0.5
"""How long `close` tries to deliver releases that have not arrived."""


def connect_timeout(node_timeout: float) -> float:
    """How long a connection may take that has to be made, encrypted, authenticated and greeted."""
    return max(1.0, 4 * node_timeout)


def time_to_connect(now: float, until: float, node_timeout: float, lively: int, nodes: int) -> float:
    """Until when to wait for connections: some time has to be left for asking, or the servers that are there say nothing.

    With so many known to be silent that the others are too few, this is only to see whether they are back.
    """
    patience = connect_timeout(node_timeout) if lively >= majority(nodes) else node_timeout
    return min(until - min(node_timeout, (until - now) / 2), now + patience)


class Tender:
    """One background thread."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        self.ended = Bell()


def busy() -> QuorumNotReached:
    """The error for a thread that found every bundle in use for all of its time."""
    error = QuorumNotReached("every connection of this client was in use, by other threads", nodes={})
    error.unsent = True
    return error


class BlockingFanout:
    """Sockets and threads."""

    now = staticmethod(clock.now)

    def __init__(self, nodes: Sequence[Node], node_timeout: float) -> None:
        self._nodes = nodes
        self.labels = [node.label for node in nodes]
        self.node_timeout = node_timeout
        self.closed = False
        self.membership = Membership(self.labels)
        self._begin()

    def _begin(self) -> None:
        self._bundles = Pool(BUNDLES, lambda: Bundle(self, self._bundles))
        self._kept = Pool(KEPT, lambda: Bundle(self, self._kept))
        self.spares: list[deque[Any]] = [deque() for _ in self._nodes]
        self._wanted: dict[int, None] = {}
        self._retry_at = [0.0] * len(self._nodes)
        self._backoff = [0.1] * len(self._nodes)
        self._debts: list[dict[str, tuple[NodeRequest, float]]] = [{} for _ in self._nodes]
        self.silent: set[int] = set()
        """Nodes that were last seen not to answer, or not to be there."""
        self._bell = Bell()
        self._tender: Tender | None = None
        self._used = 0.0

    def forked(self) -> None:
        """In a child: the parent's sockets are left alone, without a word on them."""
        self._begin()

    @property
    def cluster(self) -> str:
        return self.membership.cluster or ""

    def wall(self) -> int:
        return time.time_ns() // 1000

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this is the blocking flavour

    def patience(self, ttl: float) -> float:
        return min(self.node_timeout, ttl / 5)

    # -- conversations -----------------------------------------------------------------------------

    async def talk(self, note: Note, until: float, *, kept: bool = False) -> Bundle:
        if self.closed:
            raise ClientClosed()
        self._used = clock.now()
        # Its own are for when the others are in use: those have their connections already.
        bundle = (self._bundles.take_idle() or self._kept.take(until)) if kept else self._bundles.take(until)
        if bundle is None:
            raise busy()
        try:
            up = bundle.begin(note)
            if self.membership.cluster is None:
                # What the servers said when they were greeted may be out of date: greet them again.
                bundle.close()
                self._no_spares()
            if up < majority(len(self.labels)) or self.membership.cluster is None:
                self._connect(bundle, note, until)
            if self.membership.cluster is None:
                raise self.membership.error()
        except BaseException:
            bundle.part()
            raise
        return bundle

    # -- connections -------------------------------------------------------------------------------

    def _connect(self, bundle: Bundle, note: Note, until: float) -> None:
        """Connect to all nodes at once and wait for a majority; a moment longer for the others, if they are quick."""
        until = time_to_connect(
            clock.now(), until, self.node_timeout, len(self.labels) - len(self.silent), len(self.labels)
        )
        opening: set[int] = set()
        failed: set[int] = set()
        ended: deque[tuple[int, bool]] = deque()
        bell = Bell()

        def open_one(node: int) -> None:
            opened = False
            try:
                opened = self._open(node)
            finally:
                ended.append((node, opened))
                bell.ring()

        settled = float("inf")
        while True:
            while ended:
                node, opened = ended.popleft()
                opening.discard(node)
                if not opened:
                    failed.add(node)
            up = bundle.begin(note)
            now = clock.now()
            missing = [wire.node for wire in bundle.wires if wire.sock is None]
            if up >= majority(len(self.labels)) and self.membership.cluster is not None:
                settled = min(settled, now + SETTLE)
            if now >= min(until, settled) or failed.issuperset(missing):
                return
            # Another bundle may have taken the connection that was made for this one: then make another.
            for node in missing:
                if node not in opening and node not in failed and not self.spares[node]:
                    opening.add(node)
                    start_new_thread(open_one, (node,))
            if not any(self.spares[node] for node in missing):
                bell.wait(min(until, settled, now + TICK) - now)

    @property
    def _connect_timeout(self) -> float:
        return connect_timeout(self.node_timeout)

    def _open(self, node: int) -> bool:
        """Make a connection and be greeted on it: a server that has restarted finds it out here, before anything else."""
        connection = self._nodes[node].connection(self._connect_timeout)
        try:
            connection.connect()
            durable = _prepare(connection)
            said = greeting(_ask(connection, *command(NodeRequest("greet", (durable,)), "", whole=True)))
            self.membership.met(node, said)
            self._pay(node, connection)
        except Exception as problem:
            # Whatever it is, also a greeting that makes no sense: this server is of no use now.
            connection.disconnect()
            self.silent.add(node)
            self.membership.failed(node, f"unreachable: {problem}")
            return False
        self.silent.discard(node)
        if len(self.spares[node]) < MOST_SPARES and not self.closed:
            self.spares[node].append(connection)
        else:
            # Many calls asked for it while the server was silent, and none of them waits any more.
            connection.disconnect()
        return True

    def want(self, node: int) -> None:
        """A connection to this node is missing: let the background make one."""
        if not self.closed:
            self._wanted[node] = None
            self._bell.ring()

    def owe(self, node: int, request: NodeRequest) -> None:
        """A release has to arrive: repeat it until it is acknowledged or its ttl is over."""
        if request.op == "release" and self.membership.cluster is not None:
            longest = min(self.membership.longest, 3600.0)
            debts = self._debts[node]
            if len(debts) < 10_000:
                debts[request.args[1]] = (request, clock.now() + longest)

    def _pay(self, node: int, connection: Any) -> None:
        if self.membership.cluster is None:
            return
        for attempt, (request, until) in list(self._debts[node].items()):
            if clock.now() < until:
                try:
                    _ask(connection, *command(commands.again(request), self.cluster))
                except redis.ResponseError:
                    # Refused for now (no memory, no replicas): the background asks again.
                    self.want(node)
                    continue
            self._debts[node].pop(attempt, None)

    def _pay_over_spare(self, node: int) -> bool:
        try:
            connection = self.spares[node].popleft()
        except IndexError:
            return False
        try:
            self._pay(node, connection)
        except TROUBLE:
            connection.disconnect()
            return False
        self.spares[node].append(connection)
        return True

    # -- the background ----------------------------------------------------------------------------

    def tended(self) -> None:
        """A conversation is over: somebody has to look after what it left."""
        if self._tender is None and not self.closed:
            # Started in one instruction, and it enters itself: nothing is left half done. Of two, the first finds itself replaced.
            start_new_thread(self._tend, (Tender(),))

    def _tend(self, me: Tender) -> None:
        try:
            if self._tender is None:
                self._tender = me
                self._tend_while_needed(me)
        finally:
            # Whatever ended it, the next conversation can start another.
            if self._tender is me:
                self._tender = None
            me.ended.ring()

    def _tend_while_needed(self, me: Tender) -> None:
        while not self.closed and self._tender is me:
            self._bell.wait(TICK)
            now = clock.now()
            for node in list(self._wanted):
                if self.spares[node] and not self._debts[node]:
                    self._wanted.pop(node, None)
                elif now >= self._retry_at[node]:
                    self._retry(node)
            due = [pool.tidy() for pool in (self._bundles, self._kept)]
            if not any(due) and not any(self._debts) and clock.now() - self._used > LINGER:
                return
            if self._wanted:
                pause = min((self._retry_at[node] for node in list(self._wanted)), default=0.0) - clock.now()
                if pause > 0:
                    # Somebody may ask again and again for a node that is not to be tried yet.
                    time.sleep(min(pause, TICK))

    def _retry(self, node: int) -> None:
        there = self._pay_over_spare(node) if self.spares[node] else self._open(node)
        if there and not self._debts[node]:
            self._wanted.pop(node, None)
            self._backoff[node] = 0.1
        else:
            self._backoff[node] = min(2.0, self._backoff[node] * 2)
        self._retry_at[node] = clock.now() + self._backoff[node]

    def close(self) -> None:
        self.closed = True
        tender, self._tender = self._tender, None
        self._bell.ring()
        # A release repeated over another connection may have to leave a tombstone: better to hear of the first one.
        until = clock.now() + min(self.node_timeout, LAST_CHANCE)
        for bundle in (*self._bundles.empty(), *self._kept.empty()):
            while bundle.tidy() and (left := until - clock.now()) > 0:
                bundle.read(left)
            bundle.drop()
        if tender is not None:
            tender.ended.wait(1.0)
        # What could not be delivered yet gets a last chance; after that only its ttl ends it.
        owing = [node for node, debts in enumerate(self._debts) if debts]
        paid: deque[int] = deque()
        bell = Bell()

        def pay(node: int) -> None:
            try:
                self._open(node)
            finally:
                paid.append(node)
                bell.ring()

        for node in owing:
            start_new_thread(pay, (node,))
        until = clock.now() + LAST_CHANCE
        while len(paid) < len(owing) and (left := until - clock.now()) > 0:
            bell.wait(left)
        self._no_spares()

    def _no_spares(self) -> None:
        for spares in self.spares:
            while spares:
                try:
                    spares.pop().disconnect()
                except IndexError:
                    pass  # taken by another thread in this moment


def _ask(connection: Any, *words: Any) -> Any:
    connection.send_command(*words, check_health=False)
    return connection.read_response(disable_decoding=True)


def _prepare(connection: Any) -> str:
    """Load the scripts of the hot path; and whether everything is on the server's disk before it answers ("1")."""
    connection.send_packed_command(connection.pack_commands(PREPARATION), check_health=False)
    said, *_ = [_answer(connection) for _ in PREPARATION]
    return durable(said)


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except redis.ResponseError as refused:
        # CONFIG is forbidden at times; then the server counts as one that may forget.
        return refused
