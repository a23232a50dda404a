"""One connection to one member, as both flavours have it: the calls on it, and who may begin the next."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ...runtime import Runtime, Signal, clock
from ..url import Endpoint
from .grpc import Full, Grpc, GrpcCall, Who

NET: Final = 0.25
"""How long a lost wake-up can go unnoticed: whoever is cut short between being woken and beginning may take it along."""


class EtcdLink:
    """A socket and the calls on it; each flavour sends and reads in its own way."""

    def __init__(self, grpc: Grpc, endpoint: Endpoint, runtime: Runtime) -> None:
        self.grpc = grpc
        self.endpoint = endpoint
        self.opened = self.heard = self.answered = clock.now()
        """When it was made; when anything came from the server; when it last gave an answer that a quorum stands behind."""
        self.pinged = 0.0
        """When it was last asked for a sign of life."""
        self.lost: Callable[[], None] | None = None
        """Told when the connection has ended: there may be no request that would notice."""
        self._runtime = runtime
        self._queues: dict[Who, deque[Signal]] = {"call": deque(), "question": deque(), "newcomer": deque()}

    # -- sending -----------------------------------------------------------------------------------

    def start(
        self, method: str, messages: bytes, token: str | None = None, hear: Callable[[bytes], None] | None = None,
        ends: bool = True, who: Who = "call",
    ) -> GrpcCall:  # fmt: skip
        """Begin a call; Full when as many are under way as the server takes."""
        call: GrpcCall = self._send(self.grpc.start, method, messages, token, hear, ends, who)
        return call

    def more(self, call: GrpcCall, messages: bytes) -> None:
        """Another message on a call that goes on."""
        self._send(self.grpc.more, call, messages)

    def cancel(self, call: GrpcCall) -> None:
        """Nobody waits for this any more."""
        self._send(self.grpc.cancel, call)
        self._advance()

    def ping(self) -> None:
        """Ask for a sign of life."""
        self.pinged = clock.now()
        self._send(self.grpc.ping)

    async def begin(self, method: str, messages: bytes, token: str | None, who: Who, until: float) -> GrpcCall | None:
        """Begin the call as soon as the server takes it, in order of arrival; None when it did not by then.

        A claim that wants to enter can wait, and so can one who only asks. One that stands or holds cannot: late looks and releases make
        everybody wait, and late renewals are lost leases.
        """
        queue = self._queues[who]
        if not queue:
            try:
                return self.start(method, messages, token, who=who)
            except Full:
                pass
        signal = self._runtime.signal()
        queue.append(signal)
        try:
            while True:
                signal.clear()
                now = self._runtime.now()
                if now >= until:
                    return None  # what is sent too late only makes others late
                if queue[0] is signal:
                    try:
                        return self.start(method, messages, token, who=who)
                    except Full:
                        pass
                # Thousands may stand behind the first: they need not look as often as the one who is next.
                await signal.wait(min(until, now + (NET if queue[0] is signal else 8 * NET)))
        finally:
            queue.remove(signal)
            self._advance()

    def _advance(self) -> None:
        """There may be room now: wake who is next."""
        for queue in self._queues.values():
            try:
                queue[0].set()
            except IndexError:
                continue

    def _send(self, change: Callable[..., Any], *args: Any) -> Any:
        """Change the calls like this, and send what that gives."""
        raise NotImplementedError

    # -- receiving ---------------------------------------------------------------------------------

    async def wait_for(self, call: GrpcCall, until: float) -> bool:
        """Wait for the end of this call; whether it came by then."""
        raise NotImplementedError

    def _wake(self, calls: list[GrpcCall]) -> None:
        for call in calls:
            if call.wake is not None:
                call.wake()
        if calls:
            self._advance()

    def receive(self, until: float) -> None:
        """Read for others until then, or until nudged, where nobody else does."""

    def nudge(self) -> None:
        """End a `receive` that runs now, or the next one."""

    def glance(self) -> None:
        """Read what is there, without waiting."""

    def unread(self) -> bool:
        """Whether something has arrived that nobody has read: a silence of our own making."""
        poller = select.poll()
        try:
            poller.register(self._fileno(), select.POLLIN)
            return bool(poller.poll(0))
        except (OSError, ValueError):
            return False  # closed

    def _fileno(self) -> int:
        raise NotImplementedError

    # -- the end -----------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Let go of the socket; whoever still waits gets no answer."""
        raise NotImplementedError

    def forget(self) -> None:
        """In a forked child: let go of the socket without a word to the server."""
        raise NotImplementedError
