"""One connection that any number of threads use at the same time: requests go out as they come, answers come back in order.

Whoever has something to send takes along what others have to send meanwhile; of those who wait for an answer one reads for all. So
a crowd of threads needs few connections, few system calls, and nobody waits for the distance of anybody else.

An exception may strike a thread between any two instructions. What it was in the middle of, nobody knows then: so that stream is
given up, with all who wait for an answer on it, and they ask again on a new one. Every request may be repeated.
"""

from __future__ import annotations

import socket
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

from ...errors import ClientClosed
from ...runtime import clock
from ...runtime.blocking import ring
from ...runtime.limits import let_through
from ...runtime.section import Section
from .commands import PUSHED
from .connection_blocking import IDLE, BlockingConnection, BlockingLink, Way
from .errors import NoAnswer
from .joining import Join, Request, apart
from .questions import Parcel, Question, tell_as_sent
from .target import Server

LOOK_AGAIN: Final = 0.5
"""Seconds after which one who waits looks unasked whether somebody reads: the one who should ring him may have been struck."""
SEATS: Final = 32
"""Threads that share one connection at the same time. More wait for a seat, in order of arrival: so many threads that are awake
at once, for whatever reason, would take the interpreter from the one that renews."""


class SharedStream:
    """One connection and those who wait for an answer on it, in the order of their requests."""

    __slots__ = ("broken", "connection", "heard", "pending", "read_by", "reads", "sends", "used")

    def __init__(self, connection: BlockingConnection) -> None:
        self.connection = connection
        self.pending: deque[Question | Parcel] = deque()
        self.broken: Exception | None = None
        # Noted before each piece of work and taken back after it, because a second exception can follow the first so closely that
        # no handler gets to do anything: two signals at once do that. Who comes next, and is alone, finds what they left.
        self.reads = False
        """Whether somebody reads, or was struck at it: then nobody knows whose answer comes next."""
        self.sends = False
        """Whether somebody sends, or was struck at it: then nobody knows whether all who wait were asked for."""
        self.read_by: Question | None = None
        self.used = self.heard = clock.now()
        """When it was last sent on; and since when, with somebody waiting, nothing has come."""

    def send(self, questions: Sequence[Question | Parcel]) -> None:
        """Send these; if that fails, nobody here will be answered."""
        try:
            self.sends = True
            self.used = clock.now()
            if not self.pending:
                self.heard = self.used
            # First: an answer may be here before the next instruction.
            self.pending.extend(questions)
            self.connection.sock.sendall(b"".join([bytes(question.request) for question in questions]))
            self.sends = False
        except OSError as problem:
            self.fail(problem)
            let_through(problem)
        except BaseException:
            self.fail(ConnectionAbortedError("the thread that was sending was struck down"))
            raise
        if self.broken is not None:
            self.fail(self.broken)

    def read(self, mine: Question, until: float) -> None:
        """Wait for something to come, at most until then, and give everybody what is his."""
        if mine.over or self.broken is not None:
            return
        if self.reads:
            self.fail(ConnectionAbortedError("the thread that was reading was struck down"))
            return
        connection, pending = self.connection, self.pending
        self.read_by = mine
        try:
            self.reads = True
            data = connection.wait_for_some(until)
            if data is None:
                self.reads = False
                return
            self.heard = clock.now()
            reader = connection.reader
            reader.feed(data)
            while (reply := reader.gets()) is not Ellipsis:
                if type(reply) is PUSHED:
                    continue
                asked = pending[0]
                # After the look at who is first: another thread that gives this stream up says so before it takes anybody out. From
                # then on the first one is not the one whose answer this is.
                if self.broken is not None:
                    break
                asked.answers.append(reply)
                if len(asked.answers) == asked.wanted:
                    taken = pending.popleft()
                    asked.end()
                    if taken is not asked:
                        taken.end(self.broken)
            self.reads = False
        except IndexError:
            self.fail(ConnectionAbortedError("an answer that nobody asked for"))
        except OSError as problem:
            self.fail(problem)
            let_through(problem)
        except BaseException:
            self.fail(ConnectionAbortedError("the thread that was reading was struck down"))
            raise
        finally:
            self.read_by = None

    def fail(self, why: Exception) -> None:
        """Nobody who waits here will have an answer."""
        # First: whoever joins from here on finds it.
        self.broken = why
        while self.pending:
            try:
                self.pending.popleft().end(why)
            except IndexError:
                break  # another one tells them too
        try:
            # Not closed under a thread that may read it: another one could get its number. It is closed with the last who knows it.
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is down already

    def call_reader(self, behind: Iterable[Question]) -> None:
        """If somebody waits and nobody reads, have the one read whose answer comes last: he can read for the others."""
        if self.pending and self.read_by is None:
            # If all of these have given up: one of those who wait to be sent when they are answered.
            for question in (*reversed(list(self.pending)), *behind):
                if question.call():
                    return

    def awaits(self, question: Question) -> bool:
        """Whether the answer to this one is still to come."""
        return any(each.concerns(question) for each in list(self.pending))


