"""What the connections of threads and of loops have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...errors import BackendUnavailable
from ...runtime import clock
from ..failures import NoAnswer, Refused
from .commands import UNDONE, problem_of
from .target import MysqlLogin, MysqlTarget

READ_ONLY: Final = "SELECT @@global.read_only"


class MysqlConnection:
    """What is known of a connection, and when it is no longer of use."""

    def __init__(self, target: MysqlTarget, login: float = 0.0) -> None:
        self._target = target
        self._login = login
        self._where = target.servers[0].where
        self.is_open = self.gone = False

    def _times(self, until: float) -> tuple[float, float]:
        """How long each answer of a login may take, and until when all of it."""
        now = clock.now()
        return min(self._target.patience, until - now), max(until, now + self._login)

    def _opened(self, until: float) -> float:
        """Until when the caller may then ask: what was logged in for takes one more answer."""
        self.is_open = True
        return max(until, clock.now() + self._target.patience) if self._login else until

    def _time_to_ask(self, until: float) -> float:
        left = min(until - clock.now(), self._target.patience)
        if left <= 0:
            raise NoAnswer(self._where, "no time left to ask", sent=False, late=True)
        return left

    def _failed(self, problem: BaseException) -> Exception:
        """What to raise for a step that failed like this."""
        if not problem.args or problem.args[0] not in UNDONE:
            # A step that was cut short may have left its transaction open: that ends with the session.
            self.close()
        return problem_of(problem, self._where, self._target.url)

    def close(self) -> None:
        """Close it, at once and without a word, also one that somebody waits for."""
        self.gone = True
        self._end()

    def _end(self) -> None:
        raise NotImplementedError


class Attempts:
    """The servers, one after the other, until one lets us in that can be written to."""

    def __init__(self, target: MysqlTarget) -> None:
        self.target = target
        self._problem: NoAnswer | Refused | None = None

    def __call__(self, until: float) -> Iterator[MysqlLogin]:
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

    def refuse_replica(self, server: MysqlLogin, rows: Any) -> None:
        """This one lets us in and cannot be written to."""
        if rows and int(rows[0][0]):
            raise NoAnswer(server.where, "it is read-only, as a replica is", sent=False, refused=True)


def refuse_plain(server: MysqlLogin, encrypted: bool) -> None:
    """A server that goes on without TLS where TLS was asked for."""
    if server.tls and not encrypted:
        refusal = Refused(
            f"MySQL at {server.where} refused: it does not speak TLS; leave tls= out, or turn it on there", "2026"
        )
        refusal.unsent = True
        raise refusal
