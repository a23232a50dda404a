"""Sixteen processes at four locks, while the server is killed and started again, and the leader of three killed and frozen.

What must hold whatever happens: one holder at a time, tokens in the order of grants, no stale write let in at the resource,
and work that goes on soon after.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ..calm import calm
from ..redis.crowd import Crowd
from ..servers.consul import ConsulCluster

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(170)]

WORKERS = 16
NAMES = ["a", "b", "c", "d"]
TTL = 3.0
ELECTION = 5.0
"""An election with the retries that a slow machine may need."""
GOES_ON = ELECTION + TTL + 2.0 + 5.0
"""After a fault of any kind somebody is granted something within this; the last part is for the machine."""


def goes_on(crowd: Crowd, since: float) -> None:
    """Wait for a grant that began after that moment."""
    until = calm() + since - time.monotonic() + GOES_ON
    while not any(held.began > since for held in crowd.history()[-50:]):
        assert calm() < until, f"nothing was granted for {GOES_ON} s; {crowd.errors()[-5:]}"
        time.sleep(0.1)


def check(crowd: Crowd, frozen: frozenset[int] = frozenset()) -> None:
    """One holder at a time, and no stale write."""
    overlaps = [pair for pair in crowd.overlaps() if not {pair[0].worker, pair[1].worker} & frozen]
    assert not overlaps, overlaps[:3]
    crowd.check_tokens()
    crowd.check_resource()
    stale = [held for held in crowd.history() if held.stale and not held.lost and held.worker not in frozen]
    assert not stale, stale[:3]
    assert len(crowd.history()) > 50


def test_the_server_is_killed_under_a_crowd_and_started_again_and_clients_are_killed_and_frozen(tmp_path: Path) -> None:
    cluster = ConsulCluster(tmp_path / "cluster").start()
    server = cluster.servers[0].server
    assert server is not None
    try:
        with Crowd(f"{cluster.url}/faults?session_ttl=5", tmp_path, WORKERS, NAMES, ttl=TTL) as crowd:
            crowd.wait_for_grants(1)
            for _ in range(2):
                server.kill()
                server.start()
                goes_on(crowd, time.monotonic())
            for worker in crowd._workers[:2]:
                os.kill(worker.pid, signal.SIGKILL)
            os.kill(crowd._workers[2].pid, signal.SIGSTOP)
            moment = time.monotonic()
            goes_on(crowd, moment + TTL)
            time.sleep(max(0.0, moment + 2 * TTL - time.monotonic()))
            os.kill(crowd._workers[2].pid, signal.SIGCONT)
            goes_on(crowd, time.monotonic())
        check(crowd, frozen=frozenset({0, 1, 2}))
    finally:
        cluster.stop()


def test_the_leader_of_three_is_killed_and_the_next_one_frozen_under_a_crowd(tmp_path: Path) -> None:
    cluster = ConsulCluster(tmp_path / "cluster", servers=3).start()
    try:
        with Crowd(f"{cluster.url}/faults?session_ttl=5", tmp_path, WORKERS, NAMES, ttl=TTL) as crowd:
            crowd.wait_for_grants(1, seconds=40)
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
            crowd.wait_for_grants(1, since=time.monotonic(), seconds=40)
        check(crowd)
    finally:
        cluster.stop()
