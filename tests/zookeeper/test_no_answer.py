"""Something comes over the line that is no answer, or not to what was asked: the connection ends by it, and not the client."""

from __future__ import annotations

import socket
import struct

import pytest

from lockline import BackendUnavailable
from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeper
from tests.strange_servers import a_server_that

ANSWERS = {
    "to another question": struct.pack("!iiqi", 16, 7_000_000, 1, 0),
    "too short to be one": struct.pack("!ii", 4, 7_000_000),
    "a watch on nothing": struct.pack("!iiqi", 20, -1, 0, 0) + b"\xff\xff\xff\x7f",
}


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
@pytest.mark.parametrize("answer", list(ANSWERS.values()), ids=list(ANSWERS))
def test_a_client_goes_on_after_an_answer_that_is_none(
    server: ZooKeeper, url: str, answer: bytes, flavour: str
) -> None:
    with Proxy(("127.0.0.1", server.port)) as proxy:
        place = Place(url.replace(f":{server.port}", f":{proxy.port}"))
        with Scene(place, flavour) as scene:
            party = scene.party()
            held = party.lock("held", ttl=60).acquire()
            proxy.spoil_reply(answer, b"garbled")
            party.lock("garbled", ttl=60).acquire(timeout=60).release()
            assert proxy.lost == 1
            assert held.real.valid
            held.release()


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_a_client_that_found_somebody_else_there_goes_on_when_the_server_is_back(
    server: ZooKeeper, url: str, flavour: str
) -> None:
    session = struct.pack("!iiiqi16sb", 37, 0, 10_000, 1, 16, b"p" * 16, 0)

    def lets_in_and_then_talks_nonsense(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(session + ANSWERS["to another question"])

    with a_server_that(lets_in_and_then_talks_nonsense) as port, Proxy(("127.0.0.1", port)) as proxy:
        place = Place(url.replace(f":{server.port}", f":{proxy.port}"))
        with Scene(place, flavour) as scene:
            lock = scene.party().lock("x", ttl=60)
            with pytest.raises(BackendUnavailable):
                lock.acquire(timeout=1)
            proxy.lead_to(("127.0.0.1", server.port))
            lock.acquire(timeout=60).release()
