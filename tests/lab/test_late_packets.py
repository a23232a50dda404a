"""What was held back or lost on a line is what a schedule says, and the schedule can see that its server has dealt with a request."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from lockline.lab.servers.process import wait_for
from lockline.lab.servers.proxy import Proxy

ROOM_AND_PING = bytes.fromhex("000004 08 00 00000000 00010000   000008 06 00 00000000 0204101009090707")
"""What a server of HTTP/2 says to a request before it has read it."""


@contextlib.contextmanager
def a_line() -> Iterator[tuple[Proxy, socket.socket, socket.socket]]:
    """A proxy, and the client's and the server's end of a connection through it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Proxy(listener.getsockname()) as line,
        socket.create_connection(("127.0.0.1", line.port), timeout=120) as client,
    ):
        server, _ = listener.accept()
        with server:
            server.settimeout(120)
            yield line, client, server


@contextlib.contextmanager
def a_packet_that_hangs() -> Iterator[tuple[Proxy, socket.socket]]:
    """A line on which a packet is under way, and the server's end of it."""
    with a_line() as (line, client, server):
        line.strand()
        client.sendall(b"late")
        wait_for(lambda: line.requests == 1, 60, "the packet at the proxy")
        yield line, server


@pytest.mark.parametrize("ends", ["answers", "hangs up"])
def test_a_delivered_packet_is_unanswered_until_the_server_says_something_or_goes(ends: str) -> None:
    with a_packet_that_hangs() as (line, server):
        assert not line.unanswered, "nothing has been delivered yet"
        line.deliver()
        assert server.recv(100) == b"late"
        assert line.unanswered
        server.sendall(ROOM_AND_PING)
        wait_for(lambda: line.answers == 1, 60, "what is no answer yet")
        assert line.unanswered
        if ends == "answers":
            server.sendall(b"done")
        else:
            server.close()
        wait_for(lambda: not line.unanswered, 60, "the server's word")


def test_a_server_that_hung_up_before_owes_no_answer() -> None:
    with a_packet_that_hangs() as (line, server):
        server.close()
        wait_for(lambda: any(link.hung_up for link in line._links.values()), 60, "the end at the proxy")
        line.deliver()
        assert not line.unanswered


def test_an_answer_that_a_mute_line_lost_is_counted_and_not_what_came_before_it() -> None:
    """Who is killed then has had his request done: room for it is granted before."""
    with a_line() as (line, client, server):
        line.mute()
        client.sendall(b"a request")
        assert server.recv(100) == b"a request"
        server.sendall(ROOM_AND_PING)
        wait_for(lambda: line.answers == 1, 60, "what is no answer yet")
        assert line.lost == 0
        server.sendall(b"an answer")
        wait_for(lambda: line.lost == 1, 60, "the lost answer")


def test_the_reply_that_is_dropped_is_the_answer_and_not_what_came_before_it() -> None:
    with a_line() as (line, client, server):
        line.drop_reply()
        client.sendall(ROOM_AND_PING)  # what only keeps the connection going is no request either
        assert server.recv(100) == ROOM_AND_PING
        server.sendall(b"a push")
        assert client.recv(100) == b"a push"
        client.sendall(b"a request")
        assert server.recv(100) == b"a request"
        server.sendall(ROOM_AND_PING)
        assert client.recv(100) == ROOM_AND_PING
        assert line.lost == 0
        server.sendall(b"an answer")
        assert client.recv(100) == b""
        assert line.lost == 1
