"""One call, repeated until it is answered: every request carries its claim's id, so a repeat does it once."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from ...core.backend import REFUSAL
from ...runtime import Runtime
from ..failures import NoAnswer, Refused, unavailable
from .calls import RoutineCall, Rows

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.25
UNKNOWN_REFUSAL_S: Final = 10.0
"""How long a login is tried again that the server refuses in words that the client does not know: a wrong password does not pass, a server
that is just starting does."""


class SqlLink(Protocol):
    """The way to the database: a few connections, opened when they are needed."""

    async def ask(self, call: RoutineCall, until: float) -> Rows:
        """What the routine answers; NoAnswer, or Refused."""

    def forget(self) -> None:
        """Close what lies idle."""

    def forked(self) -> None:
        """In a child: drop what was inherited, without a word."""

    def close(self) -> None:
        """Close all, now and later."""


class RoutineAnswer(NamedTuple):
    """What the routine gave back."""

    rows: Rows
    repeated: bool = False
    """A try before this one may have been received and was not answered: what was found done may have been done by that."""


class SqlChannel:
    """Asks until there is an answer."""

    def __init__(self, link: SqlLink, runtime: Runtime, system: str, beside: SqlLink | None = None) -> None:
        """`beside` is another way, whose connections may be open where this one gets none."""
        self.link = link
        self._beside = beside
        self._runtime = runtime
        self._system = system

    async def run(self, call: RoutineCall, until: float, *, insists: bool = True) -> RoutineAnswer:
        """The routine's answer; the same call until the deadline, through everything that passes by itself.

        Without insisting, only for `REFUSAL` seconds where there is no connection to be had.
        """
        repeated = False
        pause = FIRST_PAUSE
        refused_since: float | None = None
        last: NoAnswer | None = None
        said: NoAnswer | None = None
        while True:
            try:
                return RoutineAnswer(await self._ask(call, until), repeated)
            except Refused as refusal:
                refusal.unsent = not repeated
                raise
            except NoAnswer as no_answer:
                # A try that was not even begun tells less than the one before it.
                problem = no_answer if last is None or not no_answer.late else last
                repeated = repeated or no_answer.sent
                last = problem
                said = problem if problem.said else said
                cause = no_answer
            now = self._runtime.now()
            refused_since = None if not problem.refused else now if refused_since is None else refused_since
            left = until - now
            if refused_since is not None and problem.said and now >= refused_since + UNKNOWN_REFUSAL_S:
                unknown = Refused(f"{self._system} refused: {problem}", "")
                unknown.unsent = not repeated
                raise unknown from cause
            if refused_since is not None and not insists:
                left = min(left, refused_since + REFUSAL - now)
            if left <= 0 or cause.late or (cause.sent and not call.repeatable):
                raise unavailable(self._system, problem, unsent=not repeated, said=said) from cause
            if not problem.said:
                # What else is open is as dead, mostly; a connection that waited too long costs a try each.
                self.link.forget()
            await self._runtime.sleep(min(pause, left))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _ask(self, call: RoutineCall, until: float) -> Rows:
        try:
            return await self.link.ask(call, until)
        except NoAnswer as problem:
            if self._beside is None or not problem.refused:
                raise
        return await self._beside.ask(call, until)
