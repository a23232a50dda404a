"""What an operator asks and does: how a line stands, which names have one, who has to go."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ...core.claim import Line
from ..resp.commands import ServerError, pack
from ..resp.errors import NoAnswer, Refused, code_of, said_no, unavailable
from ..resp.target import Address
from .channel import Call, Channel
from .commands import name_of, pattern, read
from .scripts import ALIVE, EVICT, LOOK

OF_ONE_KEY: Final = frozenset({"WRONGTYPE", "ERR"})
"""Refusals that say something of what lies under one key, and nothing of the server."""

PAGE: Final = 5000
"""Keys that one SCAN passes over: a few milliseconds of the server's time."""

LINES: Final = 200
"""Lines that are asked for together: answers of a megabyte or so, where ten wait in each."""


class Inspection:
    """Questions about the lines of one client's servers."""

    def __init__(self, channel: Channel, prefix: str) -> None:
        self._channel = channel
        self._prefix = prefix

    async def look(self, name: str, key: bytes, until: float) -> Line:
        """The whole line."""
        return _line(name, (await self._channel.run(Call(LOOK, (key,), ()), until, insists=False)).value)

    async def look_many(self, wanted: Sequence[tuple[str, bytes]], until: float) -> list[Line]:
        """These lines: one trip per server and `LINES` of them, each a step of its own for the server.

        One that cannot be read is left out, unless none can.
        """
        lines: dict[str, Line] = {}
        spoilt: list[Refused] = []

        async def look(name: str, key: bytes) -> None:
            try:
                lines[name] = await self.look(name, key, until)
            except Refused as refused:
                if refused.code not in OF_ONE_KEY:
                    raise
                spoilt.append(refused)

        places: dict[Address, list[tuple[str, bytes]]] = {}
        for name, key in wanted:
            address = self._channel.topology.known(key)
            if address is None:
                # The first question finds out where things are, and loads the script.
                await look(name, key)
            else:
                places.setdefault(address, []).append((name, key))
        for address, there in places.items():
            for at in range(0, len(there), LINES):
                some = there[at : at + LINES]
                requests = [LOOK.by_digest((key,), ()) for _, key in some]
                replies = await self._channel.ask_all(address, requests, until)
                for (name, key), reply in zip(some, replies, strict=True):
                    # Moved, or a server that does not know the script: with all that a single question can do.
                    if isinstance(reply, ServerError):
                        await look(name, key)
                    else:
                        lines[name] = _line(name, reply)
        if spoilt and not lines:
            raise spoilt[0]
        return [lines[name] for name, _ in wanted if name in lines]

    async def evict(self, key: bytes, token: int | None, until: float) -> int:
        """Remove the holders of the line, or the one that has this token; how many they were."""
        args = (secrets.token_hex(8), "" if token is None else str(token))
        return int((await self._channel.run(Call(EVICT, (key,), args), until, insists=False)).value)

    async def names(self, prefix: str, until: float) -> list[str]:
        """The names that have a live claim, sorted."""
        return await self._channel.ask_around(partial(self._names, prefix, until), until)

    async def _names(self, prefix: str, until: float) -> list[str]:
        try:
            servers = await self._channel.topology.primaries(until)
        except NoAnswer as problem:
            raise unavailable(problem, unsent=True) from problem
        keys: set[bytes] = set()
        for address in servers:
            keys |= await self._used_at(address, pattern(prefix, self._prefix), until)
        return sorted(name for key in keys if (name := name_of(key, self._prefix)))

    async def _used_at(self, address: Address, match: str, until: float) -> set[bytes]:
        """The keys with somebody on them.

        One trip a page: the next page is asked for together with what the last one brought. Idle lines remember their last
        ticket for a while, and others may have keys that look like ours: neither has a state, mostly. What has one is asked
        by script whether anybody in it is still alive.
        """
        used: set[bytes] = set()
        cursor: str | None = "0"
        found: list[bytes] = []
        likely: list[bytes] = []
        while cursor is not None or found or likely:
            requests = [pack(("HGET", key, "state")) for key in found]
            requests += [ALIVE.by_digest((key,), ()) for key in likely]
            if cursor is not None:
                requests.append(pack(("SCAN", cursor, "MATCH", match, "COUNT", PAGE)))
            replies = await self._channel.ask_all(address, requests, until)
            states, lives, page = replies[: len(found)], replies[len(found) :], None
            if cursor is not None:
                page = lives.pop()
            used.update([key for key, alive in zip(likely, lives, strict=True) if type(alive) is int and alive])
            not_said = {key: alive for key, alive in zip(likely, lives, strict=True) if type(alive) is not int}
            # A server that does not know the script says so of each: one by itself loads it, the others go with the next page.
            again = [
                key
                for key, alive in not_said.items()
                if isinstance(alive, ServerError) and code_of(alive) == "NOSCRIPT"
            ][1:]
            odd = list(not_said.keys() - set(again))
            odd += [key for key, state in zip(found, states, strict=True) if self._is_odd(state, address)]
            used.update([key for key in odd if await self._is_used(key, until)])
            likely = again + [key for key, state in zip(found, states, strict=True) if type(state) is bytes]
            cursor, found = self._next_page(page, address)
        return used

    def _next_page(self, page: Any, address: Address) -> tuple[str | None, list[bytes]]:
        if page is None:
            return None, []
        if isinstance(page, ServerError):
            self._channel.topology.doubt(address)
            raise said_no(page, address)
        cursor, keys = page
        return (None if int(cursor) == 0 else cursor.decode()), keys

    def _is_odd(self, state: object, address: Address) -> bool:
        """Whether the server has the key no longer, and has to be asked in another way; a foreign value is passed over."""
        if not isinstance(state, ServerError) or code_of(state) == "WRONGTYPE":
            return False
        if code_of(state) in ("MOVED", "ASK", "TRYAGAIN"):
            return True
        self._channel.topology.doubt(address)
        raise said_no(state, address)

    async def _is_used(self, key: bytes, until: float) -> bool:
        """As above, with all that a single request can do to be answered; the others find the script loaded by that."""
        try:
            return bool((await self._channel.run(Call(ALIVE, (key,), ()), until, insists=False)).value)
        except Refused as refused:
            if refused.code not in OF_ONE_KEY:
                raise
            # What looks like a line and is none stands in the list: a look at it says why.
            return refused.code != "WRONGTYPE"


def _line(name: str, reply: list[bytes]) -> Line:
    now = float(reply[0])
    claims = []
    for field, value in zip(reply[1::2], reply[2::2], strict=True):
        mark, claim_id = field[:1], field[1:].decode()
        if mark in (b"+", b"~") and (standing := read(claim_id, value.decode(), mark == b"+", now)):
            claims.append(standing)
    return Line(name, tuple(sorted(claims, key=lambda standing: standing.token)))
