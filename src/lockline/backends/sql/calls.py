"""What is asked of the database: each step is one call of one routine, and every dialect has routines of these names.

    enter      at, name, id, ttl, weight, capacity, about, channel, may_wait -> (ticket, ahead, change, mine, behind)
    place      at, name, id, channel                                         -> (ticket, ahead, change, mine, behind)
    leave      at, name, id, doubtful, heir                                  -> (was_there)
    leave_all  JSON of [at, name in hex, id, doubtful] each                  -> (was_there) each, in this order
    renew      JSON of [at, name in hex, id, ttl, weight, about] each, channel -> (lives) each, in this order
    line       name                                                          -> (id, ticket, weight, capacity, ttl, left, about, arrived, granted) each
    look       name                            -> the same without the last two: all that tables of an older release can say
    names      first, last                                                   -> (name) each
    evict      at, name, token                                               -> (victims)
    kept       name, what, token, ttl                                        -> (now, value, token, written, expires)
    keep       name, what, value, token, ttl                                 -> (done)
    hand_over  at, name, id of who holds, id, ttl, about, channel            -> (ticket), -1 if the one there waits, nothing if it is gone
    watch      at, name, id, channel, ttl                                    -> (done), where a database can say something unasked

`at` is a number that the name alone gives: what serialises the steps of a line, and by its last bits the slot that remembers the last
ticket. Whoever holds has a `ticket`; whoever waits has so many `ahead`, and in `change` seconds the first of these expires; with neither
it may not stand there, or is gone. Whoever waits may also be told its ticket (`mine`) and who stands directly before it (`behind`);
an `heir` knows that it holds when this one has left, and need not be told. `about` is for people: owner, kind, since and meta, as JSON. Times are the database's, in seconds;
`arrived` and `granted` are nothing in a row that an older release has written, and `granted` in one that waits.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b, sha1
from typing import Any, Final, NamedTuple

from ...core.backend import Finding
from ...core.claim import Claim, Standing

Scalar = int | float | str | bytes | bool | None
Rows = Sequence[Sequence[Any]]

SLOTS: Final = 1024
"""Rows that remember tickets: of names that share one, two steps in the same moment wait for each other, and that is all."""
NAMES_KEPT: Final = 4096


class RoutineCall(NamedTuple):
    """One routine and what it is given."""

    routine: str
    args: tuple[Scalar, ...]
    repeatable: bool = True
    """Whether a second time does no more than the first."""


class Stands(NamedTuple):
    """Where a claim stands, as `enter` and `place` answer it."""

    ticket: int | None
    ahead: int | None
    change: float | None
    mine: int | None = None
    behind: str | None = None


class LinePlace(NamedTuple):
    """Where the line of a name is."""

    at: int
    name: bytes


class Places:
    """From names to places, under one prefix of one schema."""

    def __init__(self, schema: str, prefix: str) -> None:
        self._schema = schema.encode()
        # A colon of the prefix's own is told from the one that ends it.
        self._prefix = prefix.replace("\\", "\\\\").replace(":", "\\:").encode() + b":"
        self._known: OrderedDict[str, LinePlace] = OrderedDict()

    def __call__(self, name: str) -> LinePlace:
        return self._known.get(name) or self._find(name)

    def _find(self, name: str) -> LinePlace:
        key = self._prefix + name.encode()
        digest = blake2b(self._schema + b"\0" + key, digest_size=8).digest()
        place = self._known[name] = LinePlace(int.from_bytes(digest, "big", signed=True), key)
        while len(self._known) > NAMES_KEPT:
            try:
                self._known.popitem(last=False)
            except KeyError:
                break  # another thread was quicker
        return place

    def name_of(self, key: bytes) -> str:
        """Back again."""
        return key[len(self._prefix) :].decode()

    def between(self, prefix: str) -> tuple[bytes, bytes]:
        """The first key that begins so, and the first that comes after all of them."""
        first = self._prefix + prefix.encode()
        # Neither our own colon nor a byte of UTF-8 is 255, so the last one can always be raised.
        return first, first[:-1] + bytes([first[-1] + 1])


def about(claim: Claim) -> str:
    """What people may see of it."""
    return json.dumps([claim.owner, claim.kind, claim.since, claim.meta])


def enter(place: LinePlace, claim: Claim, channel: str | None, wait: bool) -> RoutineCall:
    return RoutineCall(
        "enter", (*place, claim.id, claim.ttl, claim.weight, claim.capacity, about(claim), channel, wait)
    )  # fmt: skip


def hand_over(place: LinePlace, old: str, claim: Claim, channel: str | None) -> RoutineCall:
    return RoutineCall("hand_over", (*place, old, claim.id, claim.ttl, about(claim), channel))


def left(place: LinePlace, claim: Claim, doubtful: bool) -> str:
    """One claim of a `leave_all`."""
    return json.dumps([place.at, place.name.hex(), claim.id, doubtful])


def renewed(place: LinePlace, claim: Claim) -> str:
    """One claim of a `renew`. What it says to people travels again only where it may have changed: a writer became a reader."""
    told = about(claim) if claim.kind == "read" else None
    return json.dumps([place.at, place.name.hex(), claim.id, claim.ttl, claim.weight, told])


def of_many(entries: Sequence[str]) -> str:
    """What `leave_all` and `renew` are given."""
    return f"[{','.join(entries)}]"


def standing(row: Sequence[Any]) -> Standing:
    """One row of `look` as others see it, as if it waited."""
    claim_id, ticket, weight, capacity, ttl, left, told, *times = row
    arrived, granted = times or (None, None)
    owner, kind, since, meta = json.loads(told)
    enqueued = since if arrived is None else float(arrived)
    return Standing(
        id=claim_id, owner=owner, kind=kind, token=ticket, holds=False, weight=weight, capacity=capacity, ttl=ttl,
        remaining=max(0.0, left), enqueued_at=enqueued, granted_at=granted and float(granted),
        meta=json.loads(meta) if meta else None,
    )  # fmt: skip


def as_holder(claim: Standing) -> Standing:
    """The same of one that holds; since it came, where the database has not noted the grant."""
    return replace(claim, holds=True, granted_at=claim.began)


def revision_of(routines: str) -> str:
    """What tells the routines of one release from those of another."""
    return sha1(routines.encode(), usedforsecurity=False).hexdigest()[:8]


def of_this_release(found: str | None, ours: str, url: str) -> Finding:
    """Whether the routines in the database are those of this release, for `lockline doctor`."""
    if found == ours:
        return Finding("ok", f"the routines are those of this release (revision {ours})")
    told = f"the routines are of another release (revision {found or 'unknown'}, this one has {ours})"
    return Finding("warning", told, f"run: lockline init {url}, with the newest release that is in use")
