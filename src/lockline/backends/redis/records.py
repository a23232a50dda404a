"""How a claim is written on the way to the server, and read on the way back."""

from __future__ import annotations

import json
from typing import Final, TypeVar

from ...core.claim import Standing
from ..resp.commands import Script
from .scripts import ENTER, LEAVE

ROOM: Final = 4 << 20
"""Bytes of prepared text that a client keeps, of each kind: thousands of names, or of wishes."""

OVERHEAD: Final = 400
"""Bytes of Python's own that go with one of them, about."""

K = TypeVar("K")
V = TypeVar("V")


class Kept(dict[K, V]):
    """What was prepared once, by what it is for; bounded by its size, because names and metadata may be long."""

    size = 0

    def keep(self, key: K, value: V, size: int) -> V:
        """Keep it; when there is no room, after everything else was thrown away."""
        if self.size + size > ROOM:
            self.clear()
            self.size = 0
        self.size += size
        self[key] = value
        return value


class Prepared:
    """What requests on one line begin with, ready for the wire: the hot path only adds the claim."""

    __slots__ = ("enter", "key", "leave", "size")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.enter = _beginning(ENTER, key, args=7)
        self.leave = _beginning(LEAVE, key, args=2)
        self.size = len(self.enter) + len(self.leave) + 2 * len(key) + OVERHEAD

    def request_to_leave(self, claim_id: str, doubtful: bool) -> bytes:
        """The whole request; ids are made of ASCII alone, by the engine: as many bytes as characters."""
        return b"%b$%d\r\n%b\r\n$1\r\n%d\r\n" % (self.leave, len(claim_id), claim_id.encode(), doubtful)


def _beginning(script: Script, key: bytes, args: int) -> bytes:
    whole = script.by_digest((key,), ())
    return b"*%d" % (4 + args) + whole[whole.index(b"\r") :]


def read(claim_id: str, record: str, holds: bool, now: float) -> Standing | None:
    """A record as others see it; None when its time is over."""
    ticket, expires, weight, capacity, _, _, info = record.split(" ", 6)
    remaining = (int(expires) - now) / 1000
    if remaining <= 0:
        return None
    ttl, kind, rest = info.split(" ", 2)
    owner, end = json.JSONDecoder().raw_decode(rest)
    meta = rest[end:]
    return Standing(
        id=claim_id, owner=owner, kind=kind, token=int(ticket), holds=holds, weight=int(weight),
        capacity=int(capacity), ttl=float(ttl), remaining=remaining, since=int(ticket) / 1e6,
        meta=json.loads(meta) if meta else None,
    )  # fmt: skip
