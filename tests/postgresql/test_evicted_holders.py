"""Whoever holds for a while hears of its eviction soon, whatever became of the session that LISTENs."""

from __future__ import annotations

import pytest

from tests.deaf import an_heir_that_never_looked_hears_of_its_eviction, hears_of_its_eviction
from tests.tier import sample

from .conftest import Database

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("flavour", "how"),
    sample(
        [("sync", "cut"), ("asyncio", "strand")],
        [("sync", "cut"), ("asyncio", "strand"), ("sync", "strand"), ("asyncio", "cut")],
    ),
)
def test_a_session_that_broke_while_nobody_waited_is_made_anew(shared: Database, flavour: str, how: str) -> None:
    """Longer than 5 s: a session that went silent is doubted after a few seconds."""
    hears_of_its_eviction(f"{shared.url}?prefix={flavour}{how}", shared.server.port, flavour, how)


def test_an_heir_that_never_looked_is_told(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    an_heir_that_never_looked_hears_of_its_eviction(f"{shared.url}?prefix=heir", monkeypatch)
