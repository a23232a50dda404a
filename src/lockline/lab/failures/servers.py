"""Servers that forget, fail over, or are cut off."""

from __future__ import annotations

import time

from ..locks.face import PublishedLock
from ..stage import PlayedClient, Stage
from .clocks import on_three_of_five
from .face import Failure
from .messages import has_a_line
from .schedule import collide, contest, finish, holder, must_get


def restart(stage: Stage) -> None:
    b, a = stage.client("B"), holder(stage)
    a.do("check")
    for label in stage.servers.labels:
        stage.trace.add(label, "down")
    stage.servers.restart()
    for label in stage.servers.labels:
        stage.trace.add(label, "up")
    after(stage, a, b, wait=0.25 * stage.ttl)


def after(stage: Stage, a: PlayedClient, b: PlayedClient, wait: float) -> None:
    """Is anybody let in beside the holder? It looked at its lock just before, and a later look is not more of a proof."""
    contest(stage, a, b, wait=wait, checks=False, turn=max(9.0, 0.75 * stage.ttl))


def has_a_server(lock: type[PublishedLock]) -> str:
    return "there is no server that could restart" if lock.family == "local" else ""


RESTART = Failure(
    "server-restarts-empty", "server restarts without its data", "A holds; the server is killed and starts again with what it has on disk; B asks.", restart,
    {
        "lost update": "The lock was in the server's memory, and that is gone; the holder knows nothing of it. The next one came in, and both wrote.",
        "two holders": "The lock was in the server's memory, and that is gone. The next one came in beside the holder.",
        "safe": "The server has the lock on disk, or whoever was late was refused by the fence.",
        "late": "After the restart nobody got the lock for {late}.",
        "stuck for ever": "After the restart nobody gets the lock: {stuck}.",
    },
    "A store that writes before it answers; tokens that go on rising after a loss, and a fence.", "docs/guarantees.md",
    wants="plain", disturbs=True, applies=has_a_server, ttl=12.0,
)  # fmt: skip


def failover(stage: Stage) -> None:
    stage.servers.isolate()
    b, a = stage.client("B"), holder(stage)
    a.do("check")
    primary = stage.servers.primary()
    stage.trace.add(stage.servers.labels[primary], "down", "before its replica heard of the lock")
    address = stage.servers.fail_over(primary)
    if address is not None:
        stage.lead_all_to(address)
        stage.trace.add(stage.servers.labels[-1], "up", "takes over")
    after(stage, a, b, wait=0.3 * stage.ttl)


def has_a_replica(lock: type[PublishedLock]) -> str:
    return {
        "redlock": "its servers know nothing of each other: there is nothing to fail over to",
        "local": "there is no server",
        "mysql": "the laboratory runs one MariaDB; a replica of it would behave as PostgreSQL's",
    }.get(lock.family, "")


FAILOVER = Failure(
    "failover", "failover before replication", "A is granted the lock; the primary dies before its replica heard of it; B asks the new one.", failover,
    {
        "lost update": "The primary said yes and died before its replica had heard of it. The new primary has never seen the lock, and both wrote.",
        "two holders": "The primary said yes and died before its replica had heard of it: the new one let a second in.",
        "safe": "The yes came only when a majority of the servers had it, or the fence refused the one that was late.",
        "late": "The new leader let the next one in {late} late.",
    },
    "A store with consensus; or, where a rare double is bearable, one server and a fence.", "docs/backends/redis.md",
    wants="replica", disturbs=True, applies=has_a_replica, ttl=8.0,
)  # fmt: skip


def one_of_five(stage: Stage) -> None:
    a, b, third = on_three_of_five(stage)
    stage.trace.add(stage.servers.labels[third], "down")
    stage.servers.restart([third])
    stage.trace.add(stage.servers.labels[third], "up", "empty")
    if collide(stage, a, b, wait=0.3 * stage.ttl, checks=False):
        b.do("release")
    a.do("release")


