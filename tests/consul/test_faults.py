"""Many processes at four locks, while the server is killed and started again, and the leader of three killed and frozen.

What must hold whatever happens: one holder at a time, tokens in the order of grants, no stale write let in at the resource,
and work that goes on after.

Each takes longer than 5 s: servers start, they and clients are away for longer than a ttl, and there are elections.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ..calm import calm
from ..etcd.crowd import PatientCrowd
from ..redis.crowd import Crowd
from ..servers.consul import ConsulCluster
from ..servers.process import wait_for
from ..tier import sample

pytestmark = [pytest.mark.server, pytest.mark.slow]

WORKERS = sample(4, 16)
KILLED = sample(1, 2)
NAMES = sample(["a", "b"], ["a", "b", "c", "d"])
TTL = 3.0
GOES_ON = 120.0
"""Seconds after which a crowd that was granted nothing counts as stuck; an election and a ttl take a few."""


def goes_on(crowd: Crowd, since: float) -> None:
    """Wait for a grant that began after that moment."""
    until = calm() + since - time.monotonic() + GOES_ON
    while not any(held.began > since for held in crowd.history()[-50:]):
        assert calm() < until, f"nothing was granted for {GOES_ON} s; {crowd.errors()[-5:]}"
        time.sleep(0.1)


def enough(crowd: Crowd) -> None:
    """Wait until there is enough to judge by."""
    goes_on(crowd, time.monotonic())
    wait_for(lambda: len(crowd.history()) > sample(25, 50), GOES_ON, "enough grants")


def check(crowd: Crowd, frozen: frozenset[int] = frozenset()) -> None:
    """One holder at a time, and no stale write."""
    overlaps = [pair for pair in crowd.overlaps() if not {pair[0].worker, pair[1].worker} & frozen]
    assert not overlaps, overlaps[:3]
    crowd.check_tokens()
    crowd.check_resource()
    stale = [held for held in crowd.history() if held.stale and not held.lost and held.worker not in frozen]
    assert not stale, stale[:3]


def test_the_server_is_killed_under_a_crowd_and_started_again_and_clients_are_killed_and_frozen(
    spare: ConsulCluster, tmp_path: Path
) -> None:
    server = spare.servers[0].server
    assert server is not None
    with PatientCrowd(f"{spare.url}/faults?session_ttl=5", tmp_path, WORKERS, NAMES, ttl=TTL) as crowd:
        crowd.wait_for_grants(1, seconds=GOES_ON)
        for _ in range(2):
            server.kill()
            server.start()
            goes_on(crowd, time.monotonic())
        for worker in crowd._workers[:KILLED]:
            os.kill(worker.pid, signal.SIGKILL)
        os.kill(crowd._workers[KILLED].pid, signal.SIGSTOP)
        moment = time.monotonic()
        goes_on(crowd, moment + TTL)
        time.sleep(max(0.0, moment + 2 * TTL - time.monotonic()))
        os.kill(crowd._workers[KILLED].pid, signal.SIGCONT)
        enough(crowd)
    check(crowd, frozen=frozenset(range(KILLED + 1)))


def test_the_leader_of_three_is_killed_and_the_next_one_frozen_under_a_crowd(tmp_path: Path) -> None:
    cluster = ConsulCluster(tmp_path / "cluster", servers=3).start()
    try:
        with PatientCrowd(f"{cluster.url}/faults?session_ttl=5", tmp_path, sample(3, 16), NAMES, ttl=TTL) as crowd:
            crowd.wait_for_grants(1, seconds=GOES_ON)
            leader = cluster.leader().server
            assert leader is not None
            leader.kill()
            goes_on(crowd, time.monotonic())
            leader.start()
            leader = cluster.leader().server
            assert leader is not None
            leader.freeze()
            try:
                moment = time.monotonic()
                goes_on(crowd, moment + 1.0)
                time.sleep(max(0.0, moment + TTL - time.monotonic()))
            finally:
                leader.thaw()
            crowd.wait_for_grants(1, since=time.monotonic(), seconds=GOES_ON)
            enough(crowd)
        check(crowd)
    finally:
        cluster.stop()
