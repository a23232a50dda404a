"""The key of a line: its name inside a hash tag, so escaped that any name is safe in a key, a slot and a pattern."""

from __future__ import annotations

import re
from typing import Final

from ...errors import ConfigError

PREFIX: Final = "ll"
"""What the keys and channels of a client begin with, unless it was told otherwise."""
# Braces would end the hash tag early; the rest would make keys hard to read and to type.
_UNSAFE: Final = re.compile(r"[%{}\x00-\x20\x7f]")
_ESCAPED: Final = re.compile(r"%([0-9A-F]{2})")
_GLOB: Final = re.compile(r"([\\*?\[\]^])")


def escape(name: str) -> str:
    """The name without braces, blanks and control characters; reversible."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", name)


def key_of(name: str, prefix: str = PREFIX) -> bytes:
    """The one key of the line."""
    return f"{{{prefix}:{escape(name)}}}".encode()


def name_of(key: bytes, prefix: str = PREFIX) -> str:
    """The name that a key was made from."""
    inside = key.decode()[len(prefix) + 2 : -1]
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), inside)


def pattern(beginning: str, prefix: str = PREFIX) -> str:
    """What SCAN finds the lines by whose names begin like this."""
    return f"{{{prefix}:" + _GLOB.sub(r"\\\1", escape(beginning)) + "*}"


def a_prefix(value: object) -> str:
    """A word that is safe in keys, patterns and rules."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value):
        raise ConfigError(f"prefix is a word of letters, digits, '_', '.' and '-', not {value!r}")
    return value
