"""What can go wrong on the way to a database, each as what it is."""

from __future__ import annotations

from ...errors import BackendUnavailable


class Refused(BackendUnavailable):
    """The database answered, and the answer is no; `code` is its SQLSTATE, or its number."""

    permanent = True

    def __init__(self, message: str, code: str) -> None:
        self.code = code
        super().__init__(message)


class NoAnswer(Exception):
    """A step that was not answered, or that was undone as a whole; never leaves the backend."""

    def __init__(
        self, where: str, cause: object, *, sent: bool, late: bool = False, refused: bool = False, said: bool = False
    ) -> None:
        self.sent = sent
        """The database may have done it."""
        self.late = late
        """It was not even tried: the time was over. What happened before is the better story."""
        self.refused = refused
        """There was no connection to be had: somebody said so, or nobody is there. Not the same as silence."""
        self.said = said
        """The database itself said why; the connection, if there is one, is as good as before."""
        super().__init__(f"{where}: {str(cause).strip() or type(cause).__name__}")


class DiedIdle(NoAnswer):
    """The connection was dead before anything was sent on it; another one may do."""


def unavailable(system: str, problem: NoAnswer, *, unsent: bool = False) -> BackendUnavailable:
    """What the caller is told when there was no answer: whether the database was out of reach, or silent, or cannot serve now."""
    if problem.refused:
        what = "cannot be reached"
    elif problem.said:
        what = "cannot serve now"
    elif problem.late:
        what = "was not asked in time"
    else:
        what = "gave no answer in time"
    error = BackendUnavailable(f"{system} {what}: {problem}")
    error.unsent = unsent
    return error
