"""Handed on inside: a claim directly behind one of the same client's own holds as soon as that one lets go.

So nobody has to ask the store. On release the client wakes its own next claim, under that claim's own ticket, and the `leave`
travels beside. Why that is right:

- Who holds alone stands at the head of its line. The store has said of the heir that it came directly behind that one, and
  what came between the two has left, confirmed by the store. Nobody can come in between, so when the holder goes, the heir is
  at the head, and the head of a line holds: that is the one rule.
- The heir does stand there. Its own deadline, counted from before its own requests that the store has confirmed, lies ahead, so
  the store keeps it for longer than that. No store takes it for dead meanwhile: it ends by its own expiry.
- It does not matter when the `leave` arrives, or whether. Until then the line shows one who has let go, and the heir behind it; a
  stranger sees both, and waits. One that is lost is repeated, or the ttl of the one who let go clears the way: for the heir,
  which is next. Nor does it matter why it is gone from the line: evicted there, it has made way for the heir as well; and if the heir
  was evicted with it, the answer to the `leave` tells, and the heir is asked for at once.
- Who is lost hands nothing on: its deadline is over, so nobody here knows what the line has become. Nor does whoever has its turn
  by the word of one that the store turns out not to have had: the store may have lost them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .claim import Grant, Waiting
from .live import RENEWALS_PER_TTL, WAITING, LiveClaim

if TYPE_CHECKING:
    from .waiting import Hints


def follow(live: LiveClaim, stands: Waiting, known: Mapping[str, LiveClaim]) -> None:
    """Remember whom it stands directly behind, where the store has said that it is one of ours."""
    ahead = known.get(stands.behind)
    if ahead is None or not (live.alone and ahead.alone):
        return
    live.ticket, live.behind = stands.ticket, stands.behind
    ahead.heir = live


def close_up(live: LiveClaim, known: Mapping[str, LiveClaim]) -> None:
    """This one is gone from the line, by the store's word: who stood behind it stands behind the one before it."""
    heir, live.heir = live.heir, None
    ahead = known.get(live.behind)
    if heir is None or ahead is None:
        return
    heir.behind = live.behind
    ahead.heir = heir


def hand_turn_on(live: LiveClaim, now: float, hints: Hints) -> LiveClaim | None:
    """The claim that holds from now on because this one lets go, woken; None if the store has to say who is next."""
    heir = live.heir
    if heir is None or live.lost is not None or not (live.alone and heir.alone):
        return None
    if heir.state is not WAITING or heir.lost is not None or heir.turn is not None:
        return None
    # Somebody was let in ahead of both by a hand-over: then the store has given it a higher ticket, which only the store knows.
    if live.token is not None and heir.ticket <= live.token:
        return None
    # What is handed over shall be worth having; less than that is left only where renewals had no answer for long.
    if heir.deadline - now < heir.claim.ttl / RENEWALS_PER_TTL:
        return None
    heir.turn = Grant(heir.ticket)
    hints.wake(heir.claim.id)
    return heir


def named(heir: LiveClaim | None) -> dict[str, str]:
    """How a `leave` says whom the turn was handed on to, if to anybody."""
    return {} if heir is None else {"heir": heir.claim.id}


def doubt(heir: LiveClaim | None, hints: Hints) -> None:
    """Who handed its turn on was not there any more: perhaps the store has lost all it knew, so ask for everybody behind it at once.

    The turn may have gone on since: whoever has it by now hands nothing on by itself.
    """
    while heir is not None:
        # Not by a hint to itself: it may not have taken the first one yet, and two are one.
        hints.for_keeper(heir.claim.id)
        behind = heir.heir
        if heir.turn is not None:
            heir.heir = None
        heir = behind
