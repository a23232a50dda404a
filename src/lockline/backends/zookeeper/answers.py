"""Requests that travel together, until each has its answer: a value, a no, or none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from kazoo import exceptions as problems

from ...runtime import Signal
from ...runtime.clock import now

log = logging.getLogger("lockline.zookeeper")

CUT: Final = (
    problems.ConnectionLoss,
    problems.SessionExpiredError,
    problems.ConnectionClosedError,
    problems.SessionMovedError,
    problems.OperationTimeoutError,
)
"""No answer: the request may have been applied or not."""
DECIDED: Final = (problems.NoNodeError, problems.NodeExistsError, problems.BadVersionError)
"""A no to a write that the leader itself has given, with a majority. Others may come from the server that we asked, alone."""
_UNANSWERED: Final = object()


class AnswerSlot:
    """Where kazoo puts the answer to one request of a batch."""

    __slots__ = ("_at", "_batch")

    def __init__(self, batch: RequestBatch, at: int) -> None:
        self._batch = batch
        self._at = at

    def leave(self, now: float) -> None:
        """In kazoo's thread: the request is being written. What it waited for that is our own affair, not the server's."""
        if not self._at:
            self._batch.left = now

    def set(self, value: Any = None) -> None:
        self._batch.put(self._at, value)

    def set_exception(self, problem: BaseException) -> None:
        self._batch.put(self._at, problem)


class RequestBatch:
    """Requests that travel together; `done` is set when the last has its answer, a value or an exception."""

    __slots__ = ("_missing", "_mutex", "answers", "came", "done", "left", "sent", "then")

    def __init__(self, count: int, sent: float, done: Signal | None, then: Callable[[RequestBatch], None]) -> None:
        self.answers: list[Any] = [_UNANSWERED] * count
        self.sent = sent
        """When it was asked for."""
        self.left = self.came = 0.0
        """When the first request was written to the server, and when its answer was read."""
        self.done = done
        self.then = then
        self._missing = count
        self._mutex = threading.Lock()

    @property
    def decided(self) -> bool:
        """Whether the first request, a write, was answered by a majority."""
        first = self.answers[0]
        return not isinstance(first, Exception) or isinstance(first, DECIDED)

    def put(self, at: int, value: Any) -> None:
        """Take in one answer."""
        with self._mutex:
            # kazoo tells some failures twice.
            if self.answers[at] is not _UNANSWERED:
                return
            self.answers[at] = value
            if not at:
                self.came = now()
            self._missing -= 1
            if self._missing:
                return
        try:
            self.then(self)
        except Exception:
            # kazoo's connection must outlive whatever goes wrong here.
            log.exception("an answer of ZooKeeper could not be handled")
        if self.done is not None:
            self.done.set()
