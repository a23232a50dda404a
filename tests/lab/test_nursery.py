"""Where the laboratory's clients come from, and that nobody waits for one for ever."""

from __future__ import annotations

import socket
import threading

import pytest

from lockline.lab.nursery import Nursery
from tests.servers.process import wait_for


def test_who_waits_for_a_client_hears_that_there_will_be_none() -> None:
    """Also where somebody who stands still has the other end of the line, so that the end of the nursery tells nobody."""
    nursery = Nursery()
    nursery._orders.close()
    nursery._orders, standing_still = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    heard: list[RuntimeError] = []

    def ask() -> None:
        with pytest.raises(RuntimeError, match="gone") as problem:
            nursery.start(("a client",))
        heard.append(problem.value)

    asking = threading.Thread(target=ask, daemon=True)
    with standing_still:
        asking.start()
        wait_for(nursery._mutex.locked, 60, "the question")
        standing_still.recv(1000)
        nursery.close()
        asking.join(60)
        assert len(heard) == 1
