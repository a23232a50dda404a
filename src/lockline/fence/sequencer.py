"""A lease as text: for a header, an argument, an environment variable, a column, a message."""

from __future__ import annotations

import re
import zlib
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ..errors import ConfigError
from .rule import EXCLUSIVE, LARGEST, SHARED, Offer, a_name, an_exclusive

TOKEN_HEADER = "Fencing-Token"
LOCK_HEADER = "Fencing-Lock"
GRANT_HEADER = "Fencing-Grant"

# Visible ASCII that no shell, header or CSV treats in its own way. A colon parts the fields, so a name has none.
SAFE = "/._-~@+,="
NUMBER = re.compile(r"[1-9][0-9]{0,18}")


class Sequencer(NamedTuple):
    """A sequencer, read."""

    lock: str
    mode: str
    token: int
    grant: str


def write_sequencer(lease: Any) -> str:
    """`name:mode:token:grant:check`, printable; the check finds a cut or mistyped text, it is no signature."""
    body = f"{quote(lease.name, safe=SAFE)}:{lease.kind}:{lease.token}:{quote(lease.id, safe=SAFE)}"
    return f"{body}:{_check(body)}"


def parse_sequencer(text: object) -> Sequencer:
    """The fields of a sequencer; ConfigError if it is not whole."""
    if not isinstance(text, str):
        raise ConfigError(f"a sequencer is text, not {type(text).__name__}")
    fields = text.strip().split(":")
    if len(fields) != 5:
        raise ConfigError(f"{text!r} is not a sequencer (name:mode:token:grant:check)")
    name, mode, token, grant, check = fields
    if check != _check(":".join(fields[:4])):
        raise ConfigError(f"the sequencer {text!r} was cut short or changed on its way: its check does not match")
    if mode not in EXCLUSIVE + SHARED:
        raise ConfigError(f"{mode!r} is not a mode that Lockline knows")
    return Sequencer(a_name(unquote(name), "lock"), mode, read_number(token), unquote(grant))


def read_sequencer(text: str) -> Offer:
    """What the holder of this sequencer offers at a fence."""
    sequencer = parse_sequencer(text)
    an_exclusive(sequencer.mode)
    return Offer(sequencer.lock, sequencer.token, sequencer.grant)


def headers_of(lease: Any) -> dict[str, str]:
    """The headers with which a request shows its lease."""
    an_exclusive(lease.kind)
    return {
        TOKEN_HEADER: str(lease.token),
        LOCK_HEADER: quote(lease.name, safe=SAFE),
        GRANT_HEADER: quote(lease.id, safe=SAFE),
    }


def read_number(text: str) -> int:
    """A token written in decimal, as a shell or a header carries it."""
    if not NUMBER.fullmatch(text) or int(text) > LARGEST:
        raise ConfigError(f"a fencing token is a whole number from 1 to 2^63-1, not {text[:40]!r}")
    return int(text)


def _check(body: str) -> str:
    return f"{zlib.crc32(body.encode('ascii', 'replace')):08x}"
