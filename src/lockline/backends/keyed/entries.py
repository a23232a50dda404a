"""What the key of a claim says: written by its client, read by everybody, who may find anything there."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from ...core.claim import Claim, Standing

Told = tuple[Any, ...]
"""Owner, kind, weight, capacity, ttl, since, meta and client, and what a store says beside."""
FIELDS: Final[tuple[type | tuple[type, ...], ...]] = (str, str, int, int, (int, float), (int, float), str, str)
"""What `written` writes, in its order."""


@dataclass(slots=True)
class KeyedEntry:
    """A claim as its key tells it; a store adds what it says beside. Not frozen: that makes reading a long line slower."""

    id: str
    owner: str
    kind: Any
    weight: int
    capacity: int
    ttl: float
    since: float
    meta: str
    client: str
    granted: float
    """When it began to hold, if its client has written that down by now; otherwise when it came."""


def written(claim: Claim, client: str, *more: float) -> str:
    """The text of this claim's key; what is added ends with the moment of the grant, if that came later than the claim."""
    told = (claim.owner, claim.kind, claim.weight, claim.capacity, claim.ttl, claim.since, claim.meta, client, *more)
    return json.dumps(told, separators=(",", ":"))


def read(text: str | bytes, numbers: int = 0) -> Told | None:
    """What `written` wrote, with so many numbers and the grant at its end (more may follow one day); None for anything else, which holds nothing."""
    fields = FIELDS + (int,) * numbers
    try:
        told = json.loads(text)
        if type(told) is not list or len(told) < len(fields) or not all(map(isinstance, told, fields)):
            return None
        _, _, weight, capacity, ttl, since, meta, *_ = told
        # With a weight of nothing it would take no room, and a ttl that is none would never be over.
        sound = 0 < weight <= capacity and ttl > 0 and math.isfinite(ttl) and math.isfinite(since)
        if meta and not isinstance(json.loads(meta), dict):
            return None
    except (ValueError, OverflowError, RecursionError):
        return None
    granted = told[len(fields)] if len(told) > len(fields) else since
    known = isinstance(granted, (int, float)) and math.isfinite(granted)
    return (*told[: len(FIELDS)], granted if known else since, *told[len(FIELDS) : len(fields)]) if sound else None


def standing(claim: KeyedEntry, *, token: int, holds: bool, remaining: float) -> Standing:
    """The claim as `inspect` shows it."""
    return Standing(
        id=claim.id, owner=claim.owner, kind=claim.kind, token=token, holds=holds, weight=claim.weight,
        capacity=claim.capacity, ttl=claim.ttl, remaining=max(0.0, remaining), enqueued_at=claim.since, granted_at=max(claim.since, claim.granted) if holds else None,
        meta=json.loads(claim.meta) if claim.meta else None,
    )  # fmt: skip
