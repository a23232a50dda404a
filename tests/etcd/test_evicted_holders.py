"""Whoever holds for a while hears of its eviction soon, whatever became of the stream on which it is told."""

from __future__ import annotations

import pytest

from tests.deaf import hears_of_its_eviction

from ..servers.etcd import EtcdCluster
from ..tier import sample

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("flavour", "how"),
    sample(
        [("sync", "cut"), ("asyncio", "strand")],
        [("sync", "cut"), ("asyncio", "strand"), ("sync", "strand"), ("asyncio", "cut")],
    ),
)
def test_a_stream_that_broke_while_nobody_waited_is_made_anew(single: EtcdCluster, flavour: str, how: str) -> None:
    """Longer than 5 s: a stream that went silent is doubted after a few seconds."""
    hears_of_its_eviction(f"{single.url}/{flavour}{how}", single.members[0].port, flavour, how)
