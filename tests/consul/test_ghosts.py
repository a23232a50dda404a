"""Claims at the store that their client does not know of, or does not know any more: none of them blocks other claims for long."""

from __future__ import annotations

import time
import urllib.request

import pytest

import lockline
from lockline.runtime.blocking import run

from ..contract.scene import Scene
from ..contract.worlds import Place
from ..servers.consul import ConsulCluster
from ..servers.process import wait_for
from ..servers.proxy import Proxy
from .conftest import Clients, backend_of, keys_under

pytestmark = pytest.mark.server

FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 17\r\n\r\nPermission denied"
TTL = 5.0
"""Of claims whose end is waited for."""


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_a_claim_whose_repeated_request_was_refused_is_removed_while_its_client_lives(
    consul: ConsulCluster, prefix: str, through: str, proxy: Proxy, flavour: str
) -> None:
    """The first request was applied and its answer lost; the refusal is of the second."""
    with Scene(Place(through), flavour) as scene:
        party = scene.party()
        party.lock("warm").acquire().release()
        proxy.drop_reply(b"check-not-exists")
        proxy.spoil_reply(FORBIDDEN, b"check-not-exists")
        with pytest.raises(lockline.BackendUnavailable, match="refused"):
            party.lock("x", ttl=600).acquire(timeout=60)
        assert proxy.lost == 2
        wait_for(lambda: not keys_under(consul, f"{prefix}/claims/"), 60, "an empty line")


def test_a_released_claim_that_a_snapshot_brings_back_is_removed_by_its_client_and_by_one_that_saw_it_later(
    spare: ConsulCluster, client_of: Clients
) -> None:
    """Longer than 5 s: what comes back stands still for its ttl before it is removed."""
    url = f"{spare.url}/ghosts?session_ttl=60"
    address = f"http://127.0.0.1:{spare.servers[0].port}/v1/snapshot"
    client, other = client_of(url), client_of(url)
    leases = [client.lock(name, ttl=TTL, renew=False).acquire() for name in ("own", "other")]
    with urllib.request.urlopen(address, timeout=60) as saved:
        backup = saved.read()
    for lease in leases:
        lease.extend(TTL)
    # It has seen the claim at a higher index than the one that comes back.
    assert other.lock("other").try_acquire() is None
    for lease in leases:
        lease.release()
    with urllib.request.urlopen(urllib.request.Request(address, backup, method="PUT"), timeout=60) as restored:
        assert restored.status == 200
    for waits, name, ghost in ((client, "own", leases[0]), (other, "other", leases[1])):
        (there,) = waits.inspect(name).claims
        assert there.token == ghost.token
        with waits.lock(name, ttl=60).acquire(timeout=60) as lease:
            assert lease.token > ghost.token


def test_a_claim_that_is_being_released_is_not_taken_for_a_ghost(url: str, client_of: Clients) -> None:
    client = client_of(url)
    lease = client.lock("x", ttl=60).acquire()
    claims = backend_of(client)._claims
    (own,) = claims.standing()
    claims._claims.pop(own.claim.id)  # as while its release is on its way
    until = backend_of(client)._runtime.now() + 60
    line = run(claims.sightings.line("x", until))
    assert not run(claims.sightings.bury(line, until))
    claims.keep(own)
    lease.release()


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_an_eviction_is_heard_by_another_agent_when_the_one_that_was_listened_to_goes_silent(
    consul: ConsulCluster, url: str, prefix: str, flavour: str, client_of: Clients
) -> None:
    """The holder has nothing else to ask for a long time. Longer than 5 s: by then the silent agent is given up."""
    place = ("127.0.0.1", consul.servers[0].port)
    with Proxy(place) as silent, Proxy(place) as other:
        far = f"consul://127.0.0.1:{silent.port},127.0.0.1:{other.port}/{prefix}?session_ttl=1"
        with Scene(Place(far), flavour) as scene:
            holder = scene.party()
            lease = holder.lock("x", ttl=600, renew=False).acquire()
            wait_for(lambda: silent.requests > 0 and listens(holder.client.real), 60, "the listener")
            silent.black_hole()
            time.sleep(0.1)
            assert client_of(url).evict("x") == 1
            wait_for(lambda: not lease.real.valid, 60, "the loss of the lease")
            silent.heal()


def listens(client: lockline.Client) -> bool:
    """Whether its blocking query has been answered once."""
    return backend_of(client)._claims.pushes._query._index > 0
