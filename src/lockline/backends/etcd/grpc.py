"""gRPC calls on one HTTP/2 connection, without any I/O: bytes in, bytes out.

HTTP/2 is the h2 library's, the messages are protobuf's; what is left of gRPC is five bytes before each message and two
trailers after the last. grpcio was tried first: after a fork its child shares the parent's epoll set and aborts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error, StreamClosedError

from ...errors import BackendUnavailable
from ...runtime import clock

WINDOW = 4 << 20
"""How much the server may send before we confirm it; more than any answer that Lockline asks for."""
LARGEST = 64 << 20


MOST: Final = 32
"""Calls under way at the same time, at most, whatever the server would take. A line's length makes each `enter` dearer, so more at
once only make the server slower for all, and the renewals late; what waits here instead has not been sent, and can be given up."""
NEWCOMERS: Final = MOST - MOST // 4
"""Those of them that come to stand in a line, where the server takes as many."""

Who = Literal["watch", "call", "question", "newcomer"]
"""For whom a stream is: newcomers, and questions about a line, leave a quarter of all to those who are in already, and these leave one
to the watch."""


class Broken(Exception):
    """The connection cannot be used any more; whether the request was applied is not known."""


class NotTaken(Broken):
    """The server says that it did not look at the request, or nothing of it was ever sent."""


class Foreign(Broken):
    """Whoever answers there is no etcd."""


class Full(Exception):
    """As many calls are under way as the server takes at once."""


NOT_MENDED_BY_TIME = (3, 7)
"""An argument that is wrong (no user where there has to be one), and what this user may not do."""


class GrpcRefused(BackendUnavailable):
    """The server answered, and the answer is an error: a gRPC status and its text."""

    repeated = False
    """Whether the request went out more than once: an earlier one may have been applied."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        self.permanent = code in NOT_MENDED_BY_TIME
        super().__init__(f"etcd refused: {text} (gRPC status {code})")


