"""One party on a store of its own in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import lockline
from tests.contract.parties import Face, ThreadParty


@pytest.fixture
def alice() -> Iterator[ThreadParty]:
    party = ThreadParty("alice")
    party.client = Face(party, lockline.connect(f"memory:core-{time.monotonic_ns()}"))
    yield party
    party.client.close()
    party.end()
