"""What can go wrong on the way to a server, each as what it is."""

from __future__ import annotations

from ..errors import BackendUnavailable
from .url import spelled


class Refused(BackendUnavailable):
    """The server answered, and the answer is no; `code` is what it calls that: Redis's first word, an SQLSTATE, a number."""

    permanent = True

    def __init__(self, message: str, code: str) -> None:
        self.code = code
        super().__init__(message)


class NoAnswer(Exception):
    """A request that was not answered, or that was undone as a whole; never leaves the backend."""

    def __init__(
        self,
        where: str | tuple[str, int],
        cause: object,
        *,
        sent: bool,
        late: bool = False,
        refused: bool = False,
        said: bool = False,
    ) -> None:
        self.sent = sent
        """The server may have done it."""
        self.late = late
        """It was not even tried: the time was over. What happened before is the better story."""
        self.refused = refused
        """There was no connection to be had: somebody said so, or nobody is there. Not the same as silence."""
        self.said = said
        """The server itself said why; the connection, if there is one, is as good as before."""
        place = where if isinstance(where, str) else spelled(where)
        super().__init__(f"{place}: {str(cause).strip() or type(cause).__name__}")


class DiedIdle(NoAnswer):
    """The connection was dead before anything was sent on it; another one may do."""


def unavailable(
    system: str, problem: NoAnswer, *, unsent: bool = False, said: NoAnswer | None = None
) -> BackendUnavailable:
    """What the caller is told when there was no answer: whether the server was out of reach, or silent, or cannot serve now.

    `said` is what the server said to an earlier try: the deadline may have cut the last one short.
    """
    if problem.refused:
        what = "cannot be reached"
    elif problem.said:
        what = "cannot serve now"
    elif problem.late:
        what = "was not asked in time"
    else:
        what = "gave no answer in time"
    earlier = "" if said is None or problem.said else f"; before that: {said}"
    error = BackendUnavailable(f"{system} {what}: {problem}{earlier}")
    error.unsent = unsent
    return error
