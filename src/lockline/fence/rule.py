"""The one rule of every fence: who may pass, given what a resource has seen.

A resource remembers one **mark** per lock name: the highest token seen, and the grant that token belonged to.

- A higher token passes and becomes the mark.
- The same token passes for the same grant only: a holder enters once and writes many times.
- Anything else is stale.

A bare number carries no grant. It counts as a grant of its own, written as the empty text: it passes where the same
bare number entered, and not where a lease with that token did, because nobody can know whether it is the same holder.
Where more than the number can travel, send `lease.sequencer()` or `lease.headers()`: they carry the grant.

A second rule, `exact=True`, is for owners without order (a job's id, a UUID from another lock service): whoever
enters becomes the mark, and only the mark may write. It needs an owner that enters once, before it reads; one that
enters again after it was overtaken takes the resource back, which no rule without order can tell from a newcomer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from ..core import arguments
from ..core.handle import Handle, shown
from ..errors import ConfigError, StaleToken
from .refusals import refused

LARGEST: Final = 2**63 - 1
SHARED: Final = ("read", "permit")
EXCLUSIVE: Final = ("lock", "rlock", "write")


class Offer(NamedTuple):
    """What a holder shows at the resource."""

    lock: str
    token: int
    grant: str
    """Empty where only the number travelled."""

    @property
    def shown(self) -> int | str:
        """What an error calls it: the token, or the owner under the exact rule."""
        return self.token or self.grant


class Mark(NamedTuple):
    """What a resource remembers of one lock."""

    token: int
    grant: str

    @property
    def shown(self) -> int | str:
        """What an error calls it: the token, or the owner under the exact rule."""
        return self.token or self.grant


def may_enter(mark: Mark | None, offer: Offer, exact: bool = False) -> bool:
    """Whether the offer passes at the start of a critical section; it is the mark from then on."""
    if mark is None or exact:
        return True
    return offer.token > mark.token or (offer.token == mark.token and offer.grant == mark.grant)


def may_write(mark: Mark | None, offer: Offer, exact: bool = False) -> bool:
    """Whether the offer passes at a write. By order this is to enter again; the exact rule wants it entered before."""
    if exact:
        return mark is not None and (mark.token, mark.grant) == (offer.token, offer.grant)
    return may_enter(mark, offer)


def passes(mark: Mark | None, offer: Offer, *, writes: bool, exact: bool) -> bool:
    """Whether the offer passes, at a write or before it."""
    return (may_write if writes else may_enter)(mark, offer, exact)


def passed(resource: str, mark: Mark | None, offer: Offer, *, writes: bool, exact: bool) -> Mark:
    """The mark that stands after this offer; StaleToken if it may not pass."""
    if not passes(mark, offer, writes=writes, exact=exact):
        raise stale(resource, mark, offer)
    return Mark(offer.token, offer.grant)


def stale(resource: str, mark: Mark | None, offer: Offer) -> StaleToken:
    """The refusal, for whoever catches it; whoever listens hears of it too."""
    refused(resource, mark, offer)
    return StaleToken(resource, offer.shown, 0 if mark is None else mark.shown)


def offer_of(resource: str, holder: Any, lock: str | None = None, exact: bool = False) -> Offer:
    """What this holder offers: a lease, a bare token, a sequencer, or an offer that a middleware took in.

    A bare token says nothing of its lock. It is taken for one of the lock with the resource's own name,
    unless `lock` names another: two locks count apart, and so their marks lie apart.
    """
    if isinstance(holder, Handle):
        name, kind, token, grant = shown(holder)
        if kind in SHARED:
            an_exclusive(kind)
        if "\0" in name:  # all else was checked when the lock was asked for
            a_name(name, "lock")
        offer = Offer(name, token, grant)
    elif isinstance(holder, Offer):
        offer = holder
        if not (exact and offer.token == 0 and offer.grant):
            a_token(offer.token)
    elif isinstance(holder, str):
        if exact:
            return Offer(a_name(lock or resource, "lock"), 0, a_name(holder, "owner"))
        from .sequencer import read_sequencer  # only where a text is offered

        offer = read_sequencer(holder)
    else:
        return Offer(a_name(lock or resource, "lock"), a_token(holder), "")
    if lock is not None and lock != offer.lock:
        raise ConfigError(f"this holder has the lock {offer.lock!r}, not {lock!r}")
    return offer


def a_token(value: object) -> int:
    """A whole number from 1 to 2^63-1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"a fence takes a lease or its token, a whole number, not {value!r}")
    if not 1 <= value <= LARGEST:
        raise ConfigError(f"a fencing token is from 1 to 2^63-1, not {value}")
    return int(value)


def a_resource(value: object) -> str:
    """The name of what is protected."""
    return _known_resource(value) if type(value) is str else a_name(value, "resource")


def a_name(value: object, what: str) -> str:
    """Any non-empty text up to 512 bytes of UTF-8, without the NUL that some stores cannot hold."""
    name = arguments.a_name(value, what)
    if "\0" in name:
        raise ConfigError(f"the name of a {what} at a fence must not have a NUL in it")
    return name


@lru_cache(maxsize=1024)
def _known_resource(value: str) -> str:
    """Checked once; the same few names come again and again."""
    return a_name(value, "resource")


def an_exclusive(kind: str) -> None:
    """Refuse a lease that others hold at the same time: its neighbours would fence each other off."""
    if kind in SHARED:
        raise ConfigError(
            f"a {kind} lease has several holders at once, and a fence lets one through; fence a lock or the write side"
        )


def a_body(data: object) -> bytes:
    """What is to be written, as bytes; text is written as UTF-8."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise ConfigError(f"what is written is bytes or text, not {type(data).__name__}")
