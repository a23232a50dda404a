"""A holder whose connections broke or went silent while nobody waited hears of its eviction all the same."""

from __future__ import annotations

import pytest

from ..deaf import hears_of_its_eviction
from ..servers.consul import ConsulCluster
from ..tier import sample

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("flavour", "how"),
    sample(
        [("sync", "cut"), ("asyncio", "strand")],
        [("sync", "cut"), ("asyncio", "strand"), ("sync", "strand"), ("asyncio", "cut")],
    ),
)
def test_a_holder_hears_of_its_eviction_after_its_connections_are_gone(
    consul: ConsulCluster, url: str, flavour: str, how: str
) -> None:
    """Longer than 5 s: a query that went silent is given up after a few seconds."""
    hears_of_its_eviction(url, consul.servers[0].port, flavour, how)
