"""What the connections of threads and of loops have in common."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any, Final

from ...errors import BackendUnavailable
from ...runtime import clock
from ..sql.errors import NoAnswer, Refused
from .target import Server, Target

READ_ONLY: Final = "SELECT @@global.read_only"
CLOSED: Final = getattr(select, "POLLRDHUP", 0)
"""What `poll` calls a connection that the server has closed, where it has a word for it."""


def was_closed(fd: int) -> bool:
    """Whether the other end has closed it: what is not sent then, was surely not received."""
    poll = select.poll()
    poll.register(fd, CLOSED)
    return bool(poll.poll(0))


class Attempts:
    """The servers, one after the other, until one lets us in that can be written to."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._problem: NoAnswer | Refused | None = None

    def __call__(self, until: float) -> Iterator[Server]:
        """Each server, while there is time; the caller stops at the one that lets him in."""
        for server in self.target.servers:
            if clock.now() >= until:
                break
            yield server
        if self._problem is not None:
            raise self._problem
        raise NoAnswer(self.target.servers[0].where, "no time left to connect", sent=False, late=True)

    def failed(self, problem: Exception) -> None:
        """This one did not."""
        assert isinstance(problem, NoAnswer | Refused)
        # A server that says why tells more than one that is not there.
        if self._problem is None or isinstance(problem, BackendUnavailable):
            self._problem = problem

    def refuse_replica(self, server: Server, rows: Any) -> None:
        """This one lets us in and cannot be written to."""
        if rows and int(rows[0][0]):
            raise NoAnswer(server.where, "it is read-only, as a replica is", sent=False, refused=True)


def refuse_plain(server: Server, encrypted: bool) -> None:
    """A server that goes on without TLS where TLS was asked for."""
    if server.tls and not encrypted:
        refusal = Refused(
            f"MySQL at {server.where} refused: it does not speak TLS; leave tls= out, or turn it on there", "2026"
        )
        refusal.unsent = True
        raise refusal
