"""Clocks that step: a client's, a server's."""

from __future__ import annotations

from ..locks.face import PublishedLock
from ..stage import PlayedClient, Stage
from .face import Failure
from .schedule import collide, holder

HOUR = 3600


def client_clock(stage: Stage) -> None:
    b, a = stage.client("B"), holder(stage)
    b.do("step_clock", HOUR)
    both = collide(stage, a, b, wait=0.15 * stage.ttl)
    a.do("release")
    if both or not stage.lock.knows:
        return
    # And the other way: the clock of one that asks goes back, so that it trusts its hold for too long.
    b.do("step_clock", 0)
    if stage.lock.clock_at:
        a.stop_at(stage.lock.clock_at)
        a.begin("acquire", 5.0)
        a.reaches(stage.lock.clock_at)
        a.step_clock_there(-HOUR)
        a.go_on()
        got = a.finish()
    else:
        got = a.do("acquire", 5.0)
        a.do("step_clock", -HOUR)
    if got:
        a.do("read")
        if collide(stage, a, b, wait=1.5 * stage.ttl):
            b.do("release")
        a.do("release")


CLIENT_CLOCK = Failure(
    "client-clock", "client clock steps", "B's clock is an hour ahead; then A's goes an hour back in the middle of its acquire.", client_clock,
    {
        "lost update": "A client trusted a time of day, and the day's time stepped. It took over, or went on with, a lock that another held, and one update is gone.",
        "two holders": "A client trusted a time of day, and the day's time stepped: two were inside.",
        "safe": "No client's time of day is part of this lock: a step changes nothing.",
    },
    "Count lengths of time on a clock that neither steps nor stops, and compare times only where they were made.",
    "docs/guarantees.md", ttl=4.0,
)  # fmt: skip


def server_clock(stage: Stage) -> None:
    if len(stage.servers.addresses) >= 5:
        a, b, third = on_three_of_five(stage)
        stage.servers.clocks[third].step(HOUR)
    else:
        b, a = stage.client("B"), holder(stage)
        for clock in stage.servers.clocks:
            clock.step(HOUR)
        third = 0
    stage.trace.add(stage.servers.labels[third], "clock", f"+{HOUR} s")
    if collide(stage, a, b, wait=0.3 * stage.ttl, checks=False):
        b.do("release")
    a.do("release")


def on_three_of_five(stage: Stage) -> tuple[PlayedClient, PlayedClient, int]:
    """A holds at the first three servers only; which one of them will forget."""
    b, a = stage.client("B"), stage.client("A")
    for line in a.lines[3:]:
        line.black_hole()
    if not a.do("acquire", 5 * stage.ttl):
        raise RuntimeError("A did not get a majority of three")
    a.do("read")
    return a, b, 2


def has_a_wall_clock(lock: type[PublishedLock]) -> str:
    if lock.family in ("etcd", "consul"):
        return "its leases count on a monotonic clock, and a Go program asks the kernel itself: no step can be played on it here"
    if lock.family == "local":
        return "there is no server; time is the machine's boot clock"
    return ""


SERVER_CLOCK = Failure(
    "server-clock", "server clock steps", "A holds; the server's clock jumps an hour ahead (one of five, where there are five); B asks.", server_clock,
    {
        "lost update": "The server's time of day jumped, so the key's expiry came at once. The holder knew nothing of it, and both wrote.",
        "two holders": "The server's time of day jumped, so the key's expiry came at once, and a second came in.",
        "safe": "The step let nobody in, or the fence refused the one that was late.",
    },
    "Servers whose clocks are slewed and not stepped; for data a fence.", "docs/backends/redis.md", wants="clock", disturbs=True,
    applies=has_a_wall_clock, ttl=8.0,
)  # fmt: skip

ALL = [CLIENT_CLOCK, SERVER_CLOCK]
