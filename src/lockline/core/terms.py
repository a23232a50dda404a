"""What a lock object wants each time it is acquired, checked when the object is made."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from .arguments import a_flag, a_meta, a_name, a_ttl
from .claim import Kind

AN_HOUR: Final = 3600.0
"""A longer ttl is mostly a number of milliseconds."""


class Terms(NamedTuple):
    """What a lock object wants each time it is acquired; checked at construction."""

    name: str
    kind: Kind
    weight: int
    capacity: int
    ttl: float
    renews: bool
    max_hold: float | None
    meta: str


def terms_for(
    kind: Kind,
    capacity: int,
    name: object,
    ttl: object,
    renew: object,
    max_hold: object,
    meta: Mapping[str, Any] | None,
) -> Terms:
    """The arguments of a lock, checked."""
    seconds = a_ttl(ttl)
    if seconds > AN_HOUR and max_hold is None and not isinstance(ttl, timedelta):
        warnings.warn(
            f"a ttl of {seconds:g} seconds keeps a crashed holder's lock for {seconds / 3600:.1f} hours; it is in seconds, and "
            "10 is enough because leases are renewed. If it is meant, say so with a timedelta or with max_hold=",
            RuntimeWarning,
            stacklevel=3,
        )
    return Terms(
        name=a_name(name),
        kind=kind,
        weight=1,
        capacity=capacity,
        ttl=seconds,
        renews=a_flag(renew, "renew"),
        max_hold=None if max_hold is None else a_ttl(max_hold, "max_hold"),
        meta=a_meta(meta),
    )
