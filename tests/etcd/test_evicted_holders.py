"""Whoever holds for a while hears of its eviction soon, whatever became of the stream on which it is told."""

from __future__ import annotations

import pytest

from tests.deaf import hears_of_its_eviction

from ..servers.etcd import EtcdCluster

pytestmark = pytest.mark.server


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
@pytest.mark.parametrize("how", ["cut", "strand"])
def test_a_stream_that_broke_while_nobody_waited_is_made_anew(single: EtcdCluster, flavour: str, how: str) -> None:
    hears_of_its_eviction(f"{single.url}/{flavour}{how}", single.members[0].port, flavour, how)
