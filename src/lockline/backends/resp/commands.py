"""Commands as they go over the wire, and what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis

# hiredis' own types say that a command is one word long.
_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command


def pack(words: Sequence[Any]) -> bytes:
    """A command as it goes over the wire."""
    # Texts and bytes alone: hiredis crashes when a signal handler raises while it turns a number into text.
    return _pack(tuple([word if isinstance(word, (str, bytes)) else str(word) for word in words]))


def pack_texts(words: tuple[str, ...]) -> bytes:
    """The same for words that are texts already: the shorter way."""
    return _pack(words)


PING: Final = pack(("PING",))
HELLO: Final = pack(("HELLO", "3"))
"""From here on RESP3: on a connection that is subscribed to something, requests can be made as well. Its answer is a map."""
INFO: Final = pack(("INFO", "server"))
"""Tells a server's version."""

ServerError = hiredis.ReplyError
"""What a server's error reads as; it is an answer like any other, and is returned, not raised."""

PUSHED: Any = getattr(hiredis, "PushNotification", None)
"""What a RESP3 server says unasked reads as; older hiredis does not tell it apart, and nothing of ours asks for it."""


def flat(reply: Any) -> Any:
    """A map of RESP3 as RESP2 has it, key and value in turn; anything else as it is."""
    return [word for pair in reply.items() for word in pair] if type(reply) is dict else reply


class Garbled(ConnectionAbortedError):
    """The server speaks something else; whoever is ready for a broken connection is ready for this."""


def new_reader() -> hiredis.Reader:
    """Reads replies out of bytes: `gets` gives Ellipsis while there is none, and Garbled where there can be none."""
    return hiredis.Reader(protocolError=Garbled, notEnoughData=Ellipsis)


class Script:
    """A script, and the digest by which servers know it once they have seen it."""

    __slots__ = ("body", "sha")

    def __init__(self, body: str) -> None:
        self.body = body
        self.sha = hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()

    def by_digest(self, keys: Sequence[Any], args: Sequence[Any]) -> bytes:
        """The request for a server that knows the script; others answer NOSCRIPT, and have done nothing."""
        return pack(("EVALSHA", self.sha, len(keys), *keys, *args))

    def in_full(self, keys: Sequence[Any], args: Sequence[Any]) -> bytes:
        """The request for one that may not."""
        return pack(("EVAL", self.body, len(keys), *keys, *args))
