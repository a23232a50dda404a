"""What a packet to a server says, in a word for its arrow: enough to follow a picture, and no parser of protocols."""

from __future__ import annotations

import re
import struct

SQL = re.compile(rb"(?i)\b(insert|select|delete|update|call|set)\b")
HTTP = re.compile(rb"(GET|PUT|POST|DELETE) /v1/([a-z]+)")
ZOOKEEPER = {
    1: "create", 2: "delete", 3: "exists", 4: "get", 5: "set", 8: "children", 11: "ping", 12: "children", 14: "multi", 15: "create",
    19: "create",
}  # fmt: skip
"""The kinds of a request, as its header numbers them."""

FIRST_WORDS = {"HELLO", "CLIENT", "SELECT", "AUTH", "INFO", "CONFIG", "SCRIPT"}
"""What a client says to a Redis before it comes to the matter."""


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


def _redis(data: bytes) -> str:
    parts = data.split(b"\r\n")
    names = [
        parts[at + 2].decode(errors="replace").upper()
        for at, part in enumerate(parts[:-2])
        if part.startswith(b"*") and parts[at + 1].startswith(b"$")
    ]
    said = [name for name in names if name not in FIRST_WORDS]
    return "+".join(said[:4])[:40] if said else "hello" if names else ""
