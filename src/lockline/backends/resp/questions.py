"""What threads ask on a connection that they share, one by one or several as one."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from ...errors import BackendUnavailable
from ...runtime.blocking import ring
from .errors import NoAnswer
from .joining import Joined, Request


class Question:
    """What one thread asks, and the lock that it sleeps on until all its answers are there."""

    __slots__ = ("answers", "gate", "over", "problem", "request", "wanted")

    def __init__(self, request: Request, wanted: int) -> None:
        self.request = request
        self.wanted = wanted
        """How many answers it gets."""
        self.gate = allocate_lock()
        self.gate.acquire()
        self.over = False
        self.answers: list[Any] = []
        self.problem: Exception | None = None
        """Why no answer will come."""

    def end(self, problem: Exception | None = None) -> None:
        """All answers are there, or no more will come."""
        self.problem = problem
        # Last: whoever sees this sees the rest.
        self.over = True
        ring(self.gate)

    def call(self) -> bool:
        """Wake whoever waits for it; False if nobody does."""
        if not self.over:
            ring(self.gate)
        return not self.over

    def concerns(self, question: Question) -> bool:
        """Whether its answer is the answer to this one."""
        return self is question


class Parcel:
    """Several questions that travel as one; to the stream one question, like another."""

    __slots__ = ("_again", "_joined", "answers", "questions", "request")

    wanted = 1

    def __init__(self, joined: Joined, questions: list[Question], again: Callable[[list[Question]], None]) -> None:
        self.request = bytes(joined)
        self.questions = questions
        self.answers: list[Any] = []
        self._joined = joined
        self._again = again

    def end(self, problem: Exception | None = None) -> None:
        """Give each its answer, or have each asked alone."""
        told = self._joined.spread(self.answers[0]) if problem is None else ()
        if told is None:
            self._again(self.questions)
            return
        for question, answer in zip(self.questions, told, strict=False):
            question.answers.append(answer)
        for question in self.questions:
            question.end(problem)

    def call(self) -> bool:
        return any(question.call() for question in reversed(self.questions))

    def concerns(self, question: Question) -> bool:
        return question in self.questions


def tell_as_sent(problem: BaseException) -> None:
    """The same problem, of one whose request may have been received."""
    if isinstance(problem, NoAnswer):
        problem.sent = True
    elif isinstance(problem, BackendUnavailable):
        problem.unsent = False
