"""What time it is at a store that says so only in the `Date` of its HTTP answers: in whole seconds, and so never exactly.

Each answer bounds how far the store's clock is from ours: it read its clock between our question and the answer, and showed the second
that it saw there. Several answers bound it more narrowly, most of all two between which a second begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from ...core.claim import Record
from ...errors import BackendUnavailable
from ...runtime import Runtime
from ...runtime.exclusive import Exclusive
from ..kept import KeptText

DRIFT: Final = 0.0005
"""By how much clocks that are being set right run faster or slower than ours, at the most."""
BELIEVED: Final = 60.0
"""Seconds for which an answer counts; somebody may have set that clock since."""
EXACTLY: Final = 10.0
"""How exactly: to a tenth of what is measured with it, a period or how long a value is fresh."""
ROUGHLY: Final = 1.1
"""Seconds: so exactly it is known by one answer."""
FINEST: Final = 0.01
"""Seconds: more exactly it is never looked for."""
A_SEARCH: Final = 1.5
"""Seconds for which it is: a second begins in the meantime, whatever else happens."""


class Reading(NamedTuple):
    """The store's time: at least `now`, and less than `doubt` later."""

    now: float
    doubt: float

    def stamped(self, token: int, ttl: float, value: bytes) -> KeptText:
        """A value that is written now, or later."""
        return KeptText(token, ttl, self.now, min(ttl / EXACTLY, ROUGHLY), value)

    def record(self, kept: KeptText | None, step: int, written_step: int = 0) -> Record:
        """What is kept. It is over for one who looks when that is sure, and before that for all who only remember it.

        So nobody has an old value in memory when another one begins to make a newer. And as it is over for all a little sooner than was
        asked for, it is not older than that for one who is not sure either.
        """
        if kept is None:
            return Record(self.now, step=step, doubt=self.doubt)
        # Never before what was written there: two who read the clock differently still go through the slots in one order.
        now = max(self.now, kept.written)
        doubt = max(0.0, self.now + self.doubt - now)
        written = kept.written - kept.slack
        if written + kept.ttl <= now:
            return Record(now, step=step, doubt=doubt)
        return Record(now, kept.value, kept.token, written, written + kept.ttl, step, written_step, doubt)


class SeenClock:
    """What is known of the clock of whoever answers."""

    def __init__(self) -> None:
        self._whose: object = None
        self._seen = float("-inf")
        self._ahead = (float("-inf"), float("inf"))
        """How far it is ahead of ours: at least, and less than."""

    def note(self, whose: object, date: str, sent: float, came: float) -> bool:
        """Take in an answer that this one gave between these two moments of our clock; False if it tells no time."""
        try:
            second = parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError, OverflowError):
            return False
        low, high = second - came, second + 1 - sent
        if whose == self._whose and came - self._seen < BELIEVED:
            slack = DRIFT * max(0.0, came - self._seen)
            known = max(low, self._ahead[0] - slack), min(high, self._ahead[1] + slack)
            if known[0] < known[1]:
                low, high = known
            # Else it was set since: only what it says now counts.
        self._whose, self._seen, self._ahead = whose, came, (low, high)
        return True

    def reading(self, now: float) -> Reading | None:
        """What time it is there now; None if it has to be asked."""
        since = now - self._seen
        if since >= BELIEVED:
            return None
        low, high = self._ahead
        slack = DRIFT * max(0.0, since)
        return Reading(now + low - slack, high - low + 2 * slack)


class AskedClock(SeenClock):
    """The same, and how to ask for the time."""

    def __init__(self, runtime: Runtime, ask: Callable[[float], Awaitable[None]]) -> None:
        super().__init__()
        self._runtime = runtime
        self._ask = ask
        """Puts a question, by then, whose answer is noted here."""
        self._asking = Exclusive(runtime)
        """One asks for all who want to know it at the same time: hundreds would keep the store, and each other, from all else."""
        self._sought = (float("inf"), float("-inf"))
        """How exactly it was last searched for, and when that was over, whatever was found."""

    async def time(self, until: float) -> Reading:
        """What time it is now."""
        known = self.reading(self._runtime.now())
        if known is None:
            async with self._asking(until):
                known = self.reading(self._runtime.now())
                if known is None:
                    await self._ask(until)
                    known = self.reading(self._runtime.now())
        if known is None:
            raise BackendUnavailable(
                "the store does not tell the time, which once and once_per need: its answers have no date"
            )
        return known

    async def search(self, span: float, until: float) -> None:
        """Ask until the time is known well enough to measure such a span, or long enough."""
        within, came = max(span / EXACTLY, FINEST), self._runtime.now()
        if self._known_within(within):
            return
        async with self._asking(until) as mine:
            exactly, over = self._sought
            if not mine or (over >= came and exactly <= within):
                return  # more was not to be had
            give_up = self._runtime.now() + A_SEARCH
            while not self._known_within(within):
                await self._ask(until)
                if within >= ROUGHLY or self._runtime.now() >= give_up:
                    break
                await self._runtime.sleep(within / 4)
            self._sought = within, self._runtime.now()

    def _known_within(self, doubt: float) -> bool:
        known = self.reading(self._runtime.now())
        return known is not None and known.doubt <= doubt
