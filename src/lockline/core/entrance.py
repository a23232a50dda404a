"""The way in: of a client's crowd so many ask the store at once as it can take, and the others stand outside, in order of arrival.

Whoever stands outside has asked for nothing. There is nothing to undo, its validity has not begun, and no silence of the store's can be
meant by its wait: it ends by the caller's own deadline, as long as those who ask are answered. And what the crowd holds, it lets go of
beside those who come, and not behind all of them.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from ..errors import AcquireTimeout, BackendUnavailable, ClientClosed
from .backend import Backend, Narrow
from .waiting import PAUSE

if TYPE_CHECKING:
    from .live import LiveClaim
    from .waiting import Hints

LOOK_AGAIN: Final = 1.0
"""Seconds after which whoever stands outside looks unasked whether there is room: one who should have called it may have been struck down."""

A_WHILE: Final = 2.0
"""Seconds for which an answer speaks for a store that is slow and not silent, however short the time is that somebody waits."""


def entrance_to(backend: Backend, hints: Hints) -> Entrance | None:
    """The way in, where it is narrow."""
    return Entrance(backend.at_once, hints, backend.url) if isinstance(backend, Narrow) else None


class Entrance:
    """The way of one client's claims into their lines, so many at once.

    Nothing is counted up in one step and down in another: whose call is over is not inside, whatever ended it.
    """

    def __init__(self, at_once: int, hints: Hints, url: str) -> None:
        self._at_once = at_once
        self._hints = hints
        self._url = url
        self._inside: dict[str, LiveClaim] = {}
        self._line: deque[LiveClaim] = deque()
        self._answered = 0.0
        """When the store last answered one who asked."""

    async def come_in(self, live: LiveClaim, began: float, deadline: float | None, a_try: float | None) -> None:
        """Returns when it may ask, at once where there is no crowd.

        AcquireTimeout at the caller's deadline; BackendUnavailable if none who asked was answered meanwhile, or for a ttl, and for a try
        that has waited for so many seconds: nobody knows whether the lock is taken.
        """
        if not self._line and len(self._inside) < self._at_once:
            self._inside[live.claim.id] = live
            return
        claim, now = live.claim, live.runtime.now
        came = now()
        if deadline is not None and a_try is not None:
            deadline = max(deadline, began + a_try)
        live.asked = False
        self._hints.expect(claim.id)
        self._line.append(live)
        # After it: of one who comes and one who leaves in the same moment, one sees the other.
        self._let_in()
        while True:
            moment = now()
            silent_at = max(came, self._answered) + claim.ttl - PAUSE
            let_in = claim.id in self._inside
            if let_in and moment < silent_at:
                break
            until = silent_at if deadline is None else min(silent_at, deadline)
            if self._hints.closed:
                raise ClientClosed()
            # Let in by one who gave up after a ttl: to ask for as long again would only be told later.
            if let_in or moment >= until:
                silent = self._answered < min(came, moment - A_WHILE) or moment >= silent_at
                raise self._too_late(live, moment - began, timeout=a_try is None and not silent)
            await self._hints.wait(claim.id, min(until, moment + LOOK_AGAIN))
            self._let_in()
        live.asked = True
        # Nothing was heard of it but this.
        self._hints.forget(claim.id)

    def _too_late(self, live: LiveClaim, waited: float, *, timeout: bool) -> AcquireTimeout | BackendUnavailable:
        crowd = sum(1 for _ in takewhile(lambda other: other is not live, list(self._line))) + len(self._inside)
        if timeout:
            return AcquireTimeout(live.claim.name, waited=waited, crowd=crowd)
        return BackendUnavailable(
            f"{self._url} was not asked in {waited:.1f} s: {crowd} of this client wait for an answer"
        )

    def answered(self, live: LiveClaim) -> None:
        """The store has answered this one."""
        self._answered = live.runtime.now()
        self.leave(live)

    def leave(self, live: LiveClaim) -> None:
        """It asks no more, or never did."""
        if self._inside.pop(live.claim.id, None) is None:
            self._forget(live)
        if self._line:
            self._let_in()

    def _let_in(self) -> None:
        while self._line:
            try:
                first = self._line[0]
            except IndexError:
                return  # another thread was quicker
            claim_id = first.claim.id
            if not first.asked and first.under_way() and claim_id not in self._inside:
                if not self._has_room():
                    return
                self._inside[claim_id] = first
                if first.asked:
                    # Another thread has let it in since we looked, and perhaps it has its answer: it would never leave again.
                    self._inside.pop(claim_id, None)
            # In this order: cut off in between, it is found there again, and called then.
            self._forget(first)
            if claim_id in self._inside:
                self._hints.heard(claim_id)

    def _has_room(self) -> bool:
        if len(self._inside) >= self._at_once:
            for claim_id, live in list(self._inside.items()):
                if not live.under_way():
                    self._inside.pop(claim_id, None)
        return len(self._inside) < self._at_once

    def _forget(self, live: LiveClaim) -> None:
        try:
            self._line.remove(live)
        except (ValueError, IndexError):
            pass  # it is gone already; or the line changed under the search, and whose call is over is passed over
