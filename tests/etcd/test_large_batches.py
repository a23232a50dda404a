"""Many claims with long names, owners and metadata are renewed and removed in transactions that etcd takes, whatever its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

import lockline
from lockline.runtime.blocking import run
from lockline.runtime.clock import now

from ..servers.etcd import EtcdCluster

pytestmark = pytest.mark.server

MANY = 110
LONG = "ü" * 245


@pytest.mark.parametrize("options", [(), ("--max-request-bytes=60000",)], ids=["as it comes", "a low limit"])
def test_a_batch_that_is_too_large_for_etcd_costs_no_claim(tmp_path: Path, options: tuple[str, ...]) -> None:
    """The first renewal writes all of a claim anew, because only then its token is known."""
    cluster = EtcdCluster(tmp_path, options=options).start()
    try:
        with lockline.connect(cluster.url, owner="𝄞" * 256) as client:
            locks = [client.lock(f"{n}-{LONG}", ttl=120, meta={"why": '"' * 2000}) for n in range(MANY)]
            leases = [lock.acquire(timeout=60) for lock in locks]
            claims = [lease._live.claim for lease in leases]
            backend = client._engine.backend
            assert run(backend.renew(claims, now() + 60)) == [None] * MANY
            assert run(backend.renew(claims, now() + 60)) == [None] * MANY
            assert all(lease.valid for lease in leases)
            assert run(backend.leave_all(claims, now() + 60)) == [True] * MANY
            for lease in leases:
                with pytest.raises(lockline.LeaseLost):
                    lease.release()
    finally:
        cluster.stop()
