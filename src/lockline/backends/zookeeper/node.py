"""What a client knows of one of its own claims, and what others can read of it."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from ...core.claim import Claim
from .line import Place, admitted, decisive
from .session import Session


class Node:
    """One claim of this client. It is known from before the request that makes it goes out."""

    __slots__ = (
        "ahead", "claim", "end", "expires", "held_at_once", "holds", "lighter", "mine", "own_watch", "parent", "path", "session", "stale",
        "token", "ttl", "watched", "weight", "withdrawn",
    )  # fmt: skip

    def __init__(self, claim: Claim, parent: str) -> None:
        self.claim = claim
        self.parent = parent
        self.path: str | None = None
        self.lighter: str | None = None
        """The second node, of a claim that became lighter."""
        self.token = 0
        self.session: Session | None = None
        self.expires = 0.0
        """When this client removes it unless it is renewed."""
        self.ttl = claim.ttl
        self.weight = claim.weight
        self.end: str | None = None
        """Why it is gone."""
        self.withdrawn = False
        self.holds = False
        self.held_at_once = False
        """It held as soon as it stood, with nobody ahead to wait for."""
        self.mine: Place | None = None
        self.ahead: list[Place] = []
        """The line before it, as far as is known. It can only get shorter and lighter, so what is known errs on the safe
        side: when it leaves room, there is room."""
        self.stale = False
        """The line has to be read again: something changed that no event told in full."""
        self.watched: set[str] = set()
        self.own_watch = False

    @property
    def gone(self) -> bool:
        """Whether it is known to be gone: removed, expired, or lost with its session."""
        return self.end is not None or (self.session is not None and self.session.ended)

    @property
    def paths(self) -> list[str]:
        """The nodes it consists of, in the order in which they have to go."""
        return [path for path in (self.lighter, self.path) if path is not None]

    def stand(self, line: list[Place], at: int | None) -> None:
        """Take in the line as it was read, and the place in it; a claim that has none is gone."""
        if at is None:
            self.end = self.end or "evicted"
            return
        self.mine, self.ahead = line[at], line[:at]
        # Who holds goes on to hold: nobody comes in ahead. A look that was overtaken by an event changes nothing.
        self.holds = self.holds or at < admitted(line)

    def ahead_left(self, gone: Container[str]) -> None:
        """These nodes have gone."""
        self.ahead = [place for place in self.ahead if place.node not in gone]
        assert self.mine is not None
        self.holds = self.holds or admitted([*self.ahead, self.mine]) > len(self.ahead)

    def to_watch(self) -> list[str]:
        """The nodes that decide this claim's turn and are not watched yet."""
        assert self.mine is not None
        return [place.node for place in decisive(self.ahead, self.mine) if place.node not in self.watched]

    def renewed(self, claim: Claim, sent: float) -> None:
        """The ensemble confirmed it, as the claim now stands."""
        self.expires = max(self.expires, sent + claim.ttl)
        self.ttl = max(self.ttl, claim.ttl)
        self.weight = min(self.weight, claim.weight)


class Seen(NamedTuple):
    """What a node's data says."""

    owner: str
    kind: str
    ttl: float
    since: float
    meta: Mapping[str, Any] | None


NOTHING = Seen("?", "?", 0.0, 0.0, None)
LATEST = 1e11
"""Later than any time that anybody means, and early enough for every calendar."""


def written(claim: Claim) -> bytes:
    """The node's data: for people, nothing is decided by it."""
    meta = json.loads(claim.meta) if claim.meta else None
    return json.dumps([claim.owner, claim.kind, claim.ttl, claim.since, meta]).encode()


def read_data(data: bytes) -> Seen:
    """What the data says; that of a node that is not ours, or that somebody has changed, says nothing."""
    try:
        seen = Seen(*json.loads(data))
    except (ValueError, TypeError, RecursionError):
        return NOTHING
    texts, times = (seen.owner, seen.kind), (seen.ttl, seen.since)
    if not all(isinstance(text, str) for text in texts) or not isinstance(seen.meta, (dict, type(None))):
        return NOTHING
    return seen if all(isinstance(time, (int, float)) and 0 <= time < LATEST for time in times) else NOTHING
