"""A line as everybody can see it."""

from __future__ import annotations

from typing import Final

from ...core.claim import Line
from ...core.rule import admitted
from ..failures import Refused
from . import calls
from .calls import LinePlace, RoutineCall
from .channel import SqlChannel

NO_ROUTINE: Final = frozenset({"42883", "1305"})


async def look(channel: SqlChannel, name: str, place: LinePlace, until: float) -> Line:
    """The line, without the moments of its grants where the tables are of a release that did not note them."""
    try:
        rows, _ = await channel.run(RoutineCall("line", (place.name,)), until, insists=False)
    except Refused as refusal:
        if refusal.code not in NO_ROUTINE:
            raise
        rows, _ = await channel.run(RoutineCall("look", (place.name,)), until, insists=False)
    line = [calls.standing(row) for row in rows]
    holders = admitted(line)
    return Line(name, tuple(calls.as_holder(one) if at < holders else one for at, one in enumerate(line)))
