"""A lease that goes from one process to another: detached here, attached there, and never free in between.

A place in a line is handed over in one step of the store: another claim takes it, under a ticket that is higher than every one
before. To detach is to hand it over to nobody: a claim that no client has, and that ends by its own ttl. Its id is made of a secret
that only the ticket has, so whoever can look at the line cannot attach. To attach is to hand it over once more, to a claim of this
client. Both are repeated by ids, as every request is: a repeat finds its own claim there. A second one who comes with the
same ticket finds nobody to take over from.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import secrets
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import BackendUnavailable, ClientClosed, ConfigError, LocklineError, NotHeld
from . import arguments
from .backend import HandingOver
from .claim import DETACHED, Claim, Gone, Waiting
from .handle import H, Handle
from .keeper import WITHDRAWAL
from .live import Call, LiveClaim
from .terms import Terms
from .waiting import PAUSE

if TYPE_CHECKING:
    from .backend import Backend
    from .engine import Engine

BEGINNING: Final = "lockline-ticket-1."
"""What a ticket is told by; of another form, by another number."""
LONGEST: Final = 20_000
"""Characters of a ticket: a name and metadata fit, a file by mistake does not."""
KINDS: Final = ("lock", "rlock", "read", "write", "permit")


class Ticket(NamedTuple):
    """What travels: the terms of the lease, and the secret that its place is kept under."""

    terms: Terms
    secret: str

    @property
    def place(self) -> str:
        """The id of the claim that keeps the place: the secret itself is nowhere in the store."""
        return DETACHED + hashlib.sha256(self.secret.encode()).hexdigest()[:32]

    def written(self) -> str:
        """As a text that is safe in URLs, JSON and headers."""
        terms = self.terms
        told = [
            terms.name, terms.kind, terms.weight, terms.capacity, terms.ttl, terms.renews, terms.max_hold,
            json.loads(terms.meta) if terms.meta else None, terms.lock_delay, self.secret,
        ]  # fmt: skip
        body = json.dumps(told, separators=(",", ":")).encode()
        return BEGINNING + base64.urlsafe_b64encode(_checksum(body) + body).decode().rstrip("=")


def read_ticket(text: object) -> Ticket:
    """The ticket of a text; ConfigError for anything that is none, or not all of one."""
    if not isinstance(text, str):
        raise ConfigError(f"a ticket is the text that lease.detach() gave, not {type(text).__name__}")
    text = text.strip()
    if not text.startswith(BEGINNING) or len(text) > LONGEST:
        raise ConfigError("this is no ticket that lease.detach() gave")
    coded = text[len(BEGINNING) :].rstrip("=")
    try:
        whole = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        check, body = whole[:4], whole[4:]
        if check != _checksum(body):
            raise ConfigError("this ticket was cut or changed on its way")
        name, kind, weight, capacity, ttl, renews, max_hold, meta, lock_delay, secret = json.loads(body)
    except (ValueError, TypeError, RecursionError, binascii.Error) as problem:
        if isinstance(problem, ConfigError):
            raise
        raise ConfigError("this ticket was cut or changed on its way") from None
    if kind not in KINDS or not isinstance(secret, str) or len(secret) < 32:
        raise ConfigError("this ticket was not made by lease.detach()")
    terms = Terms(
        name=arguments.a_name(name), kind=kind, weight=arguments.a_count(weight, "weight"),
        capacity=arguments.a_count(capacity, "capacity"), ttl=arguments.a_ttl(ttl), renews=arguments.a_flag(renews, "renew"),
        max_hold=None if max_hold is None else arguments.a_ttl(max_hold, "max_hold"), meta=arguments.a_meta(meta),
        lock_delay=arguments.a_delay(lock_delay, "lock_delay"),
    )  # fmt: skip
    return Ticket(terms, secret)


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:4]


def handing_over(backend: Backend) -> HandingOver:
    """The backend, if places on it can be handed over; ConfigError before any I/O if they cannot."""
    if not isinstance(backend, HandingOver):
        raise ConfigError(
            f"a lease on {backend.url} cannot be handed over: there a claim ends with its client, or waiters have their tokens for "
            "good; memory:, local:, redis:// (with Sentinel and Cluster), postgresql:// and mysql:// can"
        )
    return backend


async def detach(engine: Engine, handle: Handle, ttl: float, until: float) -> str:
    """End the lease here, and keep its place for so long for whoever comes with the ticket.

    While that is under way the lease is not valid. If it fails the lease is as it was, or lost, and nothing is kept for anybody.
    """
    store, live, keeper = handing_over(engine.backend), handle._live, engine._keeper
    handle.check()
    if live.shared:
        raise ConfigError(f"the lease on {handle.name!r} was taken more than once here: let go of the others first")
    if live.keep_for is not None:
        raise ConfigError(f"the lease on {handle.name!r} is kept by keep_for; it cannot be handed over")
    claim = live.claim
    terms = Terms(
        claim.name, claim.kind, claim.weight, claim.capacity, claim.ttl, live.renews, live.max_hold, claim.meta, lock_delay=live.lock_delay
    )  # fmt: skip
    ticket = Ticket(terms, secrets.token_urlsafe(24))
    kept = claim._replace(id=ticket.place, ttl=ttl)
    # A renewal would find the claim gone as soon as the store has done it, and take that for its loss.
    keeper.drop(live)
    live.begin_detach()
    try:
        fate = await _hand_over(engine, store, claim.id, kept, min(until, live.deadline))
    except BaseException as problem:
        ours = getattr(problem, "unsent", False)
        try:
            ours = ours or await _is_still_ours(engine, live, kept)
        finally:
            if ours:
                live.hold_on()
                keeper.add(live)
            else:
                _lose(engine, live)
        raise
    if isinstance(fate, Gone):
        live.find_gone()
        keeper.strike(claim)
        engine._forget(live)
        live.tell()
        raise live.loss()
    live.detached = True
    live.give_up()
    handle._open = False
    keeper.strike(claim)
    engine._forget(live)
    live.tell()
    return ticket.written()


async def _is_still_ours(engine: Engine, live: LiveClaim, kept: Claim) -> bool:
    """Whether the lease has its place after a detach without an answer: that is withdrawn, so nothing more can come of it, and then asked for."""
    if not await engine._keeper.withdraw(kept):
        return False
    sent = engine.runtime.now()
    # For what it has left: a lease that is not renewed lives no longer by this.
    asked = live.claim._replace(ttl=max(live.ends - sent, 0.001))
    try:
        (fate,) = await engine.backend.renew([live.stored(asked)], sent + WITHDRAWAL)
    except LocklineError:
        return False
    return fate is None


def _lose(engine: Engine, live: LiveClaim) -> None:
    """Nobody knows whose the place is: then it is not the lease's, and nobody's for longer than need be."""
    live.lose("taken")
    if live.lock_delay:
        engine._keeper.strike(live.claim)
    else:
        engine._keeper.owe(live.claim)
    engine._forget(live)


def attach(engine: Engine, ticket: Ticket, make: Callable[[LiveClaim], H], until: float) -> Coroutine[Any, Any, H]:
    """The handle of whoever comes with the ticket; NotHeld if its place is kept no more."""
    call: Call = []
    coroutine = _attach(call, engine, ticket, make, until)
    call.append(weakref.ref(coroutine))
    return coroutine


async def _attach(call: Call, engine: Engine, ticket: Ticket, make: Callable[[LiveClaim], H], until: float) -> H:
    store, keeper, runtime, terms = handing_over(engine.backend), engine._keeper, engine.runtime, ticket.terms
    claim = Claim(
        terms.name, f"{engine._prefix}-{next(engine._numbers)}", engine.owner, terms.kind, terms.weight, terms.capacity,
        terms.ttl, runtime.wall(), terms.meta,
    )  # fmt: skip
    live = LiveClaim(claim, runtime, (runtime.me(), terms.name), terms.renews, terms.max_hold, engine._keeper)
    live.call, live.lock_delay = call, terms.lock_delay
    keeper.note(live)
    try:
        sent = runtime.now()
        fate = await _hand_over(engine, store, ticket.place, live.stored(claim), min(until, sent + terms.ttl))
        if isinstance(fate, Gone):
            raise NotHeld(
                f"this ticket holds {terms.name!r} no more: somebody has attached with it, nobody came in time, or it is of another store"
            )
        live.acknowledge(sent, terms.ttl)
        live.grant(fate.token)
        engine._remember(live)
        keeper.add(live)
        if live.remaining() <= 0:
            raise live.loss()
        if engine.closed:
            raise ClientClosed()
        return make(live)
    except BaseException as problem:
        await engine._give_back(live, None, problem)
        raise


async def _hand_over(engine: Engine, store: HandingOver, old: str, claim: Claim, until: float) -> Any:
    """The grant, or Gone: asked again while one that this client let in by itself still seems to wait."""
    while True:
        fate = await store.hand_over(old, claim, until)
        if not isinstance(fate, Waiting):
            return fate
        if engine.runtime.now() >= until:
            raise BackendUnavailable(f"the claim before ours on {claim.name!r} has not left the store yet; try again")
        await engine.runtime.sleep(PAUSE)