def five_only(lock: type[PublishedLock]) -> str:
    return "" if lock.family == "redlock" else "it does not use five servers"


ONE_OF_FIVE = Failure(
    "one-of-five-restarts-empty", "one of five restarts empty", "A holds at three of five servers; one of these restarts without its memory; B asks.", one_of_five,
    {
        "lost update": "One of the three servers that had the lock forgot it, and with the two that never had it there was a second majority. Both wrote.",
        "two holders": "One of the three servers that had the lock forgot it, and with the two others there was a second majority.",
        "safe": "A server that comes back without its memory has no vote until it is let in again.",
    },
    "A server that forgot stays out for the longest ttl (antirez' delayed restart), or until it is told what was granted.", "docs/backends/redlock.md",
    applies=five_only, ttl=8.0,
)  # fmt: skip


def minority(stage: Stage) -> None:
    processes = stage.servers.processes()
    chosen = stage.servers.follower() if hasattr(stage.servers, "follower") else 0
    processes[chosen].freeze()
    stage.trace.add(stage.servers.labels[chosen], "down", "cut off from everybody")
    try:
        a, b = stage.client("A"), stage.client("B")
        if must_get(stage, a, time.monotonic(), wait=6 * stage.ttl):
            finish(stage, a)
            if must_get(stage, b, time.monotonic(), wait=6 * stage.ttl):
                finish(stage, b)
    finally:
        processes[chosen].thaw()
    # The first request may find the dead one first; a few seconds of that are not a failure of the lock.
    if stage.late is not None and stage.late < 4 * stage.ttl:
        stage.facts["first"] = round(stage.late, 2)
        stage.late = None


def several(lock: type[PublishedLock]) -> str:
    return "" if lock.family in ("redlock", "zookeeper", "etcd", "consul") else "one server has no minority"


MINORITY = Failure(
    "minority-partitioned", "partition of a minority", "One server of three or five is cut off; A and B want to go on.", minority,
    {
        "safe": "A majority is enough: the lock was granted, released and granted again without the server that was cut off.",
        "stuck for ever": "Nobody gets the lock without the server that was cut off: {stuck}.",
        "late": "The lock was granted, {late} late.",
    },
    "Nothing to cure: this is what several servers are for.", "docs/backends/redlock.md", wants="three", disturbs=True, applies=several,
)  # fmt: skip


def majority(stage: Stage) -> None:
    b, a = stage.client("B"), holder(stage)
    for line in a.lines[: len(a.lines) // 2 + 1]:
        line.black_hole()
    stage.trace.add("A", "note", "cut off from a majority of the servers")
    began = time.monotonic()
    if collide(stage, a, b, wait=2.6 * stage.ttl):
        b.do("release")
        return
    for line in a.lines:
        line.heal()
    stage.trace.add("A", "note", "the line is whole again")
    if a.do("check"):
        a.do("write")
    a.do("release")
    if must_get(stage, b, began):
        finish(stage, b)


MAJORITY = Failure(
    "majority-partitioned", "partition of a majority", "A holds and is cut off from the servers (from most of them); B, who is not, asks.", majority,
    {
        "lost update": "The holder was cut off, its hold ran out at the server, and nothing on its own side told it. It went on and wrote beside the next one.",
        "two holders": "The holder was cut off, its hold ran out at the server, and nothing on its own side told it.",
        "safe": "The holder knew from its own clock that its time was over, and did not write; the next one came in.",
        "late": "Nothing ends this hold by time: the next one waited until the line was whole again, {late}.",
        "stuck for ever": "Nobody gets the lock any more: {stuck}.",
    },
    "A deadline that the holder keeps by its own monotonic clock, counted from before the request.", "docs/guarantees.md", applies=has_a_line,
)  # fmt: skip

ALL = [RESTART, FAILOVER, ONE_OF_FIVE, MINORITY, MAJORITY]
