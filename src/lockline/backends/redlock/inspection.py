"""Questions to a majority: who holds a name and who waits for it, which names are held; and the operator's eviction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from ...core.claim import Claim, Line, Standing
from . import commands, rules
from .answers import nothing, parse_lease, unreached
from .channel import Fanout
from .commands import NodeAnswer, NodeFailure, NodeRequest, Reply
from .scripts import LEASE

_BETWEEN = "\x1f"


def info_of(claim: Claim, asked: float | None = None) -> str:
    """What an entry says about its claim, for people; a lease also when it was asked for. The owner comes last."""
    told = (claim.kind, repr(claim.ttl), repr(claim.since), claim.meta)
    return _BETWEEN.join((*told, claim.owner) if asked is None else (*told, repr(asked), claim.owner))


def _standing(claim_id: str, info: str, token: int, holds: bool, remaining: float) -> Standing:
    kind, ttl, since, meta, owner = info.split(_BETWEEN, 4)
    granted = None
    if holds:
        asked, _, owner = owner.rpartition(_BETWEEN)
        granted = float(asked or since)
    return Standing(
        id=claim_id, owner=owner, kind=kind, token=token, holds=holds, weight=1, capacity=1, ttl=float(ttl),
        remaining=remaining, enqueued_at=float(since), granted_at=granted,
        meta=json.loads(meta) if meta else None,
    )  # fmt: skip


class RedlockHolder(NamedTuple):
    """The holder of a name, as a majority of nodes has it, or may: those that did not answer could make it one."""

    attempt: str
    number: int
    certain: bool
    """Whether a majority has it under this number: only then it is known to be the token."""
    info: str
    remaining: float

    @property
    def ttl(self) -> float:
        """The ttl that its lease was taken with."""
        return float(self.info.split(_BETWEEN, 2)[1])


class SeenLine(NamedTuple):
    """Who holds a name, and who waits for it: claim, info and for how long it is shown."""

    holder: RedlockHolder | None
    waiters: dict[str, tuple[str, float]]

    def line(self, name: str) -> Line:
        """The same for everybody."""
        held = self.holder
        claims = []
        if held is not None:
            claims.append(_standing(commands.claim_of(held.attempt), held.info, held.number, True, held.remaining))
        waiting = [_standing(claim, info, 0, False, left) for claim, (info, left) in self.waiters.items()]
        return Line(name, (*claims, *sorted(waiting, key=lambda one: one.enqueued_at)))


async def _ask(
    channel: Fanout, request: NodeRequest, until: float, enough: Callable[[NodeAnswer], bool]
) -> dict[int, Reply]:
    """What the nodes said, until that is enough, or all have answered, or the time of one node is over."""
    replies: dict[int, Reply] = {}
    talk = await channel.talk(nothing, until)
    try:
        until = min(until, channel.now() + channel.patience(float("inf")))
        talk.send_all(request)
        while len(replies) < len(channel.labels):
            answer = await talk.next(until)
            if answer is None:
                break
            node, _, reply = answer
            replies[node] = reply
            if enough(answer):
                break
    finally:
        talk.part()
    return replies


async def look(channel: Fanout, name: str, until: float) -> SeenLine:
    """Who holds the name at a majority of nodes, or may where not all have answered, and who waits for it."""
    nodes = len(channel.labels)
    needed = rules.majority(nodes)
    leases: dict[int, tuple[str, int, str, int]] = {}
    waiters: dict[str, tuple[str, float]] = {}
    asked = answered = 0

    def take(answer: NodeAnswer) -> bool:
        nonlocal asked, answered
        asked += 1
        node, _, reply = answer
        if not isinstance(reply, NodeFailure) and reply[0] == b"yes":
            answered += 1
            if reply[1]:
                leases[node] = (*parse_lease(reply[1]), int(reply[2]))
            for claim, shown in zip(reply[4][::2], reply[4][1::2], strict=True):
                ends, _, info = shown.decode().partition(" ")
                if int(ends) > int(reply[3]):
                    waiters[claim.decode()] = (info, (int(ends) - int(reply[3])) / 1000)
        # Decided as soon as the rest cannot change it; and the token is the number that a majority has, not one that a node
        # beside them gave.
        most = max(Counter(lease[0] for lease in leases.values()).values(), default=0)
        equal = max(Counter(lease[:2] for lease in leases.values()).values(), default=0)
        return equal >= needed or (answered >= needed and most + nodes - asked < needed)

    replies = await _ask(channel, commands.look(name), until, take)
    if answered < needed:
        raise unreached(channel, f"too few servers could be asked about {name!r}", replies)
    holder, count = Counter(lease[0] for lease in leases.values()).most_common(1)[0] if leases else ("", 0)
    if count + nodes - answered < needed:
        return SeenLine(None, waiters)
    mine = [lease for lease in leases.values() if lease[0] == holder]
    times = sorted((lease[3] for lease in mine), reverse=True)
    number, agreed = Counter(lease[1] for lease in mine).most_common(1)[0]
    waiters.pop(commands.claim_of(holder), None)
    return SeenLine(
        RedlockHolder(holder, number, agreed >= needed, mine[0][2], max(0, times[:needed][-1]) / 1000), waiters
    )


async def show(channel: Fanout, name: str, claim: str, milliseconds: int, info: str, until: float) -> None:
    """Let people see that somebody waits: at a majority, so that whoever asks a majority sees it."""
    await _tell_majority(channel, commands.show(name, claim, milliseconds, info), until)


async def hide(channel: Fanout, name: str, claim: str, until: float) -> None:
    """The wait is over; by when this returns, a majority knows (or the entry's ttl has to end it)."""
    await _tell_majority(channel, commands.hide(name, claim), until)


async def _tell_majority(channel: Fanout, request: NodeRequest, until: float) -> None:
    told = 0

    def enough(answer: NodeAnswer) -> bool:
        nonlocal told
        _, _, reply = answer
        told += not isinstance(reply, NodeFailure)
        return told >= rules.majority(len(channel.labels))

    await _ask(channel, request, until, enough)


async def evict(
    channel: Fanout, name: str, holder: RedlockHolder, milliseconds: int, until: float, tries: list[None]
) -> bool:
    """End this holder's lease at every node, with a tombstone, so that it cannot come back by a late message.

    `tries` is the same list for each try. Nodes that say no in the second may have done it in the first, whose answers did not come.
    """
    tries.append(None)
    replies = await _ask(channel, commands.evict(name, holder.attempt, milliseconds), until, lambda answer: False)
    said = [reply[0] for reply in replies.values() if not isinstance(reply, NodeFailure)]
    if said.count(b"yes") + said.count(b"no") < rules.majority(len(channel.labels)):
        raise unreached(channel, f"too few servers could be told to evict {name!r}", replies)
    return b"yes" in said or len(tries) > 1


async def names(channel: Fanout, prefix: str, until: float) -> list[str]:
    """The names that a majority of nodes have a lease on, or may have."""
    nodes = len(channel.labels)
    needed = rules.majority(nodes)
    found: Counter[bytes] = Counter()
    replies: dict[int, Reply] = {}
    talk = await channel.talk(nothing, until)
    try:
        talk.send_all(commands.scan("0", prefix))
        seen: list[set[bytes]] = [set() for _ in channel.labels]
        finished = 0
        while len(replies) < len(channel.labels):
            answer = await talk.next(min(until, channel.now() + channel.patience(float("inf"))))
            if answer is None:
                break
            node, _, reply = answer
            if isinstance(reply, NodeFailure):
                replies[node] = reply
                continue
            seen[node].update(reply[1])
            if reply[0] != b"0":
                talk.send(node, commands.scan(reply[0].decode(), prefix))
                continue
            replies[node] = [b"yes"]
            finished += 1
            found.update(seen[node])
    finally:
        talk.part()
    if finished < needed:
        raise unreached(channel, "too few servers could be asked for their names", replies)
    return sorted(key.decode()[len(LEASE) :] for key, count in found.items() if count + nodes - finished >= needed)
