"""Where the laboratory's clients come from, and that nobody waits for one for ever."""

from __future__ import annotations

import threading

import pytest

from lockline.lab.nursery import Nursery
from tests.servers.process import freeze, wait_for


def test_who_waits_for_a_client_hears_that_there_will_be_none() -> None:
    """The other end of the line may be somebody's who stands still, so that its end alone tells nobody."""
    nursery = Nursery()
    freeze(nursery._process.pid)
    heard: list[RuntimeError] = []

    def ask() -> None:
        with pytest.raises(RuntimeError, match="gone") as problem:
            nursery.start(("a client",))
        heard.append(problem.value)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    wait_for(nursery._mutex.locked, 10, "the question")
    nursery.close()
    asking.join(10)
    assert len(heard) == 1