class GrpcCall:
    """One request and what came back for it so far."""

    __slots__ = ("_buffer", "answers", "began", "done", "ends", "failure", "hear", "stream", "unsent", "wake")

    def __init__(self, stream: int, ends: bool, hear: Callable[[bytes], None] | None) -> None:
        self.stream = stream
        self.ends = ends
        """Whether the request ends with what is still unsent."""
        self.hear = hear
        """Called with each message of a call that goes on; without it the messages are kept in `answers`."""
        self.answers: list[bytes] = []
        self.began = clock.now()
        self.done = False
        self.failure: Exception | None = None
        self.wake: Callable[[], None] | None = None
        self.unsent = bytearray()
        self._buffer = bytearray()

    def take(self, data: bytes) -> None:
        """Bytes of the answer; whole messages are handed on."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 5:
            size = int.from_bytes(buffer[1:5], "big")
            if buffer[0] or size > LARGEST:
                raise Broken(f"an answer of {size} bytes, or compressed, which was not asked for")
            if len(buffer) < 5 + size:
                return
            message = bytes(buffer[5 : 5 + size])
            del buffer[: 5 + size]
            if self.hear is None:
                self.answers.append(message)
            else:
                self.hear(message)

    def end(self, failure: Exception | None) -> None:
        """No more will come."""
        if not self.done:
            self.done, self.failure = True, failure


def framed(message: bytes) -> bytes:
    """A message as gRPC puts it on a stream: not compressed, its length, itself."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Grpc:
    """One connection. Not for two threads at once: the port that owns it sees to that."""

    def __init__(self, authority: str, scheme: str) -> None:
        self._h2 = H2Connection(
            H2Configuration(
                client_side=True,
                header_encoding="utf-8",
                # Both ends are programs that know the protocol; the checks cost more than the rest of the call.
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=False,
            )
        )
        self._head = [(":method", "POST"), (":scheme", scheme), (":authority", authority)]
        self._tail = [("content-type", "application/grpc"), ("te", "trailers"), ("hasleader", "true")]
        self._calls: dict[int, GrpcCall] = {}
        self._pushed = False
        self.opening = GrpcCall(0, True, None)
        """Done when the server has said its first word, how many calls it takes at once; no call goes out before."""
        self.broken: str | None = None
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW)

    def start(
        self,
        method: str,
        messages: bytes,
        token: str | None = None,
        hear: Callable[[bytes], None] | None = None,
        ends: bool = True,
        who: Who = "call",
    ) -> GrpcCall:
        """Begin a call with these framed messages; with `ends` false more may follow. Full when too many are under way."""
        if self.broken is not None:
            raise NotTaken(self.broken)
        h2 = self._h2
        most = min(h2.remote_settings.max_concurrent_streams, MOST)
        spared = 0 if who == "watch" else 1 if who == "call" else max(2, most // 4)
        if len(self._calls) >= max(1, most - spared):
            raise Full
        try:
            call = GrpcCall(h2.get_next_available_stream_id(), ends, hear)
            headers = [*self._head, (":path", method), *self._tail]
            if token is not None:
                headers.append(("token", token))
            h2.send_headers(call.stream, headers)
            self._calls[call.stream] = call
            if hear is not None:
                h2.increment_flow_control_window(WINDOW, call.stream)
            call.unsent += messages
            self._push(call)
        except H2Error as problem:
            self.fail(f"HTTP/2: {problem}")
            raise Broken(str(self.broken)) from problem
        return call

    @property
    def busy(self) -> bool:
        """Whether any call is under way."""
        return bool(self._calls)

    def more(self, call: GrpcCall, messages: bytes) -> None:
        """Another message on a call that goes on."""
        if self.broken is not None or call.done:
            raise Broken(self.broken or "the stream has ended")
        call.unsent += messages
        self._push(call)

    def _push(self, call: GrpcCall) -> None:
        h2 = self._h2
        while call.unsent:
            room = min(h2.local_flow_control_window(call.stream), h2.max_outbound_frame_size, len(call.unsent))
            if room <= 0:
                return  # the rest goes out when the server opens its window
            chunk = bytes(call.unsent[:room])
            del call.unsent[:room]
            h2.send_data(call.stream, chunk, end_stream=call.ends and not call.unsent)
            self._pushed = True

    def _go_on(self, call: GrpcCall) -> None:
        try:
            self._push(call)
        except StreamClosedError:
            # Refused before all of it was sent (it is too large, say): what has just been read says so, a little further on.
            call.unsent.clear()

    def cancel(self, call: GrpcCall) -> None:
        """Tell the server that nobody waits for this any more."""
        self._calls.pop(call.stream, None)
        if call.done or self.broken is not None:
            return
        call.end(Broken("cancelled"))
        try:
            self._h2.reset_stream(call.stream, ErrorCodes.CANCEL)
        except H2Error:
            pass  # it has just ended by itself

    def ping(self) -> None:
        """Ask the other end for a sign of life."""
        if self.broken is None:
            self._h2.ping(b"lockline")

    def outgoing(self) -> bytes:
        """What has to be sent now."""
        return self._h2.data_to_send()

    def must_send(self, done: list[GrpcCall]) -> bool:
        """Whether to send at once after a `feed` that ended these calls: more of a request, or while somebody waits.

        What else there is to say (that a ping was heard) can go with the next request.
        """
        return not done or self._pushed

    def feed(self, data: bytes | bytearray) -> list[GrpcCall]:
        """Bytes from the server; the calls that are done now."""
        self._pushed = False
        if not self.opening.done and data[:1] != b"\0":
            # The first word of an HTTP/2 server is a short frame, whose length begins with a zero.
            return self.fail(_foreign(data), Foreign)
        try:
            events = self._h2.receive_data(data)
        except H2Error as problem:
            return self.fail(f"HTTP/2: {problem}")
        done: list[GrpcCall] = []
        for event in events:
            if isinstance(event, DataReceived):
                call = self._calls.get(event.stream_id or 0)
                if event.flow_controlled_length:
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id or 0)
                if call is not None and event.data:
                    try:
                        call.take(event.data)
                    except Broken as problem:
                        return done + self.fail(str(problem))
            elif isinstance(event, (ResponseReceived, TrailersReceived)):
                call = self._calls.get(event.stream_id or 0)
                if call is not None:
                    self._status(call, dict(event.headers or ()))  # type: ignore[arg-type]
            elif isinstance(event, StreamEnded):
                call = self._calls.pop(event.stream_id or 0, None)
                if call is not None:
                    call.end(None)
                    done.append(call)
            elif isinstance(event, StreamReset):
                call = self._calls.pop(event.stream_id or 0, None)
                if call is not None:
                    kind = NotTaken if event.error_code == ErrorCodes.REFUSED_STREAM else Broken
                    call.end(kind(f"the server cut the call off (HTTP/2 error {event.error_code})"))
                    done.append(call)
            elif isinstance(event, (WindowUpdated, RemoteSettingsChanged)):
                if not self.opening.done and isinstance(event, RemoteSettingsChanged):
                    self.opening.end(None)
                    done.append(self.opening)
                for call in list(self._calls.values()):
                    if call.unsent:
                        self._go_on(call)
            elif isinstance(event, ConnectionTerminated):
                why = (event.additional_data or b"").decode(errors="replace")
                return done + self.fail(f"the server closed the connection{why and ': '}{why}")
        return done

    def _status(self, call: GrpcCall, headers: dict[str, str]) -> None:
        status, http = headers.get("grpc-status"), headers.get(":status", "200")
        if status is None and http != "200":
            call.end(GrpcRefused(14, f"HTTP status {http}; is this an etcd client port?"))
        elif status not in (None, "0"):
            call.end(GrpcRefused(int(status or 0), unquote(headers.get("grpc-message", ""))))

    def fail(self, why: str, kind: type[Broken] = Broken) -> list[GrpcCall]:
        """The connection is gone: every call on it ends without an answer."""
        if self.broken is None:
            self.broken = why
        calls, self._calls = list(self._calls.values()), {}
        if not self.opening.done:
            self.opening.end(kind(self.broken))
            calls.append(self.opening)
        for call in calls:
            call.end(Broken(self.broken))
        return calls


def _foreign(data: bytes | bytearray) -> str:
    """What to say of a server whose first words are no HTTP/2."""
    if data[:2] == b"\x15\x03":
        return "it wants TLS; add ?tls=yes or ?ca=… to the URL"
    said = data[:40].split(b"\r\n")[0].decode("ascii", errors="backslashreplace")
    return f"it is no etcd: its first words were {said!r}; name etcd's client port, 2379 unless set otherwise"
