"""One blocking conversation: a connection to each node, all of them written to at once and polled together.

A conversation may end before every node has answered. The answers still due are read by whoever uses the bundle next, because a
node answers in the order it was asked.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...runtime import clock
from ...runtime.limits import let_through
from ..pool import SharedPool
from ..resp.commands import ServerError
from ..resp.connection_blocking import BlockingConnection
from .channel import TakeAnswer
from .commands import SETTINGS, TIDYING, NodeAnswer, NodeFailure, NodeRequest, Reply, packed
from .membership import LOOK_AGAIN, durable

if TYPE_CHECKING:
    from .channel_blocking import BlockingFanout

NO_ROUND = -1
"""Of what is asked beside every conversation."""


Due = tuple[int, NodeRequest, float, TakeAnswer | None]
"""A request whose answer is still to come: the conversation that it belongs to, since when, and who notes it after that one."""


class BundledConnection:
    """The connection to one node, and the answers that are due on it."""

    __slots__ = ("connection", "due", "lasting", "looked", "node", "problem", "reader", "sock", "tls")

    def __init__(self, node: int) -> None:
        self.node = node
        self.connection: BlockingConnection | None = None
        self.sock: Any = None
        self.tls = False
        self.due: deque[Due] = deque()
        self.problem = "no connection yet"
        self.looked = 0.0
        """When the server's settings were last asked for on this connection."""
        self.lasting = ""
        """What they said and the server has not been told yet."""

    def adopt(self, connection: BlockingConnection) -> int:
        self.connection = connection
        self.sock, self.tls = connection.sock, connection.tls
        self.reader = connection.reader
        if not self.tls:
            # A socket with a timeout asks the kernel twice for everything; ours are polled together anyway.
            self.sock.setblocking(False)
        self.looked, self.lasting = clock.now(), ""
        return int(self.sock.fileno())

    def write(self, data: bytes, timeout: float) -> None:
        """Send it all; where the node does not read and the buffer is full, wait no longer than that."""
        if self.tls:
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

    def receive(self) -> bytes:
        """What has come over TLS, also what lies inside the library already, where no poll sees it."""
        data: bytes = self.sock.recv(65536)
        while self.sock.pending():
            data += self.sock.recv(65536)
        return data

    def drop(self, problem: str) -> deque[Due]:
        connection, self.connection, self.sock = self.connection, None, None
        due, self.due = self.due, deque()
        self.problem = problem
        if connection is not None:
            connection.close()
        return due

    def is_due(self, op: str, attempt: str) -> bool:
        """Whether the answer to that request of that attempt is still to come."""
        return any(request.op == op and request.args[1] == attempt for _, request, _, _ in self.due)


