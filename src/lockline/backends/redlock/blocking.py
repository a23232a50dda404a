"""The blocking port: send to all nodes, then one poll over their sockets. No thread per node.

A conversation has a bundle of connections, one to each node, for itself; bundles are kept for the next call. One background
thread, alive only while there is something to do, reconnects what broke and repeats what must arrive.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import redis

from ...core import clock
from ...errors import ClientClosed
from . import requests
from .bundle import Bundle
from .membership import PREPARATION, Membership, durable, greeting
from .nodes import TROUBLE, Node
from .port import Note
from .requests import Request, command
from .rules import majority

BUNDLES = 4
"""Conversations that may go on at once; more threads take turns."""
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


class BlockingPort:
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
        self._mutex = threading.Condition(threading.Lock())
        self._idle: list[Bundle] = []
        self._queue = 0
        # Weak, so that one which an interrupt made away with is not missed for ever.
        self._bundles: weakref.WeakSet[Bundle] = weakref.WeakSet()
        self.spares: list[deque[Any]] = [deque() for _ in self._nodes]
        self._wanted: set[int] = set()
        self._retry_at = [0.0] * len(self._nodes)
        self._backoff = [0.1] * len(self._nodes)
        self._debts: list[dict[str, tuple[Request, float]]] = [{} for _ in self._nodes]
        self.silent: set[int] = set()
        """Nodes that were last seen not to answer, or not to be there."""
        self._bell = threading.Event()
        self._tender: threading.Thread | None = None
        self._used = 0.0

    def forked(self) -> None:
        """In a child: the parent's sockets are left alone, without a word on them."""
        self._begin()

    @property
    def cluster(self) -> str:
        return self.membership.cluster or ""

    def wall(self) -> int:
        return time.time_ns() // 1000

    def patience(self, ttl: float) -> float:
        return min(self.node_timeout, ttl / 5)

    # -- conversations -----------------------------------------------------------------------------

    async def talk(self, note: Note, until: float) -> Bundle:
        if self.closed:
            raise ClientClosed("this client is closed; connect a new one")
        bundle = self._take(until)
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

    def _take(self, until: float) -> Bundle:
        self._used = clock.now()
        with self._mutex:
            while not self._idle:
                if len(self._bundles) < BUNDLES:
                    bundle = Bundle(self)
                    self._bundles.add(bundle)
                    return bundle
                self._queue += 1
                try:
                    free = self._mutex.wait(max(0.0, min(until - clock.now(), 0.1)))
                finally:
                    self._queue -= 1
                if not free and clock.now() >= until:
                    raise self.membership.error()
            return self._idle.pop()

    def give_back(self, bundle: Bundle) -> None:
        with self._mutex:
            if self.closed:
                bundle.close()
            else:
                self._idle.append(bundle)
            if self._queue:
                self._mutex.notify()
        if self._tender is None and not self.closed:
            self._start_tender()

    # -- connections -------------------------------------------------------------------------------

    def _connect(self, bundle: Bundle, note: Note, until: float) -> None:
        """Connect to all nodes at once and wait for a majority; a moment longer for the others, if they are quick."""
        until = time_to_connect(
            clock.now(), until, self.node_timeout, len(self.labels) - len(self.silent), len(self.labels)
        )
        opening: set[int] = set()
        failed: set[int] = set()

        def open_one(node: int) -> None:
            opened = False
            try:
                opened = self._open(node)
            finally:
                with self._mutex:
                    if not opened:
                        failed.add(node)
                    opening.discard(node)
                    self._mutex.notify_all()

        settled = float("inf")
        while True:
            up = bundle.begin(note)
            now = clock.now()
            missing = [wire.node for wire in bundle.wires if wire.sock is None]
            if up >= majority(len(self.labels)) and self.membership.cluster is not None:
                settled = min(settled, now + SETTLE)
            if now >= min(until, settled) or failed.issuperset(missing):
                return
            with self._mutex:
                # Another bundle may have taken the connection that was made for this one: then make another.
                for node in missing:
                    if node not in opening and node not in failed and not self.spares[node]:
                        opening.add(node)
                        threading.Thread(target=open_one, args=(node,), name="lockline-connect", daemon=True).start()
                if not any(self.spares[node] for node in missing) and not failed.issuperset(missing):
                    self._mutex.wait(max(0.0, min(until, settled) - now))

    @property
    def _connect_timeout(self) -> float:
        return connect_timeout(self.node_timeout)

    def _open(self, node: int) -> bool:
        """Make a connection and be greeted on it: a server that has restarted finds it out here, before anything else."""
        connection = self._nodes[node].connection(self._connect_timeout)
        try:
            connection.connect()
            durable = _prepare(connection)
            said = greeting(_ask(connection, *command(Request("greet", (durable,)), "", whole=True)))
            self.membership.met(node, said)
            self._pay(node, connection)
        except Exception as problem:
            # Whatever it is, also a greeting that makes no sense: this server is of no use now.
            connection.disconnect()
            self.silent.add(node)
            self.membership.failed(node, f"unreachable: {problem}")
            return False
        self.silent.discard(node)
        if len(self.spares[node]) < BUNDLES:
            self.spares[node].append(connection)
        else:
            # Many calls asked for it while the server was silent, and none of them waits any more.
            connection.disconnect()
        return True

    def want(self, node: int) -> None:
        """A connection to this node is missing: let the background make one."""
        if not self.closed:
            self._wanted.add(node)
            self._bell.set()

    def owe(self, node: int, request: Request) -> None:
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
                    _ask(connection, *command(requests.again(request), self.cluster))
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

    def _start_tender(self) -> None:
        with self._mutex:
            if self._tender is None:
                self._tender = threading.Thread(target=self._tend, name="lockline-redlock", daemon=True)
                self._tender.start()

    def _tend(self) -> None:
        try:
            self._tend_while_needed()
        finally:
            # Whatever ended it, the next conversation can start another.
            with self._mutex:
                if self._tender is threading.current_thread():
                    self._tender = None

    def _tend_while_needed(self) -> None:
        me = threading.current_thread()
        while not self.closed and self._tender is me:
            self._bell.wait(TICK)
            self._bell.clear()
            now = clock.now()
            for node in list(self._wanted):
                if self.spares[node] and not self._debts[node]:
                    self._wanted.discard(node)
                elif now >= self._retry_at[node]:
                    self._retry(node)
            busy = False
            with self._mutex:
                for bundle in self._idle:
                    busy = bundle.tidy() or busy
                busy = busy or any(self._debts)
                if not busy and clock.now() - self._used > LINGER:
                    # Here and not later: whoever comes after this starts another.
                    self._tender = None
                    return
            if self._wanted:
                pause = min(self._retry_at[node] for node in self._wanted) - clock.now()
                if pause > 0 and self._bell.is_set():
                    # Somebody asks again for a node that is not to be tried yet.
                    time.sleep(min(pause, TICK))

    def _retry(self, node: int) -> None:
        there = self._pay_over_spare(node) if self.spares[node] else self._open(node)
        if there and not self._debts[node]:
            self._wanted.discard(node)
            self._backoff[node] = 0.1
        else:
            self._backoff[node] = min(2.0, self._backoff[node] * 2)
        self._retry_at[node] = clock.now() + self._backoff[node]
        with self._mutex:
            self._mutex.notify_all()

    def close(self) -> None:
        with self._mutex:
            self.closed = True
            idle, self._idle = self._idle, []
            tender, self._tender = self._tender, None
            self._mutex.notify_all()
        self._bell.set()
        # A release repeated over another connection may have to leave a tombstone: better to hear of the first one.
        until = clock.now() + min(self.node_timeout, LAST_CHANCE)
        for bundle in idle:
            while bundle.tidy() and (left := until - clock.now()) > 0:
                bundle.read(left)
            for wire in bundle.wires:
                for _, request, _, _ in wire.due:
                    self.owe(wire.node, request)
            bundle.close()
        if tender is not None and tender is not threading.current_thread():
            tender.join(1.0)
        # What could not be delivered yet gets a last chance; after that only its ttl ends it.
        last = [
            threading.Thread(target=self._open, args=(node,), name="lockline-connect", daemon=True)
            for node, debts in enumerate(self._debts)
            if debts
        ]
        for thread in last:
            thread.start()
        until = clock.now() + LAST_CHANCE
        for thread in last:
            thread.join(max(0.0, until - clock.now()))
        self._no_spares()

    def _no_spares(self) -> None:
        for spares in self.spares:
            while spares:
                spares.pop().disconnect()


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
