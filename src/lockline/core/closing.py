"""The end of a client: everything that it holds is given back, many leases at a time."""

from __future__ import annotations

import functools
import logging
from typing import Final

from ..errors import LocklineError
from ..runtime import Runtime
from .backend import Backend
from .keeper import Keeper
from .live import LiveClaim
from .removals import BATCH

log = logging.getLogger("lockline")

CLOSING: Final = 2.0
"""How long a client that is closed waits for a store that says nothing."""
LONGEST_CLOSING: Final = 10.0
"""And how long for one that answers, however much there is to release."""
CALLBACKS: Final = 0.25
"""How long it waits for those who are called back."""


async def release_all(backend: Backend, runtime: Runtime, keeper: Keeper) -> float:
    """Give back every lease; until when what is left to do may go on."""
    held = [live for live in keeper.kept() if live.token is not None]
    # Those by keep_for do not leave; with what else is owed it is seen to at the end that they last.
    lasting = [(live.claim, live.outlasts) for live in held if live.outlasts > runtime.now()]
    for claim, kept_until in lasting:
        keeper.removals.owe(claim, kept_until)
    for live in held:
        keeper.drop(live)
        live.note_loss("closed")
    listened_to = [live for live in held if live.listened_to]
    told: list[LiveClaim] = []
    for live in listened_to:
        runtime.call_aside(functools.partial(_tell, live, told))
    kept = {claim.id for claim, _ in lasting}
    claims = [live.claim for live in held if live.claim.id not in kept and not live.outlives_client]
    # Only now: to take note of thousands takes its own time on a busy machine.
    until = runtime.now() + CLOSING
    latest = until - CLOSING + LONGEST_CLOSING
    for at in range(0, len(claims), BATCH):
        try:
            await backend.leave_all(claims[at : at + BATCH], until)
        except LocklineError as problem:
            log.warning("%d leases were not released on close: %s", len(claims) - at, problem)
            # A store that cannot be reached will not be in a moment either.
            return runtime.now() if getattr(problem, "unsent", False) else until
        until = min(max(until, runtime.now() + CLOSING / 2), latest)
    # Whoever ends the program next shall not end a callback with it; one that takes its time keeps nobody.
    patience = runtime.now() + CALLBACKS
    while len(told) < len(listened_to) and runtime.now() < patience:
        await runtime.sleep(0.002)
    return until


def owe_what_waits_below(keeper: Keeper, me: object) -> None:
    """Have withdrawn what this very thread waits for, under the signal handler or callback that closes its client: when that wait goes
    on, and would see to it, the connections are gone.
    """
    for live in list(keeper.books.values()):
        if live.token is None and live.key[0] is me and live.under_way():
            keeper.removals.owe(live.claim)


def _tell(live: LiveClaim, told: list[LiveClaim]) -> None:
    live.tell()
    told.append(live)
