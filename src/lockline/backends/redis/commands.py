"""What is sent for claims: the key of a line, requests prepared as far as they are the same each time, and records read back.

A line's name stands inside a hash tag, so escaped that any name is safe in a key, a slot and a pattern.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from ...core.claim import Standing
from ...errors import ConfigError
from ..resp.commands import Script
from ..resp.target import Address
from .connection import Link
from .scripts import ENTER, LEAVE, REMEMBERED

PREFIX: Final = "ll"
"""What the keys and channels of a client begin with, unless it was told otherwise."""
# Braces would end the hash tag early; the rest would make keys hard to read and to type.
_UNSAFE: Final = re.compile(r"[%{}\x00-\x20\x7f]")
_ESCAPED: Final = re.compile(r"%([0-9A-F]{2})")
_GLOB: Final = re.compile(r"([\\*?\[\]^])")

ROOM: Final = 4 << 20
"""Bytes of prepared text that a client keeps, of each kind: thousands of names, or of wishes."""

OVERHEAD: Final = 400
"""Bytes of Python's own that go with one of them, about."""

K = TypeVar("K")
V = TypeVar("V")


def escape(name: str) -> str:
    """The name without braces, blanks and control characters; reversible."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", name)


def key_of(name: str, prefix: str = PREFIX) -> bytes:
    """The one key of the line."""
    return f"{{{prefix}:{escape(name)}}}".encode()


def name_of(key: bytes, prefix: str = PREFIX) -> str:
    """The name that a key was made from; empty for a key that no name gives."""
    try:
        inside = key.decode()[len(prefix) + 2 : -1]
    except UnicodeDecodeError:
        return ""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), inside)


def pattern(beginning: str, prefix: str = PREFIX) -> str:
    """What SCAN finds the lines by whose names begin like this."""
    return f"{{{prefix}:" + _GLOB.sub(r"\\\1", escape(beginning)) + "*}"


def a_prefix(value: object) -> str:
    """A word that is safe in keys, patterns and rules."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value):
        raise ConfigError(f"prefix is a word of letters, digits, '_', '.' and '-', not {value!r}")
    return value


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


class Route(NamedTuple):
    """A line's server and the link to it, as they were known in that epoch of the topology."""

    epoch: object
    address: Address | None
    link: Link | None


NOWHERE: Final = Route(object(), None, None)


class PreparedLine:
    """What requests on one line begin with, ready for the wire: the hot path only adds the claim."""

    __slots__ = ("apart_until", "crowd", "enter", "hand_on", "joined", "key", "leave", "route", "size", "unjoined")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.route = NOWHERE
        self.crowd = 0
        """Whether several of this client want it: turns were handed on, up to so many releases ago."""
        self.joined = b""
        """What a request begins with in which steps are joined, once there was one."""
        self.unjoined = False
        """Whether the server did not know how to; then it is told with the next one."""
        self.apart_until = 0.0
        """Until when none are joined."""
        self.enter = _beginning(ENTER, key, args=5)
        self.leave = _beginning(LEAVE, key, args=1)
        self.hand_on = _beginning(LEAVE, key, args=3)
        self.size = len(self.enter) + len(self.leave) + len(self.hand_on) + 2 * len(key) + OVERHEAD

    def request_to_enter(self, claim_id: str, rest: bytes) -> bytes:
        """The whole request, with what comes after the id."""
        return b"%b$%d\r\n%b\r\n%b" % (self.enter, len(claim_id), claim_id.encode(), rest)

    def request_to_leave(self, claim_id: str) -> bytes:
        """The whole request; ids are made of ASCII alone, by the engine: as many bytes as characters."""
        return b"%b$%d\r\n%b\r\n" % (self.leave, len(claim_id), claim_id.encode())

    def request_to_hand_on(self, claim_id: str, heir: str) -> bytes:
        """The same by one who has let in the next one, of the same client."""
        head = (self.hand_on, len(claim_id), claim_id.encode(), len(heir), heir.encode())
        return b"%b$%d\r\n%b\r\n$1\r\n0\r\n$%d\r\n%b\r\n" % head


def _beginning(script: Script, key: bytes, args: int) -> bytes:
    whole = script.by_digest((key,), ())
    return b"*%d" % (4 + args) + whole[whole.index(b"\r") :]


Wish = tuple[float, int, int, str, str, str, str, bool]
"""ttl, weight, capacity, channel, kind, owner, meta, and whether the claim may wait."""


def words(wish: Wish) -> tuple[str, ...]:
    """The arguments of ENTER after the id."""
    ttl, weight, capacity, channel, kind, owner, meta, wait = wish
    # As JSON, the owner can contain nothing that would confuse a reader.
    about = f"{weight} {capacity} {channel} {ttl} {kind} {json.dumps(owner)}{meta}"
    milliseconds = math.ceil(ttl * 1000)
    return str(milliseconds), about, "1" if wait else "0", str(milliseconds + REMEMBERED * 1000)


def read(claim_id: str, record: str, holds: bool, now: float) -> Standing | None:
    """A record as others see it; None when its time is over, or when it is none. What people are told may be anything."""
    try:
        ticket, renewed, good_for, seat_or_grant, weight, capacity, _, info = record.split(" ", 7)
        arrived, granted = int(ticket) / 1e6, int(seat_or_grant) / 1e6
        remaining = (int(renewed) / 1000 + int(good_for) - now) / 1000
        claim = Standing(
            id=claim_id, owner="?", kind="?", token=int(ticket), holds=holds, weight=int(weight), capacity=int(capacity),
            ttl=int(good_for) / 1000, remaining=remaining, enqueued_at=arrived, granted_at=max(arrived, granted) if holds else None,
        )  # fmt: skip
    except ValueError:
        return None
    try:
        ttl, kind, rest = info.split(" ", 2)
        owner, end = json.JSONDecoder().raw_decode(rest)
        meta = json.loads(rest[end:]) if rest[end:] else None
        if isinstance(owner, str) and isinstance(meta, (dict, type(None))):
            claim = replace(claim, owner=owner, kind=kind, ttl=float(ttl), meta=meta)
    except (ValueError, RecursionError):
        pass
    return claim if remaining > 0 else None
