"""What a failure is: a schedule that hits at the right instant by construction, and the words for what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..locks.face import PublishedLock
from ..stage import TTL, Stage

Applies = Callable[[type[PublishedLock]], str]


def always(lock: type[PublishedLock]) -> str:
    """No reason not to."""
    return ""


@dataclass(frozen=True, slots=True)
class Failure:
    """One column of the matrix."""

    id: str
    title: str
    story: str
    """What happens, in one sentence."""
    run: Callable[[Stage], None]
    causes: Mapping[str, str]
    """For each verdict the reason, in one or two sentences."""
    cure: str
    link: str
    wants: str = "plain"
    """plain · three · replica · clock · pooler: the servers that it needs."""
    disturbs: bool = False
    """Whether it does something to servers that others may use."""
    applies: Applies = field(default=always)
    """Why it does not apply to a lock; empty where it does."""
    ttl: float = TTL
    crowded: bool = False
    """Whether it needs the machine for many clients: such cells come last, few at a time."""
