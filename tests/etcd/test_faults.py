"""A cluster of three under load from sixteen processes, while its members and its clients are killed, frozen and cut off.

What must hold whatever happens: one holder at a time, tokens in the order of grants, no stale write let in at the resource,
and work that goes on within an election and a ttl.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

from lockline.backends.etcd.doctor import revokes_living_leases

from ..calm import calm
from ..redis.crowd import ROOT, Crowd
from ..servers.etcd import EtcdCluster
from ..servers.process import ServerProcess
from ..servers.proxy import Proxy
from .namespaces import Network

pytestmark = [pytest.mark.server, pytest.mark.slow]

WORKERS = 16
NAMES = ["a", "b", "c", "d"]
TTL = 3.0
ELECTION = 3.0
"""An election with the retries that a slow machine may need."""
GOES_ON = ELECTION + TTL * 1.1 + 0.5 + 5.0
"""After a fault of any kind somebody is granted something within this; the last part is for the machine."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path / "cluster", members=3).start()
    yield cluster
    cluster.stop()


def process(cluster: EtcdCluster, number: int) -> ServerProcess:
    found = cluster.members[number].server
    assert found is not None
    return found


def goes_on(crowd: Crowd, since: float) -> None:
    """Wait for a grant that began after that moment."""
    until = calm() + since - time.monotonic() + GOES_ON
    while not any(held.began > since for held in crowd.history()[-50:]):
        assert calm() < until, f"nothing was granted for {GOES_ON} s; {crowd.errors()[-5:]}"
        time.sleep(0.1)


def check(crowd: Crowd, frozen: Set[int] = frozenset(), thawed: float | None = None) -> None:
    """One holder at a time, and no stale write.

    `thawed` is when a deposed leader of an etcd went on that then may end leases before their time: a holder who lost its lease
    in the seconds after that may have had company. Its token is refused at the resource all the same.
    """
    overlaps = [
        (first, second)
        for first, second in crowd.overlaps()
        if not {first.worker, second.worker} & frozen
        and not (thawed is not None and first.lost and thawed < second.began < thawed + 3.0)
    ]
    assert not overlaps, overlaps[:3]
    crowd.check_tokens()
    crowd.check_resource()
    # Nobody but a frozen one ever stood at the resource with an old token.
    stale = [held for held in crowd.history() if held.stale and not held.lost and held.worker not in frozen]
    assert not stale, stale[:3]
    assert len(crowd.history()) > 100


def test_members_are_killed_and_restarted_in_turn_and_the_leader_is_frozen(
    cluster: EtcdCluster, tmp_path: Path
) -> None:
    with Crowd(f"{cluster.url}/faults", tmp_path, WORKERS, NAMES, ttl=TTL) as crowd:
        crowd.wait_for_grants(1)
        for number in range(3):
            process(cluster, number).kill()
            goes_on(crowd, time.monotonic())
            process(cluster, number).start()
        leader = cluster.leader()
        assert leader.server is not None
        leader.server.kill()
        goes_on(crowd, time.monotonic())
        leader.server.start()
        leader = cluster.leader()
        assert leader.server is not None
        leader.server.freeze()
        try:
            # Long enough for another leader, and for whoever was with the frozen one to lose a lease.
            moment = time.monotonic()
            goes_on(crowd, moment + 1.0)
            time.sleep(max(0.0, moment + TTL - time.monotonic()))
        finally:
            thawed = time.monotonic()
            leader.server.thaw()
        crowd.wait_for_grants(1, since=time.monotonic(), seconds=40)
    check(crowd, thawed=thawed if revokes_living_leases(leader.version()) else None)


def test_one_client_is_cut_off_and_another_is_frozen(cluster: EtcdCluster, tmp_path: Path) -> None:
    proxies = [Proxy(("127.0.0.1", member.port)) for member in cluster.members]
    cut_off = f"etcd://{','.join(f'127.0.0.1:{proxy.port}' for proxy in proxies)}/faults"
    try:
        with Crowd(f"{cluster.url}/faults", tmp_path, WORKERS - 1, NAMES, ttl=TTL) as crowd:
            # The lone one works at the same resource, and has a history of its own.
            lone = Crowd.__new__(Crowd)
            lone.folder, lone.names = tmp_path, NAMES
            lone._workers = [*crowd._workers, *_start_one(cut_off, tmp_path, WORKERS - 1)]
            try:
                lone.wait_for_grants(1)
                for proxy in proxies:
                    proxy.black_hole()
                goes_on(crowd, time.monotonic() + TTL)
                for proxy in proxies:
                    proxy.heal()
                os.kill(crowd._workers[0].pid, signal.SIGSTOP)
                moment = time.monotonic()
                goes_on(crowd, moment + TTL)
                time.sleep(max(0.0, moment + 2 * TTL - time.monotonic()))
                os.kill(crowd._workers[0].pid, signal.SIGCONT)
                lone.wait_for_grants(1, since=time.monotonic(), seconds=40)
            finally:
                lone.stop()
        check(lone, frozen={0})
    finally:
        for proxy in proxies:
            proxy.close()


def test_the_leader_is_cut_off_from_the_others_and_then_from_everybody(tmp_path: Path) -> None:
    """First the worst of all: it still talks to its clients, and takes itself for the leader."""
    with Network() as network:
        cluster = EtcdCluster(tmp_path / "cluster", members=3, homes=network.homes).start()
        try:
            with Crowd(f"{cluster.url}/faults", tmp_path, WORKERS, NAMES, ttl=TTL) as crowd:
                crowd.wait_for_grants(1)
                number = cluster.members.index(cluster.leader())
                network.cut_from_peers(number)
                moment = time.monotonic()
                goes_on(crowd, moment + 2.0)
                time.sleep(max(0.0, moment + 2 * TTL - time.monotonic()))
                network.heal(number)
                crowd.wait_for_grants(1, since=time.monotonic(), seconds=40)
                number = cluster.members.index(cluster.leader())
                network.cut_off(number)
                goes_on(crowd, time.monotonic() + 2.0)
                network.connect(number)
                crowd.wait_for_grants(1, since=time.monotonic(), seconds=40)
            check(crowd)
        finally:
            cluster.stop()


def _start_one(url: str, folder: Path, number: int) -> list[subprocess.Popen[bytes]]:
    """One more worker, with a URL of its own."""
    argv = [sys.executable, "-m", "tests.redis.crowd", url, str(folder), str(number), ",".join(NAMES), str(TTL)]
    return [subprocess.Popen(argv, cwd=ROOT)]
