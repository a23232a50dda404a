"""A node that leaves the catalog ends no claim: neither one whose agent failed nor one that left, whatever the claim came by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..contract.scene import Scene
from ..contract.worlds import Place
from ..servers.consul import ConsulCluster, ConsulServer
from ..servers.process import NO_ANSWER, wait_for
from .conftest import Clients

pytestmark = pytest.mark.server

LONG = 300.0
"""The ttl of the claims: Consul removes a node long before it is over."""


def nodes(server: ConsulServer) -> set[str]:
    """The nodes of the catalog, as this server knows them."""
    try:
        return {node["Node"] for node in server.ask("catalog/nodes")}
    except NO_ANSWER:
        return set()


def url_of(*servers: ConsulServer) -> str:
    return "consul://" + ",".join(f"127.0.0.1:{server.port}" for server in servers) + "/nodes?session_ttl=10"


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ConsulCluster]:
    """Three servers that remove a failed one as they do by default."""
    cluster = ConsulCluster(tmp_path / "three", servers=3).start()
    yield cluster
    for server in cluster.servers:
        if server.server is not None:
            server.server.thaw()
    cluster.stop()


@pytest.fixture
def scenes() -> Iterator[dict[str, Scene]]:
    """One for each flavour; the places of its parties are said by each test."""
    made: dict[str, Scene] = {}
    yield made
    for scene in made.values():
        scene.finish()


def test_a_server_that_autopilot_removes_ends_no_claim_that_came_by_it(
    three: ConsulCluster, scenes: dict[str, Scene], client_of: Clients
) -> None:
    """Longer than 5 s: autopilot waits for some seconds before it removes the server."""
    leader = three.leader()
    victim = next(server for server in three.servers if server is not leader)
    others = [server for server in three.servers if server is not victim]
    held = {}
    for flavour in ("sync", "asyncio"):
        for way, url in (("by it alone", url_of(victim)), ("by all", url_of(victim, *others))):
            scene = scenes[f"{flavour} {way}"] = Scene(Place(url), flavour)
            name = f"{flavour} {way}"
            held[name] = scene.party().lock(name, ttl=LONG).acquire()
    waiter = client_of(url_of(*others))
    assert victim.server is not None
    victim.server.freeze()
    wait_for(lambda: victim.name not in nodes(leader) >= {leader.name}, 60, "a catalog without that server")
    for name, lease in held.items():
        assert waiter.lock(name).try_acquire() is None
        assert [claim.token for claim in waiter.inspect(name).holders] == [lease.token]
        assert lease.valid
    victim.server.thaw()
    # It comes back as a server, and those who came by it give back what they hold.
    wait_for(victim.healthy, 60, "that server")
    for lease in held.values():
        lease.release()


def test_an_agent_that_leaves_ends_no_claim_that_came_by_it(
    tmp_path: Path, consul: ConsulCluster, client_of: Clients
) -> None:
    """An agent that runs no server leaves when SIGTERM ends it, unless told otherwise."""
    agent = ConsulCluster(tmp_path / "agent").servers[0]
    agent.name = "agent"
    agent.prepare([agent, *consul.servers], {"server": False, "bootstrap_expect": 0, "leave_on_terminate": True})
    assert agent.server is not None
    agent.server.start()
    try:
        wait_for(lambda: "agent" in nodes(consul.servers[0]), 60, "the agent's node")
        lease = client_of(url_of(agent)).lock("x", ttl=LONG).acquire(timeout=60)
        other = client_of(url_of(*consul.servers))
        agent.server.stop()
        wait_for(lambda: "agent" not in nodes(consul.servers[0]) >= {"s0"}, 60, "a catalog without it")
        assert other.lock("x").try_acquire() is None
        assert [claim.token for claim in other.inspect("x").holders] == [lease.token]
        assert lease.valid
        agent.server.start()
        lease.release()
        assert not other.inspect("x").claims
    finally:
        agent.server.kill()