class SharedConnection:
    """What threads ask through together; opened when it is needed."""

    def __init__(self, opened: Callable[[float], BlockingConnection], server: Server, join: Join = apart) -> None:
        self._opened = opened
        self._address = server.address
        self._patience = server.patience
        self._join = join
        self._stream: SharedStream | None = None
        self._unsent: deque[Question] = deque()
        self._urgent = False
        """Whether there is one among these that waits for nothing."""
        self._sending = Section()
        self._reading = Section()

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        stream = self._stream
        return bool(self._unsent) or (stream is not None and bool(stream.pending))

    def ask(self, request: Request, wanted: int, until: float, *, urgent: bool = True) -> list[Any]:
        """The answers to that many commands.

        What is not urgent is not sent while something is under way, but with whatever there is when that is answered, or with
        the next one that is: so it waits for one answer more at most, and the requests of a crowd become few.
        """
        if self._reading.entered() or self._sending.entered():
            return self._ask_apart(request, wanted, until)
        question = Question(request, wanted)
        try:
            self._unsent.append(question)
            if urgent:
                self._urgent = True
            # Who is sending now looks for more after his last, as we do here: so nobody's is left lying.
            while self._to_be_sent and self._sending.attempt(self._send, until):
                pass
            return self._answer(question, until)
        except BaseException as problem:
            # What was sent, by whomever, must not be told as never sent, also where it was what others wanted that could not be sent
            # after it: it would be in force, and nobody would undo it.
            if not self._take_back(question):
                tell_as_sent(problem)
            # Its answer may still come, and is nobody's; nor shall it be called to read for others.
            question.over = True
            raise
        finally:
            self._call_next()

    @property
    def _to_be_sent(self) -> bool:
        """Whether there is something unsent that need not wait for an answer to others."""
        stream = self._stream
        return bool(self._unsent) and (self._urgent or stream is None or not stream.pending)

    def _ask_apart(self, request: Request, wanted: int, until: float) -> list[Any]:
        """For a signal handler in a thread that reads or sends here: it would wait for itself, and all others for it."""
        connection = self._opened(until)
        try:
            # They are sent as one anyway; what counts is how many answers come.
            return connection.ask_all([bytes(request), *[b""] * (wanted - 1)], until)
        finally:
            connection.close()

    def _take_back(self, question: Question) -> bool:
        """Whether it was not sent; then it will not be."""
        while True:
            try:
                self._unsent.remove(question)
                return True
            except ValueError:
                return False
            except IndexError:
                pass  # the line changed under the search

    def _call_next(self) -> None:
        """Whatever ends a call, somebody sends what is left to be sent, and somebody reads what is left to be read."""
        try:
            if self._to_be_sent:
                ring(self._unsent[0].gate)
        except IndexError:
            pass  # sent just now
        stream = self._stream
        if stream is not None:
            stream.call_reader(self._unsent)

    def _send(self, until: float) -> None:
        """Send what there is to be sent, whosever it is."""
        stream = self._stream
        if stream is not None and stream.sends and stream.broken is None:
            stream.fail(ConnectionAbortedError("the thread that was sending was struck down"))
        if stream is None or stream.broken is not None or self._died_idle(stream):
            stream = self._stream = SharedStream(self._opened(until))
        questions: list[Question] = []
        try:
            self._urgent = False
            while self._unsent:
                question = self._unsent.popleft()
                # One may have been given up while it lay there: with the stream on which it was a part of another.
                if not question.over:
                    questions.append(question)
            stream.send(questions if len(questions) == 1 else self._put_together(questions))
        except BaseException as problem:
            for question in questions:
                question.end(ConnectionAbortedError("the thread that was sending was struck down"))
            raise problem

    def _put_together(self, questions: list[Question]) -> Sequence[Question | Parcel]:
        """Those that can be joined as one."""
        parcels = self._join([question.request for question in questions])
        if parcels is None:
            return questions
        return [
            questions[parcel] if isinstance(parcel, int)
            else Parcel(parcel, [questions[place] for place in parcel.places], self._send_apart)
            for parcel in parcels
        ]  # fmt: skip

    def _send_apart(self, questions: list[Question]) -> None:
        """Have each of these sent alone, before those that came after them."""
        for question in reversed(questions):
            question.request = bytes(question.request)
            if not question.over:
                self._unsent.appendleft(question)
        self._urgent = True

    def _died_idle(self, stream: SharedStream) -> bool:
        """Whether the server has closed it while nobody used it: what is not sent then, was surely not received."""
        return not stream.pending and clock.now() > stream.used + IDLE and stream.connection.was_closed()

    def _answer(self, question: Question, until: float) -> list[Any]:
        began = clock.now()
        end = min(until, began + self._patience)
        while not question.over:
            left = end - clock.now()
            if left <= 0:
                raise self._late(question)
            stream = self._stream
            if self._to_be_sent and question in self._unsent:
                # Who was sending could not: perhaps we can.
                done = self._sending.attempt(self._send, end)
            elif stream is not None and stream.broken is None:
                done = self._reading.attempt(stream.read, question, end)
                # Whoever waited for what was read just now.
                while done and self._to_be_sent and self._sending.attempt(self._send, end):
                    pass
            else:
                done = False
            if not done and not question.gate.acquire(True, min(left, LOOK_AGAIN)):
                self._look_for(question)
        if question.problem is not None:
            raise NoAnswer(self._address, question.problem, sent=True) from question.problem
        return question.answers

    def _late(self, question: Question) -> NoAnswer:
        if question in self._unsent:
            return NoAnswer(self._address, "no time left to ask", sent=False, late=True)
        stream = self._stream
        if stream is not None and stream.awaits(question) and clock.now() >= stream.heard + self._patience:
            # Answers come in order. By how long nothing has come: where nobody has much time, nobody would leave a dead line.
            stream.fail(TimeoutError("no answer in time"))
        return NoAnswer(self._address, "no answer in time", sent=True)

    def _look_for(self, question: Question) -> None:
        """One whose sender was struck down with it in hand will have no answer."""
        stream = self._stream
        if stream is not None and stream.broken is not None:
            # Who should have told all of them may have been struck at that.
            stream.fail(stream.broken)
        if question not in self._unsent and (stream is None or not stream.awaits(question)):
            question.end(ConnectionAbortedError("the thread that was sending was struck down"))

    def forget(self) -> None:
        """Close it, if it is idle."""
        stream = self._stream
        if stream is not None and not self.busy:
            stream.fail(ConnectionAbortedError("dropped while idle"))
            # Unless somebody has opened another one meanwhile, and waits there.
            if self._stream is stream:
                self._stream = None


