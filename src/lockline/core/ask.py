"""What a lock object wants each time it is acquired, checked when the object is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .arguments import a_flag, a_meta, a_name, a_ttl
from .claim import Kind


class Ask(NamedTuple):
    """What a lock object wants each time it is acquired; checked at construction."""

    name: str
    kind: Kind
    weight: int
    capacity: int
    ttl: float
    renews: bool
    max_hold: float | None
    meta: str


def ask_for(
    kind: Kind,
    capacity: int,
    name: object,
    ttl: object,
    renew: object,
    max_hold: object,
    meta: Mapping[str, Any] | None,
) -> Ask:
    """The arguments of a lock, checked."""
    return Ask(
        name=a_name(name),
        kind=kind,
        weight=1,
        capacity=capacity,
        ttl=a_ttl(ttl),
        renews=a_flag(renew, "renew"),
        max_hold=None if max_hold is None else a_ttl(max_hold, "max_hold"),
        meta=a_meta(meta),
    )
