"""What the caller holds: a handle on a claim, and everything about a lease that needs no I/O."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import ConfigError, LeaseDropped, NotHeld
from .live import DETACHING, GIVEN_BACK, LiveClaim, takes_an_argument

H = TypeVar("H", bound="Handle")


class Holding:
    """What a hold says of itself, without I/O."""

    __slots__ = ()
    _live: LiveClaim

    @property
    def name(self) -> str:
        """The name of the lock; of a pool's slot that is the pool's, a slash, the item."""
        return self._live.claim.name

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier grant on this name."""
        token = self._live.token
        assert token is not None
        return token

    @property
    def owner(self) -> str:
        """Who holds it, as others see it."""
        return self._live.claim.owner

    @property
    def ttl(self) -> float:
        """Seconds for which each renewal makes it good."""
        return self._live.claim.ttl


class Handle(Holding):
    """What the caller holds: everything about a lease that needs no I/O."""

    __slots__ = ("__weakref__", "_block", "_given", "_live", "_open", "_writes")

    def __init__(self, live: LiveClaim, writes: bool) -> None:
        self._live = live
        self._given = False
        """Whether the caller has it in hand; before that, and in a `with`, its end without release means that we were cut."""
        self._block: Callable[[], object] | None = None
        """What will release it, as long as that lives: the `with` that the lease is bound to, or in asyncio the call that leaves it."""
        self._open = True
        self._writes = writes
        live._handles.append(weakref.ref(self))

    @property
    def id(self) -> str:
        """The grant: unique to this hold, where a token alone could come from elsewhere too."""
        return self._live.claim.id

    def in_hand(self) -> bool:
        """Whether somebody may still release it: it was not, and the block that would is not left."""
        return self._open and (self._block is None or self._block() is not None)

    @property
    def kind(self) -> str:
        """What is held: lock, rlock, read, write or permit."""
        return self._live.claim.kind

    @property
    def valid(self) -> bool:
        """Whether the lease may still be trusted. No I/O; once False, for ever False, unless a `detach` was under way that failed."""
        return self._open and self._live.remaining() > 0

    def remaining(self) -> float:
        """Seconds left by the local clock; zero once released or lost. No I/O."""
        return self._live.remaining() if self._open else 0.0

    def check(self) -> None:
        """Raise LeaseLost if the lease can no longer be trusted, NotHeld if it was released. No I/O."""
        if self.valid:
            return
        if self._live.lost is not None:
            raise self._live.loss()
        raise not_held(self._live)

    def on_lost(self, callback: Callable[..., object]) -> None:
        """Call back once when the lease is lost, with the LeaseLost if the callback takes an argument.

        Sync: in a thread of its own. Asyncio: in the loop. At once if it is lost already.
        """
        if not callable(callback):
            raise ConfigError(f"on_lost takes something to call, not {callback!r}")
        if inspect.iscoroutinefunction(callback):
            raise ConfigError("on_lost calls, it does not await: give it a plain function, which may start a task")
        live = self._live
        live.listen((lambda: callback(live.lost)) if takes_an_argument(callback) else callback)

    def headers(self) -> dict[str, str]:
        """The HTTP headers that show this lease to a server behind an HttpFence. No I/O."""
        from ..fence.sequencer import headers_of

        return headers_of(self)

    def sequencer(self) -> str:
        """The lease as a short printable text (name, mode, token, grant), for a fence elsewhere. No I/O."""
        from ..fence.sequencer import write_sequencer

        return write_sequencer(self)

    def __repr__(self) -> str:
        state = "released" if not self._open else f"{self.remaining():.1f} s left" if self.valid else "lost"
        return f"<{type(self).__name__} {self.name!r} token {self._live.token} {state}>"

    def __del__(self, warn: Any = warnings.warn) -> None:
        # A lease that nobody can reach any more is not renewed: the lock is free when its ttl is over.
        if not getattr(self, "_open", False):
            return
        live = self._live
        self._open = False
        if live.state in GIVEN_BACK or live.handles:
            return
        if not self._given:
            # Cut short on its way: the keeper finds that nobody answers for it, and gives it back.
            live.keeper.ring()
            return
        live.abandoned = True
        if live.remaining() > 0 and not live.outlives_client:
            warn(
                f"the lease on {live.claim.name!r} was dropped without release: nothing renews it any more, and the lock stays "
                "taken until its ttl is over; keep what acquire() returns, or use `with`",
                LeaseDropped,
                stacklevel=2,
            )


def left() -> None:
    """The block of a lease that was left, although its release never began: the renewer gives the lease back."""


def shown(handle: Handle) -> tuple[str, str, int, str]:
    """What a fence asks of a lease, in one step: name, kind, token, grant. No I/O."""
    live = handle._live
    assert live.token is not None
    return live.claim.name, live.claim.kind, live.token, live.claim.id


def not_held(live: LiveClaim) -> NotHeld:
    """The error for a lease that was released before."""
    how = "detached" if live.detached or live.state is DETACHING else "released"
    return NotHeld(f"the lease on {live.claim.name!r} (token {live.token}) has been {how} already")


def check(live: LiveClaim) -> None:
    """LeaseLost or NotHeld if the claim does not hold."""
    if live.remaining() <= 0:
        raise live.loss() if live.lost is not None else not_held(live)
