"""What a lock object wants each time it is acquired, checked when the object is made."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from ..errors import ConfigError
from .arguments import a_callback, a_count, a_delay, a_flag, a_meta, a_name, a_period, a_timeout, a_ttl
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
    timeout: float | None = None
    """How long to wait where the call itself does not say."""
    on_wait: Callable[[int], object] | None = None
    max_waiting: int | None = None
    keep_for: float | None = None
    lock_delay: float = 0.0
    minds_the_wait: bool = False
    """Whether the caller cares for its place in the line: one of the two is said."""


def terms_for(
    kind: Kind,
    capacity: int,
    name: object,
    ttl: object,
    renew: object,
    max_hold: object,
    meta: Mapping[str, Any] | None,
    *,
    weight: object = 1,
    timeout: object = None,
    on_wait: object = None,
    max_waiting: object = None,
    keep_for: object = None,
    lock_delay: object = 0.0,
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
        weight=_a_weight(weight, capacity),
        capacity=capacity,
        ttl=seconds,
        renews=a_flag(renew, "renew"),
        max_hold=None if max_hold is None else a_ttl(max_hold, "max_hold"),
        meta=a_meta(meta),
        timeout=a_timeout(timeout),
        on_wait=None if on_wait is None else a_callback(on_wait, "on_wait"),
        max_waiting=None if max_waiting is None else a_count(max_waiting, "max_waiting"),
        keep_for=None if keep_for is None else a_period(keep_for, "keep_for"),
        lock_delay=a_delay(lock_delay, "lock_delay"),
        minds_the_wait=on_wait is not None or max_waiting is not None,
    )


def _a_weight(value: object, capacity: int) -> int:
    weight = a_count(value, "weight")
    if not 1 <= weight <= capacity:
        raise ConfigError(f"weight must be from 1 to the limit, which is {capacity}, not {weight}: it could never hold")
    return weight
