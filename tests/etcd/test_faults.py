"""A cluster of three under load from many processes, while its members and its clients are killed, frozen and cut off.

What must hold whatever happens: one holder at a time, tokens in the order of grants, no stale write let in at the resource,
and work that goes on after an election and a ttl.

Each takes longer than 5 s: a cluster of three starts, members and clients are away for longer than a ttl, and there are elections.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

from lockline.backends.etcd.doctor import revokes_living_leases

from ..calm import calm
from ..redis.crowd import Crowd
from ..servers.etcd import EtcdCluster
from ..servers.process import ServerProcess, wait_for
from ..servers.proxy import Proxy
from ..tier import sample
from .crowd import PatientCrowd, start
from .namespaces import Network

pytestmark = [pytest.mark.server, pytest.mark.slow]

WORKERS = sample(4, 16)
NAMES = sample(["a", "b"], ["a", "b", "c", "d"])
TTL = 3.0
ENOUGH = sample(30, 100)
GOES_ON = 120.0
"""Seconds after which a crowd that was granted nothing counts as stuck; an election and a ttl take a few."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Each test leaves all members well, and takes a prefix of its own."""
    cluster = EtcdCluster(tmp_path_factory.mktemp("cluster"), members=3).start()
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


def enough(crowd: Crowd) -> None:
    """Wait until every worker has been granted something since now, and until there is enough to judge by."""
    crowd.wait_for_grants(1, since=time.monotonic(), seconds=GOES_ON)
    wait_for(lambda: len(crowd.history()) > ENOUGH, GOES_ON, "enough grants")


def check(crowd: Crowd, frozen: Set[int] = frozenset(), thawed: float | None = None) -> None:
    """One holder at a time, and no stale write.

    `thawed` is when a deposed leader of an etcd went on that then may end leases before their time: a holder who lost its lease
    in the ten seconds after that may have had company. Its token is refused at the resource all the same.
    """
    overlaps = [
        (first, second)
        for first, second in crowd.overlaps()
        if not {first.worker, second.worker} & frozen
        and not (thawed is not None and first.lost and thawed < second.began < thawed + 10.0)
    ]
    assert not overlaps, overlaps[:3]
    crowd.check_tokens()
    crowd.check_resource()
    # Nobody but a frozen one ever stood at the resource with an old token.
    stale = [held for held in crowd.history() if held.stale and not held.lost and held.worker not in frozen]
    assert not stale, stale[:3]


def test_members_are_killed_and_restarted_in_turn_and_the_leader_is_frozen(
    cluster: EtcdCluster, tmp_path: Path
) -> None:
    with PatientCrowd(f"{cluster.url}/members", tmp_path, sample(3, 16), NAMES, ttl=TTL) as crowd:
        crowd.wait_for_grants(1, seconds=GOES_ON)
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
        enough(crowd)
    check(crowd, thawed=thawed if revokes_living_leases(leader.version()) else None)


def test_one_client_is_cut_off_and_another_is_frozen(cluster: EtcdCluster, tmp_path: Path) -> None:
    proxies = [Proxy(("127.0.0.1", member.port)) for member in cluster.members]
    cut_off = f"etcd://{','.join(f'127.0.0.1:{proxy.port}' for proxy in proxies)}/clients"
    try:
        with PatientCrowd(f"{cluster.url}/clients", tmp_path, WORKERS - 1, NAMES, ttl=TTL) as crowd:
            # The lone one works at the same resource, and has a history of its own.
            lone = Crowd.__new__(Crowd)
            lone.folder, lone.names = tmp_path, NAMES
            lone._workers = [*crowd._workers, start(cut_off, tmp_path, WORKERS - 1, NAMES, TTL)]
            try:
                lone.wait_for_grants(1, seconds=GOES_ON)
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
                enough(lone)
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
            with PatientCrowd(f"{cluster.url}/faults", tmp_path, sample(3, 16), NAMES, ttl=TTL) as crowd:
                crowd.wait_for_grants(1, seconds=GOES_ON)
                number = cluster.members.index(cluster.leader())
                network.cut_from_peers(number)
                moment = time.monotonic()
                goes_on(crowd, moment + 2.0)
                time.sleep(max(0.0, moment + 2 * TTL - time.monotonic()))
                network.heal(number)
                crowd.wait_for_grants(1, since=time.monotonic(), seconds=GOES_ON)
                number = cluster.members.index(cluster.leader())
                network.cut_off(number)
                goes_on(crowd, time.monotonic() + 2.0)
                network.connect(number)
                enough(crowd)
            check(crowd)
        finally:
            cluster.stop()
