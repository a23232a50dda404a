"""Redis in every shape: one server that keeps its data, one that does not, sentinels, a cluster, five of Redlock's."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockline.backends.redlock import cluster as operator
from lockline.backends.redlock.channel import TROUBLE
from lockline.backends.redlock.target import understand
from lockline.errors import LocklineError
from lockline.lab.servers.clock import Clock, needed_library
from lockline.lab.servers.process import NotInstalled
from tests.redlock.servers import Servers
from tests.servers.process import wait_for
from tests.servers.redis import RedisCluster, RedisServer, SentinelTrio

from .ground import SHARING, Deed, Ground, a_small_disk, frozen, killed, restarted, slow_disk


@contextmanager
def durable(folder: Path) -> Iterator[Ground]:
    """One server that writes everything down before it answers, on a small and sometimes slow disk."""
    with a_small_disk(folder / "disk", 64) as fill:
        server = RedisServer(folder / "disk" / "data", keeps_data=True)
        deeds: dict[str, Deed] = {
            "kill": killed([server]),
            "freeze": frozen([server]),
            "restart": restarted([server]),
        }
        slow = slow_disk(folder / "slow")
        if slow is not None:
            server.env, deeds["slow disk"] = slow
        if fill is not None:
            fills = fill

            def full(dice: random.Random) -> None:
                fills(dice)
                if not server.running:  # it ends rather than answer what it could not write
                    server.start()

            deeds["disk full"] = full
        server.start()
        try:
            yield Ground("redis, appendfsync always", server.url, deeds)
        finally:
            server.stop()


@contextmanager
def forgetful(folder: Path) -> Iterator[Ground]:
    """One server that keeps nothing, and whose clock is set."""
    server = RedisServer(folder / "redis")
    deeds: dict[str, Deed] = {"restart without data": killed([server]), "freeze": frozen([server])}
    with contextlib.suppress(NotInstalled):
        clock, ahead = Clock(needed_library(folder / "clock"), folder / "clock" / "offset"), [0]
        server.env = clock.env

        def step(dice: random.Random) -> None:
            # Forward only: what a clock that goes back does to tokens is on the page of the backend.
            ahead[0] += dice.randrange(1, 10)
            clock.step(ahead[0])

        deeds["clock step"] = step
    server.start()
    try:
        yield Ground("redis without persistence", server.url, deeds, SHARING, "docs/backends/redis.md")
    finally:
        server.stop()


@contextmanager
def sentinel(folder: Path) -> Iterator[Ground]:
    """A primary with replicas and sentinels."""
    trio = SentinelTrio(folder)

    def failover(dice: random.Random) -> None:
        primary = trio.who_is_primary()
        if primary is None:
            return
        primary.kill()
        wait_for(lambda: trio.who_is_primary() is not None, 30, "a new primary")
        # The sentinels make it a replica of the new one, some eight seconds later: until then there are two primaries.
        primary.start()

    def planned(dice: random.Random) -> None:
        with contextlib.suppress(Exception):  # it says no while another one is under way
            trio.sentinels[0].command("SENTINEL", "FAILOVER", trio.SERVICE)
        time.sleep(2.0)

    trio.start()
    try:
        deeds = {"failover": failover, "planned failover": planned, "freeze": frozen(trio.nodes)}
        yield Ground(
            "redis with sentinels",
            trio.url,
            deeds,
            SHARING,
            "docs/backends/redis.md",
            well=trio.settled,
            stays_well=1.5,
        )
    finally:
        trio.stop()


@contextmanager
def cluster(folder: Path) -> Iterator[Ground]:
    """Three shards with a replica each."""
    shards = RedisCluster(folder)

    def failover(dice: random.Random) -> None:
        primary = dice.choice(shards.primaries())
        primary.kill()
        wait_for(lambda: len(shards.primaries()) >= shards.shards, 30, "a new primary")
        primary.start()
        wait_for(lambda: primary.command("ROLE")[0] == "slave", 30, "its return as a replica")

    def planned(dice: random.Random) -> None:
        primary = dice.choice(shards.primaries())
        with contextlib.suppress(Exception):  # it says no while the replica is not up to date
            shards.replica_of(primary).command("CLUSTER", "FAILOVER")
        time.sleep(1.0)

    shards.start()
    try:
        deeds = {"failover": failover, "planned failover": planned, "freeze": frozen(shards.nodes, 0.2, 0.8)}
        yield Ground(
            "redis cluster", shards.url, deeds, SHARING, "docs/backends/redis.md", well=shards.settled, stays_well=1.5
        )
    finally:
        shards.stop()


@contextmanager
def redlock(folder: Path) -> Iterator[Ground]:
    """Five servers, of which one at a time loses its memory, whole or in part, and is let in again."""
    servers = Servers(folder, 5, "--appendonly", "yes", "--appendfsync", "everysec").start().set_up(longest=2.0)
    nodes = understand(servers.url, "blocking").nodes

    def serve(at: int) -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                (now,) = operator.status([nodes[at]])
                if now.state == "serving":
                    return
                if now.state in ("empty", "forgot"):
                    operator.replace(nodes, nodes[at].label).act()
            except (LocklineError, *TROUBLE):
                pass
            time.sleep(0.1)

    def lose(kind: str) -> Deed:
        def deed(dice: random.Random) -> None:
            at = dice.randrange(5)
            server = servers[at]
            data, copy = server.folder / "appendonlydir", server.folder / "copy"
            if kind == "roll back":
                shutil.rmtree(copy, ignore_errors=True)
                with contextlib.suppress(OSError, shutil.Error):
                    shutil.copytree(data, copy)
                time.sleep(dice.uniform(0.1, 1.0))
            server.kill()
            if kind != "kill":
                shutil.rmtree(data, ignore_errors=True)
            if kind == "roll back" and copy.exists():
                shutil.copytree(copy, data)
            server.start()
            serve(at)

        return deed

    try:
        yield Ground(
            "redlock of five", servers.url,
            {"kill": lose("kill"), "wipe and replace": lose("wipe"), "roll back the log": lose("roll back"), "freeze": frozen(servers.nodes)},
        )  # fmt: skip
    finally:
        servers.stop()
