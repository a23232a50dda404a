"""`?datacenter=`: locks in another datacenter than the agent's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..contract.scene import Scene
from ..contract.worlds import Place
from ..servers.consul import ConsulCluster
from ..servers.process import free_port, wait_for

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def datacenters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ConsulCluster]]:
    """Two, one server each, that know each other."""
    folder = tmp_path_factory.mktemp("datacenters")
    made: dict[str, ConsulCluster] = {}
    wan = {name: free_port() for name in ("dc1", "dc2")}
    for name, port in wan.items():
        cluster = ConsulCluster(folder / name)
        server = cluster.servers[0]
        ports = {"http": server.port, "https": -1, "dns": -1, "grpc": -1, "serf_wan": port}
        ports |= {"serf_lan": server.serf_port, "server": server.rpc_port}
        known = [f"127.0.0.1:{other}" for other in wan.values() if other != port]
        cluster._config = {"datacenter": name, "ports": ports, "retry_join_wan": known, "retry_interval_wan": "1s"}
        made[name] = cluster.start()
    wait_for(lambda: len(made["dc1"].servers[0].ask("catalog/datacenters")) == 2, 60, "each other")
    yield made
    for cluster in made.values():
        cluster.stop()


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_clients_of_two_agents_meet_in_the_datacenter_that_the_url_names(
    datacenters: dict[str, ConsulCluster], flavour: str
) -> None:
    far = Place(f"{datacenters['dc1'].url}/{flavour}?datacenter=dc2&session_ttl=1")
    near = Place(f"{datacenters['dc2'].url}/{flavour}?session_ttl=1")
    with Scene(far, flavour) as there, Scene(near, flavour) as here:
        alice, bob = there.party(), here.party()
        lease = alice.lock("x", ttl=60).acquire(timeout=60)
        assert [claim.token for claim in bob.client.inspect("x").holders] == [lease.token]
        waiting = bob.lock("x", ttl=60).acquire.start(timeout=60)
        wait_for(lambda: alice.client.inspect("x").waiters, 60, "the waiter")
        lease.release()
        next_one = waiting.result()
        assert next_one.token > lease.token
        next_one.release()
        lease = alice.lock("x", ttl=600).acquire(timeout=60)
        assert bob.client.evict("x") == 1
        wait_for(lambda: not lease.real.valid, 60, "the loss of the lease")
        assert not [found for found in alice.client.examine() if found.level == "error"]
