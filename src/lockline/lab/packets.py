"""What a packet to a server says, in a word for its arrow: enough to follow a picture, and no parser of protocols."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping

SQL = re.compile(rb"(?i)\b(insert|select|delete|update|call|set)\b")
HTTP = re.compile(rb"(GET|PUT|POST|DELETE) /v1/([a-z]+)")
ZOOKEEPER = {
    1: "create", 2: "delete", 3: "exists", 4: "get", 5: "set", 8: "children", 11: "ping", 12: "children", 14: "multi", 15: "create",
    19: "create",
}  # fmt: skip
"""The kinds of a request, as its header numbers them."""

FIRST_WORDS = {"HELLO", "CLIENT", "SELECT", "AUTH", "INFO", "CONFIG", "SCRIPT"}
"""What a client says to a Redis before it comes to the matter."""


FRAME_HEADER = 9
SETTINGS, PING, WINDOW = 4, 6, 8
UPKEEP: Mapping[int, Callable[[int], bool]] = {
    SETTINGS: lambda length: length % 6 == 0, PING: lambda length: length == 8, WINDOW: lambda length: length == 4,
}  # fmt: skip
"""The frames of HTTP/2 by which two ends look after their connection, and how long each may be: in the bytes of other protocols these
are numbers like any others."""


def named(data: bytes) -> str:
    """The commands, or their kind; empty where it cannot be told."""
    if data.startswith(b"*"):
        return _redis(data)
    if found := HTTP.match(data):
        return f"{found[1].decode()} {found[2].decode()}"
    if len(data) >= 12:
        length, _, kind = struct.unpack(">iii", data[:12])
        if length == len(data) - 4 and kind in ZOOKEEPER:
            return ZOOKEEPER[kind]
    if found := SQL.search(data):
        return found[1].decode().upper()
    return ""


def is_upkeep(data: bytes) -> bool:
    """Whether it says nothing but what keeps a connection of HTTP/2 going: nobody's request, and an answer to none.

    A server grants room for a request that has come in, and pings, before it has done anything of it; often in a packet of its own.
    """
    at = 0
    while len(data) - at >= FRAME_HEADER:
        length, kind, stream = int.from_bytes(data[at : at + 3], "big"), data[at + 3], data[at + 5 : at + 9]
        if kind not in UPKEEP or (kind != WINDOW and any(stream)) or not UPKEEP[kind](length):
            return False
        at += FRAME_HEADER + length
    return at == len(data) > 0


def _redis(data: bytes) -> str:
    parts = data.split(b"\r\n")
    names = [
        parts[at + 2].decode(errors="replace").upper()
        for at, part in enumerate(parts[:-2])
        if part.startswith(b"*") and parts[at + 1].startswith(b"$")
    ]
    said = [name for name in names if name not in FIRST_WORDS]
    return "+".join(said[:4])[:40] if said else "hello" if names else ""
