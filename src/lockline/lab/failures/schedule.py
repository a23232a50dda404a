"""The ends that several schedules share: what two clients do with the register once both may be inside."""

from __future__ import annotations

import time

from ..stage import Client, Stage

LATE = 0.6
"""Of a ttl: who waits for less was not kept waiting by a failure, but by a busy machine."""


def holder(stage: Stage, label: str = "A") -> Client:
    """A client that holds the lock and has read the register."""
    client = stage.client(label)
    if not client.do("acquire", 5 * stage.ttl):
        raise RuntimeError(f"{label} did not get a free lock")
    client.do("read")
    return client


def must_get(stage: Stage, client: Client, since: float, wait: float | None = None) -> bool:
    """The lock is nobody's: how long does it take until somebody gets it?"""
    wait = 3.5 * stage.ttl if wait is None else wait
    if client.do("acquire", wait):
        took = time.monotonic() - since
        if took > LATE * stage.ttl:
            stage.late = max(stage.late or 0.0, took)
        return True
    stage.stuck = stage.servers.evidence(stage.name) or f"nobody got it for {time.monotonic() - since:.0f} s"
    return False


def finish(stage: Stage, client: Client) -> None:
    """Read, write, let go."""
    client.do("read")
    client.do("write")
    client.do("release")


def collide(stage: Stage, first: Client, second: Client, *, wait: float, checks: bool = True) -> bool:
    """The first believes to hold; the second asks. Whether both were inside; then both write what they had in mind."""
    if not second.do("acquire", wait):
        return False
    second.do("read")
    if not checks or first.do("check"):
        first.do("write")
    second.do("write")
    return True


def in_turn(stage: Stage, first: Client, second: Client, since: float) -> None:
    """The second was kept out: so the first writes and lets go, and the second gets its turn."""
    if first.do("check"):
        first.do("write")
    first.do("release")
    if second.do("acquire", 3 * stage.ttl):
        finish(stage, second)
        stage.facts["waited"] = round(time.monotonic() - since, 2)
    else:
        stage.stuck = stage.servers.evidence(stage.name) or "nobody got it after it was released"
