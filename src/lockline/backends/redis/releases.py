"""Many claims leave at once: in few trips, where what is wrong with one line concerns its own claim alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ...errors import BackendUnavailable
from ..resp.commands import ServerError
from ..resp.errors import NoAnswer, Refused, unavailable
from ..resp.target import Address
from .channel import Channel
from .scripts import LEAVE

CALLS_PER_TRIP: Final = 500


class Departure(NamedTuple):
    """One claim that leaves."""

    key: bytes
    request: bytes
    args: tuple[str, str]


async def leave_together(
    requests: Channel, departures: Sequence[Departure], until: float
) -> list[bool | BackendUnavailable]:
    """For each whether it was there, or the refusal that its own line met; raises where a server gave no answer."""
    outcomes: list[bool | BackendUnavailable] = [False] * len(departures)
    if departures and requests.topology.known(departures[0].key) is None:
        try:
            await requests.topology.find(departures[0].key, until)
        except NoAnswer as problem:
            raise unavailable(problem, unsent=True) from problem
    by_server: dict[Address | None, list[int]] = {}
    for at, departure in enumerate(departures):
        by_server.setdefault(requests.topology.known(departure.key), []).append(at)
    silences: list[BackendUnavailable] = []
    for number, (address, places) in enumerate(by_server.items()):
        now = requests.now()
        share = now + (until - now) / (len(by_server) - number)
        try:
            await _leave_at(requests, address, departures, places, outcomes, share)
        except BackendUnavailable as silence:
            silences.append(silence)
    if silences:
        silences[0].unsent = len(silences) == len(by_server) and all(silence.unsent for silence in silences)
        raise silences[0]
    return outcomes


async def _leave_at(
    requests: Channel,
    address: Address | None,
    departures: Sequence[Departure],
    places: Sequence[int],
    outcomes: list[bool | BackendUnavailable],
    until: float,
) -> None:
    """Those whose lines are on one server."""
    # By itself: it brings in order what can be (a script to load, a primary to look up), and the others find it so.
    outcomes[places[0]] = await _leave(requests, departures[places[0]], until)
    for start in range(1, len(places), CALLS_PER_TRIP):
        trip = places[start : start + CALLS_PER_TRIP]
        replies: Sequence[Any] = [None] * len(trip)
        if address is not None:
            try:
                replies = await requests.port.ask_all(address, [departures[at].request for at in trip], until)
            except NoAnswer as problem:
                raise unavailable(problem) from problem
        for at, reply in zip(trip, replies, strict=True):
            if type(reply) is int:
                outcomes[at] = reply == 1
            else:
                outcomes[at] = await _leave(requests, departures[at], until, address, reply)


async def _leave(
    requests: Channel, departure: Departure, until: float, address: Address | None = None, problem: Any = None
) -> bool | BackendUnavailable:
    """One claim alone, through all that passes by itself; a refusal concerns its own line."""
    unanswered: list[Exception] = []
    keys, args = (departure.key,), departure.args
    try:
        if isinstance(problem, ServerError):
            reply = await requests.insist(LEAVE, keys, args, until, unanswered, address, problem, insists=False)
        else:
            reply = await requests.run(LEAVE, keys, args, until, unanswered, insists=False)
    except Refused as refused:
        return refused
    return bool(reply) or bool(unanswered)
