"""One blocking conversation: a connection to each node, all of them written to at once and polled together.

A conversation may end before every node has answered. The answers still due are read by whoever uses the bundle next, because a
node answers in the order it was asked.
"""

from __future__ import annotations

import select
from collections import deque
from typing import TYPE_CHECKING, Any

import hiredis

from ...runtime import clock
from .channel import Note
from .commands import SETTINGS, TIDYING, Failure, NodeRequest, Reply, command
from .membership import LOOK_AGAIN, durable

if TYPE_CHECKING:
    from .channel_blocking import BlockingFanout
    from .pool import Pool

Due = tuple[int, NodeRequest, float, Note]
NO_ROUND = -1
"""Of what is asked beside every conversation."""


class Wire:
    """One connection to one node, and the answers that are due on it."""

    __slots__ = ("due", "lasting", "looked", "node", "problem", "reader", "secure", "sock", "wire")

    def __init__(self, node: int) -> None:
        self.node = node
        self.wire: Any = None
        self.sock: Any = None
        self.secure = False
        self.reader: Any = None
        self.due: deque[Due] = deque()
        self.problem = "no connection yet"
        self.looked = 0.0
        """When the server's settings were last asked for on this connection."""
        self.lasting = ""
        """What they said and the server has not been told yet."""

    def adopt(self, connection: Any) -> int:
        self.wire = connection
        # The library made, authenticated and encrypted it; from here on only bytes go over it.
        self.sock = connection._sock
        self.secure = hasattr(self.sock, "pending")
        if not self.secure:
            # A socket with a timeout asks the kernel twice for everything; ours are polled together anyway.
            self.sock.setblocking(False)
        self.reader = hiredis.Reader()
        self.looked, self.lasting = clock.now(), ""
        return int(self.sock.fileno())

    def write(self, data: bytes, timeout: float) -> None:
        """Send it all; where the node does not read and the buffer is full, wait no longer than that."""
        if self.secure:
            self.sock.sendall(data)
            return
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.sock.settimeout(timeout)
            self.sock.sendall(data[sent:])
            self.sock.setblocking(False)

    def drop(self, problem: str) -> deque[Due]:
        connection, self.wire, self.sock, self.reader = self.wire, None, None, None
        due, self.due = self.due, deque()
        self.problem = problem
        if connection is not None:
            connection.disconnect()
        return due


