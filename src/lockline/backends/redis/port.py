"""What the Redis backend needs of the world: requests to a server, and messages from it. Once per flavour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import hiredis

from .problems import Address

# hiredis' own types say that a command is one word long.
_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command


def pack(words: tuple[Any, ...]) -> bytes:
    """A command as it goes over the wire."""
    # Texts and bytes alone: hiredis crashes when a signal handler raises while it turns a number into text.
    return _pack(tuple([word if isinstance(word, (str, bytes)) else str(word) for word in words]))


ServerError = hiredis.ReplyError
"""What a server's error reads as; it is an answer like any other, and is returned, not raised."""

PUSHED: Any = getattr(hiredis, "PushNotification", None)
"""What a RESP3 server says unasked reads as; older hiredis does not tell it apart, and nothing of ours asks for it."""


class Port(Protocol):
    """Requests to servers. Raises NoAnswer and nothing else, where a server does not answer."""

    async def ask(self, address: Address, request: bytes, until: float) -> Any:
        """The server's answer to one command."""

    async def ask_all(
        self, address: Address, requests: Sequence[bytes], until: float, *, sentinel: bool = False
    ) -> list[Any]:
        """The answers to several commands that were sent together, on one connection."""

    def forget(self, address: Address) -> None:
        """Close what is open to this server and idle; the next request connects anew."""

    async def close(self) -> None: ...
    def forked(self) -> None:
        """In a child: drop every socket without a word."""


class Ears(Protocol):
    """The one subscription of a client at each server where it has waiting claims."""

    def channel(self, address: Address) -> str:
        """The channel on which this server reaches us; NO_CHANNEL while we do not listen there."""

    async def listen(self, address: Address, until: float) -> str:
        """Subscribe there if we do not yet; the channel."""

    async def close(self) -> None: ...
    def forked(self) -> None: ...
