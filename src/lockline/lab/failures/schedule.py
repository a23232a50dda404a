"""The ends that several schedules share: what two clients do with the register once both may be inside."""

from __future__ import annotations

import time

from ..calm import calm
from ..servers.proxy import Proxy
from ..stage import PlayedClient, Stage

LATE = 0.6
"""Of a ttl: who waits for less was not kept waiting by a failure, but by a busy machine. One who renewed just before it died leaves
two thirds of it at least."""
WHOLE = 0.75
"""The same where the hold that is in the way has just begun."""
AT_REST = 0.2
"""Seconds without a packet after which none is expected."""


def holder(stage: Stage, label: str = "A") -> PlayedClient:
    """A client that holds the lock and has read the register."""
    client = stage.client(label)
    if not client.do("acquire", 5 * stage.ttl):
        raise RuntimeError(f"{label} did not get a free lock")
    client.do("read")
    return client


def come_to_rest(lines: list[Proxy]) -> None:
    """Wait until nothing passes any more: a majority has answered, and the answers of the others may still be on their way."""
    began = since = time.monotonic()
    seen: list[tuple[int, int]] = []
    while (now := time.monotonic()) < min(since + AT_REST, began + 2.0):
        if (passed := [(line.requests, line.answers) for line in lines]) != seen:
            seen, since = passed, now
        time.sleep(0.01)


def gets_it(stage: Stage, client: PlayedClient, wait: float) -> bool:
    """Whether it gets what is nobody's. Who waits for longer than a ttl for what does not expire waits for ever, and need not go on;
    and a machine that is busy with other things gets some more time."""
    began = calm()
    first = min(wait, 1.3 * stage.ttl)
    if client.do("acquire", first):
        return True
    if "no expiry" in stage.servers.evidence(stage.name):
        return False
    if wait > first and client.do("acquire", wait - first):
        return True
    return calm() - began < 0.9 * wait and bool(client.do("acquire", first))


def must_get(stage: Stage, client: PlayedClient, since: float, wait: float | None = None, late: float = LATE) -> bool:
    """The lock is nobody's: how long does it take until somebody gets it?"""
    if gets_it(stage, client, 3.5 * stage.ttl if wait is None else wait):
        took = time.monotonic() - since
        if took > late * stage.ttl:
            stage.late = max(stage.late or 0.0, took)
        return True
    stage.stuck = stage.servers.evidence(stage.name) or f"nobody got it for {time.monotonic() - since:.0f} s"
    return False


def finish(stage: Stage, client: PlayedClient) -> None:
    """Read, write, let go."""
    client.do("read")
    client.do("write")
    client.do("release")


def collide(stage: Stage, first: PlayedClient, second: PlayedClient, *, wait: float, checks: bool = True) -> bool:
    """The first believes to hold; the second asks. Whether both were inside; then both write what they had in mind."""
    began = calm()
    if not second.do("acquire", wait):
        # On a machine that is busy with other things once more, where the hold does not run out by that.
        busy = calm() - began < 0.9 * wait and wait < 0.4 * stage.ttl
        if not busy or not second.do("acquire", wait):
            return False
    second.do("read")
    if not checks or first.do("check"):
        first.do("write")
    second.do("write")
    return True


def in_turn(stage: Stage, first: PlayedClient, second: PlayedClient, since: float, wait: float | None = None) -> None:
    """The second was kept out: so the first writes and lets go, and the second gets its turn."""
    if first.do("check"):
        first.do("write")
    first.do("release")
    if gets_it(stage, second, 3 * stage.ttl if wait is None else wait):
        finish(stage, second)
        stage.facts["waited"] = round(time.monotonic() - since, 2)
    else:
        stage.stuck = stage.servers.evidence(stage.name) or "nobody got it after it was released"


def contest(
    stage: Stage,
    first: PlayedClient,
    second: PlayedClient,
    *,
    wait: float,
    checks: bool = True,
    turn: float | None = None,
) -> None:
    """The first holds, the second asks: both are inside, or one after the other."""
    began = time.monotonic()
    if collide(stage, first, second, wait=wait, checks=checks):
        first.do("release")
        second.do("release")
    else:
        in_turn(stage, first, second, began, turn)