class Bundle:
    """A conversation over one connection to each node."""

    def __init__(self, channel: BlockingFanout, pool: Pool) -> None:
        self._channel = channel
        self._pool = pool
        self.wires = [Wire(node) for node in range(len(channel.labels))]
        self._by_fd: dict[int, Wire] = {}
        self._poll = select.poll()
        self._round = 0
        # True while requests and answers are being counted: a Ctrl-C that finds it so makes the bundle worthless.
        self._torn = False
        self._packed: tuple[NodeRequest | None, bytes] = (None, b"")
        self.began = clock.now()
        """When the latest conversation began."""
        self.gone = False
        """Of no use any more."""
        self._note: Note | None = None
        self._due = 0
        self._answers: deque[tuple[int, NodeRequest, Reply]] = deque()

    def begin(self, note: Note | None) -> int:
        """Ready for a conversation; to how many nodes there is a connection."""
        channel = self._channel
        now = self.began = clock.now()
        self._round += 1
        self._note = note
        self._due = 0
        self._answers.clear()
        self.read(0)
        up = 0
        for wire in self.wires:
            if wire.sock is not None and wire.due and now - wire.due[0][2] > channel.node_timeout:
                self._lose(wire, Failure("timed out", f"no answer for {now - wire.due[0][2]:.2f} s"))
            if wire.sock is None:
                try:
                    connection = channel.spares[wire.node].popleft()
                except IndexError:
                    channel.want(wire.node)
                    continue
                fd = wire.adopt(connection)
                self._by_fd[fd] = wire
                self._poll.register(fd, select.POLLIN)
            if wire.lasting or (note is not None and now > wire.looked + LOOK_AGAIN):
                self._look_at_settings(wire)
            up += wire.sock is not None
        return up

    def _look_at_settings(self, wire: Wire) -> None:
        """Ask how the server writes to its disk, and tell it what it said: its record has to be as true as its settings."""
        sock = wire.sock

        def told(node: int, request: NodeRequest, reply: Reply) -> None:
            if request is SETTINGS and wire.sock is sock:
                wire.lasting = durable(reply)

        request = SETTINGS
        if wire.lasting:
            request, wire.lasting = NodeRequest("vouch", (wire.lasting,)), ""
            if self.began > wire.looked + LOOK_AGAIN:
                # Too long ago to be told as news.
                return
        else:
            wire.looked = self.began
        data = hiredis.pack_command(command(request, self._channel.cluster, whole=True))
        self._torn = True
        wire.due.append((NO_ROUND, request, self.began, told))
        try:
            wire.write(data, self._channel.node_timeout)
        except OSError as problem:
            self._lose(wire, Failure("error", f"the connection broke: {problem}"))
        self._torn = False

    def send(self, node: int, request: NodeRequest) -> None:
        if request is not self._packed[0]:
            self._packed = (request, hiredis.pack_command(command(request, self._channel.cluster)))
        self._send(self.wires[node], request, self._packed[1])

    def send_all(self, request: NodeRequest) -> None:
        data = hiredis.pack_command(command(request, self._channel.cluster))
        # The same as `_send` to each, without its costs: this is the path of every acquire and release.
        due = (self._round, request, self.began, self._note)
        length = len(data)
        for wire in self.wires:
            sock = wire.sock
            if sock is None or wire.secure:
                self._send(wire, request, data)
                continue
            self._torn = True
            wire.due.append(due)  # type: ignore[arg-type]
            self._due += 1
            try:
                if sock.send(data) != length:
                    self._lose(wire, Failure("error", "the server does not read"))
            except OSError as problem:
                self._lose(wire, Failure("error", f"the connection broke: {problem}"))
            self._torn = False

    def follows(self, node: int, attempt: str, sent: float) -> bool:
        # A conversation keeps its connections or loses them. In a later one, only where the answer is still to come is it clear
        # that the acquire went over this one.
        wire = self.wires[node]
        return wire.sock is not None and (self.began <= sent or _is_due(wire, "acquire", attempt))

    def _send(self, wire: Wire, request: NodeRequest, data: bytes) -> None:
        note = self._note
        assert note is not None
        if wire.sock is None:
            # What the latest connection died of, whoever tried to make it; else what this one did.
            problem = self._channel.membership.problems.get(wire.node, wire.problem)
            self._answers.append((wire.node, request, Failure("unreachable", problem)))
            self._channel.owe(wire.node, request)
            return
        self._torn = True
        wire.due.append((self._round, request, self.began, note))
        self._due += 1
        try:
            wire.write(data, self._channel.node_timeout)
        except OSError as broken:
            self._lose(wire, Failure("error", f"the connection broke: {broken}"))
        self._torn = False

    async def next(self, until: float) -> tuple[int, NodeRequest, Reply] | None:
        answers = self._answers
        while not answers:
            if not self._due:
                return None
            left = until - clock.now()
            if left <= 0:
                return None
            self.read(left)
        return answers.popleft()

    def read(self, seconds: float) -> None:
        """Take in what has come, waiting at most so long for it."""
        by_fd = self._by_fd
        for fd, _ in self._poll.poll(seconds * 1000):
            wire = by_fd[fd]
            self._torn = True
            data: bytes | None
            try:
                data = wire.sock.recv(65536)
                while wire.secure and wire.sock.pending():
                    data += wire.sock.recv(65536)
            except (BlockingIOError, InterruptedError, TimeoutError):
                data = None
            except OSError as problem:
                self._lose(wire, Failure("error", f"the connection broke: {problem}"))
                data = None
            if data:
                reader = wire.reader
                reader.feed(data)
                while (reply := reader.gets()) is not False:
                    if type(reply) is list and wire.due and wire.due[0][0] == self._round and self._note is not None:
                        self._due -= 1
                        self._answers.append((wire.node, wire.due.popleft()[1], reply))
                        continue
                    self._take(wire, reply)
                    if wire.reader is not reader:
                        break
            elif data is not None:
                self._lose(wire, Failure("error", "the server closed the connection"))
            self._torn = False

    def _take(self, wire: Wire, reply: Any) -> None:
        if not wire.due:
            self._lose(wire, Failure("error", "an answer that nobody asked for"))
            return
        asked_in, request, _, note = wire.due.popleft()
        now = asked_in == self._round and self._note is not None
        if isinstance(reply, hiredis.ReplyError):
            text = str(reply)
            again = now and not (request.op == "acquire" and _is_due(wire, "release", request.args[1]))
            if text.startswith("NOSCRIPT") and (again or request.op in TIDYING):
                # Somebody flushed the scripts; a restart would have broken the connection.
                wire.due.append((asked_in, request, clock.now(), note))
                try:
                    whole = command(request, self._channel.cluster, whole=True)
                    wire.write(hiredis.pack_command(whole), self._channel.node_timeout)
                except OSError as problem:
                    self._lose(wire, Failure("error", f"the connection broke: {problem}"))
                return
            reply = Failure("refused", text)
            if request.op == "release":
                self._channel.owe(wire.node, request)
                self._channel.want(wire.node)
        if now:
            self._due -= 1
            self._answers.append((wire.node, request, reply))
        else:
            note(wire.node, request, reply)

    def _lose(self, wire: Wire, failure: Failure) -> None:
        if failure.kind == "timed out":
            self._channel.silent.add(wire.node)
        if wire.sock is not None:
            fd = wire.sock.fileno()
            self._by_fd.pop(fd, None)
            try:
                self._poll.unregister(fd)
            except (KeyError, ValueError, OSError):
                pass
        for asked_in, request, _, note in wire.drop(f"{failure.kind}: {failure.text}"):
            self._channel.owe(wire.node, request)
            if asked_in == self._round and self._note is not None:
                self._due -= 1
                self._answers.append((wire.node, request, failure))
            else:
                note(wire.node, request, failure)
        self._channel.want(wire.node)

    def part(self) -> None:
        note, self._note = self._note, None
        while self._answers and note is not None:
            note(*self._answers.popleft())
        if self._torn or self._channel.closed:
            self.drop()
        else:
            self._pool.give_back(self)
        self._channel.tended()

    def drop(self) -> None:
        """Of no use any more: what is due on it will not be heard, what must arrive is repeated."""
        self.gone = True
        for wire in self.wires:
            for _, request, _, _ in wire.due:
                self._channel.owe(wire.node, request)
        self.close()
        self._pool.dropped()

    def tidy(self) -> bool:
        """Between conversations: take late answers, give up on what is overdue. Whether anything is still due."""
        self.begin(None)
        return any(wire.due for wire in self.wires)

    def close(self) -> None:
        for fd in self._by_fd:
            self._poll.unregister(fd)
        self._by_fd.clear()
        for wire in self.wires:
            wire.drop("closed")


def _is_due(wire: Wire, op: str, attempt: str) -> bool:
    return any(request.op == op and request.args[1] == attempt for _, request, _, _ in wire.due)
