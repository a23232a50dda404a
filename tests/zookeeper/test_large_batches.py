"""Many claims with long names are renewed and removed in transactions that the server takes, whatever its `jute.maxbuffer`."""

from __future__ import annotations

from pathlib import Path

import pytest

import lockline
from lockline.runtime.blocking import run
from lockline.runtime.clock import now

from ..servers.zookeeper import ZooKeeper

pytestmark = pytest.mark.server

MANY = 40
LONG = "ü" * 245


@pytest.mark.parametrize("most", [100_000, 16_000], ids=["bounded", "halved"])
def test_a_batch_that_is_too_large_for_the_server_costs_no_claim(tmp_path: Path, most: int) -> None:
    """A server says nothing to a request that is too large for it: it closes the connection."""
    server = ZooKeeper(tmp_path, properties={"jute.maxbuffer": str(most), "jute.maxbuffer.extrasize": "1000000"})
    server.start()
    try:
        with lockline.connect(f"{server.url}/app", owner="o" * 256) as client:
            locks = [client.lock(f"{n}-{LONG}", ttl=60, meta={"why": "m" * 4000}) for n in range(MANY)]
            leases = [lock.acquire(timeout=60) for lock in locks]
            claims = [lease._live.claim for lease in leases]
            backend = client._engine.backend
            longer = [claim._replace(ttl=70.0) for claim in claims]
            assert run(backend.renew(longer, now() + 60)) == [None] * MANY
            assert run(backend.renew(longer, now() + 60)) == [None] * MANY
            assert all(lease.valid for lease in leases)
            assert run(backend.leave_all(claims, now() + 60)) == [True] * MANY
            for lease in leases:
                with pytest.raises(lockline.LeaseLost):
                    lease.release()
    finally:
        server.stop()