class Seat:
    """One thread's right to ask through the shared connection: for whoever has it, a connection like another."""

    __slots__ = ("__weakref__", "_shared", "gone", "is_open")

    seat = True

    def __init__(self, shared: SharedConnection) -> None:
        self._shared = shared
        self.gone = False
        self.is_open = True
        """Whoever sends first opens what is shared."""

    def open(self, until: float) -> None:
        """Nothing to do."""

    def ask(self, request: bytes, until: float) -> Any:
        return self._shared.ask(request, 1, until)[0]

    def ask_all(self, requests: Sequence[bytes], until: float) -> list[Any]:
        return self._shared.ask(b"".join(requests), len(requests), until)

    def close(self) -> None:
        self.gone = True


class SharingLink(BlockingLink):
    """The way to one server, for threads: a few connections of their own, and one that those share who find none free."""

    def __init__(self, server: Server, vets: bool, most: int, join: Join = apart) -> None:
        # Two threads may not read and write one TLS session at the same time.
        self._shares = most > 1 and not server.tls
        self._own = most - 1 if self._shares else most
        super().__init__(server, vets, self._own + SEATS * self._shares)
        self._server = server
        # Weakly: a client that was dropped closes its connections by that alone.
        me = weakref.ref(self)
        self._make = lambda: cast(SharingLink, me())._make_one()
        self._shared = SharedConnection(lambda until: cast(SharingLink, me())._open_shared(until), server, join)

    def _make_one(self) -> Way:
        made = [one for ref in self._made if (one := ref()) is not None and not one.gone]
        own = sum(type(one) is BlockingConnection for one in made)
        return BlockingConnection(self._server) if own < self._own else Seat(self._shared)

    def _open_shared(self, until: float) -> BlockingConnection:
        connection = BlockingConnection(self._server)
        try:
            self.make_ready(connection, until)
            connection.set_timeout(connection.patience)
        except BaseException:
            connection.close()
            raise
        return connection

    async def ask_in_order(self, request: Request, until: float) -> Any:
        if not self._shares:
            return await super().ask_in_order(request, until)
        if self._closed:
            raise ClientClosed()
        urgent = isinstance(request, bytes) or not request.patient
        reply = self._shared.ask(request, 1, until, urgent=urgent)[0]
        if self._closed:
            self.forget()
        return reply

    ask_along = ask_in_order

    def forget(self) -> None:
        super().forget()
        self._shared.forget()