class Bundle:
    """A conversation over one connection to each node."""

    def __init__(self, channel: BlockingFanout, pool: SharedPool[Bundle]) -> None:
        self._channel = channel
        self._pool = pool
        self.connections = [BundledConnection(node) for node in range(len(channel.labels))]
        self._by_fd: dict[int, BundledConnection] = {}
        self._poll = select.poll()
        self._round = 0
        # True while requests and answers are being counted: a Ctrl-C that finds it so makes the bundle worthless.
        self._torn = False
        self._packed: tuple[NodeRequest | None, bytes] = (None, b"")
        self.began = clock.now()
        """When the latest conversation began."""
        self.gone = False
        """Of no use any more."""
        self._note: TakeAnswer | None = None
        self._due = 0
        self.answers: deque[NodeAnswer] = deque()

    def begin(self, note: TakeAnswer | None) -> int:
        """Ready for a conversation; to how many nodes there is a connection."""
        channel = self._channel
        now = self.began = clock.now()
        self._round += 1
        self._note = note
        self._due = 0
        self.answers.clear()
        self.read(0)
        overdue, long_ago = now - channel.node_timeout, now - LOOK_AGAIN
        for one in self.connections:
            if one.due:
                _, _, since, _ = one.due[0]
                if since < overdue:
                    self._lose(one, NodeFailure("timed out", f"no answer for {now - since:.2f} s"))
            if one.sock is None:
                connection = channel.take_spare(one.node)
                if connection is None:
                    continue
                fd = one.adopt(connection)
                self._by_fd[fd] = one
                self._poll.register(fd, select.POLLIN)
            if one.lasting or (one.looked < long_ago and note is not None):
                self._look_at_settings(one)
        return len(self._by_fd)

    def _look_at_settings(self, one: BundledConnection) -> None:
        """Ask how the server writes to its disk, and tell it what it said: its record has to be as true as its settings."""
        sock = one.sock

        def told(answer: NodeAnswer) -> None:
            _, request, reply = answer
            if request is SETTINGS and one.sock is sock:
                one.lasting = durable(reply)

        request = SETTINGS
        if one.lasting:
            request, one.lasting = NodeRequest("vouch", (one.lasting,)), ""
            if self.began > one.looked + LOOK_AGAIN:
                # Too long ago to be told as news.
                return
        else:
            one.looked = self.began
        data = packed(request, self._channel.cluster, whole=True)
        self._torn = True
        self._send(one, (NO_ROUND, request, self.began, told), data)
        self._torn = False

    def send(self, node: int, request: NodeRequest) -> None:
        if request is not self._packed[0]:
            self._packed = (request, packed(request, self._channel.cluster))
        self._torn = True
        self._due += 1
        self._send(self.connections[node], (self._round, request, self.began, self._note), self._packed[1])
        self._torn = False

    def send_all(self, request: NodeRequest, nodes: Sequence[int] | None = None) -> None:
        data = packed(request, self._channel.cluster)
        length = len(data)
        due = (self._round, request, self.began, self._note)
        connections = self.connections if nodes is None else [self.connections[node] for node in nodes]
        self._torn = True
        self._due += len(connections)
        for one in connections:
            sock = one.sock
            if sock is None or one.tls:
                self._send(one, due, data)
                continue
            # The same as `_send`, without its costs: this is the path of every acquire and release.
            one.due.append(due)
            try:
                if sock.send(data) != length:
                    self._lose(one, NodeFailure("error", "the server does not read"))
            except OSError as problem:
                let_through(problem)
                self._lose(one, NodeFailure("error", f"the connection broke: {problem}"))
        self._torn = False

    def follows(self, node: int, attempt: str, sent: float) -> bool:
        # A conversation keeps its connections or loses them. In a later one, only where the answer is still to come is it clear
        # that the acquire went over this one.
        one = self.connections[node]
        return one.sock is not None and (self.began <= sent or one.is_due("acquire", attempt))

    def _send(self, one: BundledConnection, due: Due, data: bytes) -> None:
        if one.sock is None:
            # What the latest connection died of, whoever tried to make it; else what this one did.
            problem = self._channel.membership.problems.get(one.node, one.problem)
            self._hand_on(one, due, NodeFailure("unreachable", problem))
            self._channel.owe(one.node, due[1])
            return
        one.due.append(due)
        try:
            one.write(data, self._channel.node_timeout)
        except OSError as broken:
            let_through(broken)
            self._lose(one, NodeFailure("error", f"the connection broke: {broken}"))

    async def wait(self, until: float, least: int = 1) -> bool:
        answers = self.answers
        while len(answers) < least and self._due:
            left = until - clock.now()
            if left <= 0:
                break
            self.read(left)
        return bool(answers)

    async def next(self, until: float) -> NodeAnswer | None:
        return self.answers.popleft() if self.answers or await self.wait(until) else None

    def read(self, seconds: float) -> None:
        """Take in what has come, waiting at most so long for it."""
        ready = self._poll.poll(seconds * 1000)
        of_now = self._round if self._note is not None else None
        answers = self.answers
        self._torn = True
        for fd, _ in ready:
            one = self._by_fd[fd]
            try:
                data = one.receive() if one.tls else one.sock.recv(65536)
                if not data:
                    raise ConnectionResetError("the server closed it")
                reader, due = one.reader, one.due
                reader.feed(data)
                while (reply := reader.gets()) is not Ellipsis:
                    if type(reply) is not list or not due:
                        self._take(one, reply)
                        if one.sock is None:
                            break
                        continue
                    # Nearly all of them; the same as `_take` does with these, without its costs.
                    asked_in, request, _, note = due.popleft()
                    if asked_in == of_now:
                        self._due -= 1
                        answers.append((one.node, request, reply))
                    elif note is not None:
                        note((one.node, request, reply))
            except (BlockingIOError, InterruptedError, TimeoutError) as nothing:
                let_through(nothing)
            except OSError as problem:
                # Also one that speaks nonsense.
                self._lose(one, NodeFailure("error", f"the connection broke: {problem}"))
        self._torn = False

    def _take(self, one: BundledConnection, reply: Any) -> None:
        if not one.due:
            self._lose(one, NodeFailure("error", "an answer that nobody asked for"))
            return
        due = asked_in, request, _, note = one.due.popleft()
        now = asked_in == self._round and self._note is not None
        if isinstance(reply, ServerError):
            text = str(reply)
            again = now and not (request.op == "acquire" and one.is_due("release", request.args[1]))
            if text.startswith("NOSCRIPT") and (again or request.op in TIDYING):
                # Somebody flushed the scripts; a restart would have broken the connection.
                one.due.append((asked_in, request, clock.now(), note))
                one.write(packed(request, self._channel.cluster, whole=True), self._channel.node_timeout)
                return
            reply = NodeFailure("refused", text)
            if request.op == "release":
                self._channel.owe(one.node, request)
                self._channel.want(one.node)
        self._hand_on(one, due, reply)

    def _hand_on(self, one: BundledConnection, due: Due, reply: Reply) -> None:
        asked_in, request, _, note = due
        if asked_in == self._round and self._note is not None:
            self._due -= 1
            self.answers.append((one.node, request, reply))
        elif note is not None:
            note((one.node, request, reply))

    def _lose(self, one: BundledConnection, failure: NodeFailure) -> None:
        if failure.kind == "timed out":
            self._channel.silent.add(one.node)
        if one.sock is not None:
            fd = one.sock.fileno()
            self._by_fd.pop(fd, None)
            try:
                self._poll.unregister(fd)
            except (KeyError, ValueError, OSError):
                pass
        for due in one.drop(f"{failure.kind}: {failure.text}"):
            self._channel.owe(one.node, due[1])
            self._hand_on(one, due, failure)
        self._channel.want(one.node)

    def part(self) -> None:
        note, self._note = self._note, None
        while self.answers and note is not None:
            note(self.answers.popleft())
        if self._torn or self._channel.closed:
            self.drop()
        else:
            self._pool.give_back(self)
        self._channel.look_after()

    def drop(self) -> None:
        """Of no use any more: what is due on it will not be heard, what must arrive is repeated."""
        self.gone = True
        for one in self.connections:
            for _, request, _, _ in one.due:
                self._channel.owe(one.node, request)
        self.close()
        self._pool.make_room()

    def tidy(self) -> bool:
        """Between conversations: take late answers, give up on what is overdue. Whether anything is still due."""
        self.begin(None)
        return any(one.due for one in self.connections)

    def close(self) -> None:
        for fd in self._by_fd:
            self._poll.unregister(fd)
        self._by_fd.clear()
        for one in self.connections:
            one.drop("closed")
