"""Lines and claims as the page gets them: plain values, cut to a size that strangers cannot blow up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..core.claim import WHOLE, Line, Standing
from ..errors import printable

HOLDERS_SHOWN: Final = 6
WAITERS_SHOWN: Final = 5
"""Of each line in the list; how many there are is always said."""
WAITERS_IN_DETAIL: Final = 200
"""Of the one line that somebody has opened."""
META_SHOWN: Final = 4
META_IN_DETAIL: Final = 24
LONGEST_VALUE: Final = 60
LONGEST_VALUE_IN_DETAIL: Final = 400
LONGEST_WHO: Final = 120


def text(value: str, most: int) -> str:
    """A stranger's text on one line, without a word to a terminal and without letters that turn it around; cut."""
    shown = printable(value[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def pairs(meta: Mapping[str, Any] | None, most: int, longest: int) -> list[list[str]]:
    """The first entries of a claim's metadata as text; a last one says how many more there are."""
    if not meta:
        return []
    shown = [
        [text(str(key), 40), text(value if isinstance(value, str) else json.dumps(value), longest)]
        for key, value in list(meta.items())[:most]
    ]
    return shown if len(meta) <= most else [*shown, ["…", f"{len(meta) - most} more"]]


def claim(standing: Standing, now: float, *, detail: bool = False) -> dict[str, Any]:
    """One claim; moments are by the server's clock, and the page is told that clock with every look."""
    most, longest = (META_IN_DETAIL, LONGEST_VALUE_IN_DETAIL) if detail else (META_SHOWN, LONGEST_VALUE)
    shown: dict[str, Any] = {
        "id": standing.id,
        "who": text(standing.owner, LONGEST_WHO),
        "kind": standing.kind,
        # As text: JavaScript's numbers end at 2^53.
        "token": str(standing.token),
        "enqueued_at": round(standing.enqueued_at, 3),
        "granted_at": None if standing.granted_at is None else round(standing.granted_at, 3),
        "ttl": standing.ttl,
        "expires": round(now + standing.remaining, 2),
    }
    if standing.kind == "permit":
        shown["weight"], shown["capacity"] = standing.weight, standing.capacity
    if standing.meta:
        shown["meta"] = pairs(standing.meta, most, longest)
    return shown


def line(seen: Line, now: float) -> dict[str, Any]:
    """One line of the list: the first of those who hold and wait, and how many there are."""
    holders, waiters = seen.holders, seen.waiters
    return {
        **named(seen.name),
        "holders": len(holders),
        "waiting": len(waiters),
        "room": room(holders or waiters),
        "hold": [claim(one, now) for one in holders[:HOLDERS_SHOWN]],
        "wait": [claim(one, now) for one in waiters[:WAITERS_SHOWN]],
    }


def detail(seen: Line, now: float) -> dict[str, Any]:
    """One line as whoever opened it sees it."""
    return {
        **line(seen, now),
        "hold": [claim(one, now, detail=True) for one in seen.holders[:WAITERS_IN_DETAIL]],
        "wait": [claim(one, now, detail=True) for one in seen.waiters[:WAITERS_IN_DETAIL]],
    }


def named(name: str) -> dict[str, str]:
    """A name as the key that it is, and as text to show where that differs."""
    shown = printable(name)
    return {"name": name} if shown == name else {"name": name, "shown": shown}


def room(claims: Sequence[Standing]) -> str:
    """What may hold at once, in words; empty for a plain lock."""
    if not claims:
        return ""
    first = claims[0]
    if first.capacity == WHOLE:
        return "read-write"
    if first.kind == "permit":
        used = sum(one.weight for one in claims if one.holds)
        return f"{used} of {min(one.capacity for one in claims)} taken"
    return ""
