"""How a claim is written on the way to the server, and read on the way back."""

from __future__ import annotations

import json

from ...core.claim import Standing
from .port import pack
from .scripts import ENTER, LEAVE, Script


class Prepared:
    """What requests on one line begin with, ready for the wire: the hot path only adds the claim."""

    __slots__ = ("enter", "key", "leave")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.enter = _beginning(ENTER, key, args=7)
        self.leave = _beginning(LEAVE, key, args=2)


def _beginning(script: Script, key: bytes, args: int) -> bytes:
    whole = pack(("EVALSHA", script.sha, 1, key))
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
