"""Grants that count only once replicas have them: on connections of their own, because WAIT holds up whatever comes behind."""

from __future__ import annotations

import math

from ...errors import BackendUnavailable
from ...runtime import Runtime
from ..resp.commands import pack
from ..resp.errors import NoAnswer, refusal
from ..resp.target import Address
from .connection import Connections
from .scripts import PLACE


class NotReplicated(BackendUnavailable):
    """Too few replicas have the grant; it was withdrawn, and asking again would not change that."""

    permanent = True


class Replicas:
    """Waits until that many replicas have a grant."""

    def __init__(self, connections: Connections, number: int, patience: float, runtime: Runtime) -> None:
        self._connections = connections
        self._number = number
        self._patience = patience
        self._now = runtime.now

    async def have(self, key: bytes, claim_id: str, channel: str, address: Address, until: float) -> None:
        """Return when they have it; otherwise it does not count, and the caller withdraws it."""
        left = max(0.0, min(until - self._now(), self._patience)) / 2
        # WAIT waits for the writes of its own connection: write once more there.
        touch = PLACE.in_full((key,), (claim_id, channel, "1"))
        wait = pack(("WAIT", self._number, max(1, math.ceil(left * 1000))))
        try:
            held, copies = await self._connections.ask_all(address, [touch, wait], until)
        except NoAnswer as problem:
            self._connections.forget(address)
            raise BackendUnavailable(f"nobody knows whether replicas have the grant: {problem}") from problem
        if type(held) is not int:
            raise BackendUnavailable(f"the grant was gone before replicas had it: {held}")
        if type(copies) is not int:
            raise refusal(copies, address)
        if copies < self._number:
            raise NotReplicated(f"{copies} of {self._number} replicas have the grant; it was withdrawn (wait_replicas)")
