"""What was held back on a line is delivered when a schedule says so, and the schedule can see that its server has dealt with it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from lockline.lab.servers.process import wait_for
from lockline.lab.servers.proxy import Proxy


@contextlib.contextmanager
def a_packet_that_hangs() -> Iterator[tuple[Proxy, socket.socket]]:
    """A line on which a packet is under way, and the server's end of it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Proxy(listener.getsockname()) as line,
        socket.create_connection(("127.0.0.1", line.port)) as client,
    ):
        server, _ = listener.accept()
        with server:
            line.strand()
            client.sendall(b"late")
            wait_for(lambda: line.requests == 1, what="the packet at the proxy")
            yield line, server


@pytest.mark.parametrize("ends", ["answers", "hangs up"])
def test_a_delivered_packet_is_unanswered_until_the_server_says_something_or_goes(ends: str) -> None:
    with a_packet_that_hangs() as (line, server):
        assert not line.unanswered, "nothing has been delivered yet"
        line.deliver()
        assert server.recv(100) == b"late"
        assert line.unanswered
        if ends == "answers":
            server.sendall(b"done")
        else:
            server.close()
        wait_for(lambda: not line.unanswered, what="the server's word")


def test_a_server_that_hung_up_before_owes_no_answer() -> None:
    with a_packet_that_hangs() as (line, server):
        server.close()
        wait_for(lambda: any(link.hung_up for link in line._links.values()), what="the end at the proxy")
        line.deliver()
        assert not line.unanswered
