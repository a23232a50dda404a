"""When a call that has no answer yet doubts its member: asks it for a sign of life, or would rather ask another."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

QUIET: Final = 1.0
"""After so much silence of a member that owes an answer it is asked for a sign of life, and after as much again given up."""
PING_EVERY: Final = 5.0
"""No sign of life is asked for within this of the last: etcd takes it for an attack and closes the connection."""
SLOW: Final = 3.0
"""A member that lives but has given nobody an answer for that long may be cut off from the others: ask another."""
MARGIN: Final = 0.1
"""The server's clock measures when pings arrive, not when they were sent."""

Step = Literal["wait", "ping", "dead", "slow"]


class Patience(NamedTuple):
    """How long one call waits before it doubts its member; time for another member has to be left."""

    sent: float
    quiet: float
    slow: float

    @classmethod
    def until(cls, sent: float, until: float) -> Patience:
        """For a call that is sent now and needs its answer by then."""
        left = until - sent
        return cls(sent, min(QUIET, max(0.5, left / 4)), min(SLOW, max(0.5, left / 3)))

    def step(self, now: float, heard: float, pinged: float, answered: float) -> tuple[Step, float]:
        """What to do now, and when to ask again.

        By when the connection was last `heard`, when it was last `pinged`, and when it last `answered` any call: what one
        call waits for says nothing about the connection as long as others get their answers.
        """
        since = max(heard, self.sent)
        look = since + self.quiet
        if now >= look:
            if pinged > heard:
                look = pinged + self.quiet
                if now >= look:
                    return "dead", now + self.quiet
            elif now >= pinged + PING_EVERY + MARGIN:
                return "ping", now + self.quiet
            else:
                look = pinged + PING_EVERY + MARGIN
        slow = max(self.sent, answered) + self.slow
        if now >= slow:
            return "slow", now + self.quiet
        return "wait", min(look, slow)
