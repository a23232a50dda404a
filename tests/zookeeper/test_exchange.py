"""What comes from the server is told however it was cut up on its way, and kazoo still has its part in the connection."""

from __future__ import annotations

import contextlib
import itertools
import queue
import random
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Exists

import lockline

from ..servers.process import wait_for
from ..servers.proxy import Proxy
from ..servers.zookeeper import ZooKeeper
from ..tier import sample
from .conftest import chroot

pytestmark = pytest.mark.server


class Chopper:
    """A way to the server on which answers arrive in pieces, with a breath after each."""

    def __init__(self, server_port: int, seed: int, longest: int) -> None:
        self._server_port = server_port
        self._chance = random.Random(seed)
        self._longest = longest
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def _begin(self, work: Callable[..., None], *ends: socket.socket) -> None:
        self._threads.append(threading.Thread(target=work, args=ends, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._ends += [client, server]
                self._begin(self._pass_whole, client, server)
                self._begin(self._pass_in_pieces, server, client)

    def _pass_whole(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    def _pass_in_pieces(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                while data:
                    size = self._chance.randint(1, self._longest)
                    client.sendall(data[:size])
                    data = data[size:]
                    time.sleep(0.0002)
            client.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Chopper:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        for end in (self._listener, *self._ends):
            end.close()


@pytest.mark.parametrize(("seed", "longest"), sample([(2, 30)], [(1, 3), (2, 30), (3, 300)]))
def test_a_crowd_has_its_turns_in_order_although_every_answer_comes_in_pieces(
    server: ZooKeeper, url: str, client_of: Callable[..., lockline.Client], seed: int, longest: int
) -> None:
    tokens: list[int] = []
    inside = threading.Lock()
    with Chopper(server.port, seed, longest) as way:
        target = f"zk://127.0.0.1:{way.port}/{url.rpartition('/')[2]}"
        clients = [client_of(target, session=30) for _ in range(4)]

        def work(client: lockline.Client) -> None:
            for _ in range(8):
                with client.lock("x", ttl=60) as lease:
                    assert inside.acquire(blocking=False), "two inside"
                    tokens.append(lease.token)
                    inside.release()

        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        for client in clients:
            client.close()
    assert len(tokens) == 32
    assert tokens == sorted(tokens)


def test_a_client_that_is_idle_keeps_its_session_and_its_one_connection(
    proxy: Proxy, url: str, client_of: Callable[..., lockline.Client]
) -> None:
    """By kazoo's own pings, which it counts from the last request of ours.

    Longer than 5 s: the session lasts that long by itself.
    """
    client = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}", session=6)
    channel = client._engine.backend._channel  # type: ignore[attr-defined]
    client.lock("x").acquire().release()
    session = channel.client.client_id[0]
    sent = proxy.requests
    time.sleep(7)
    assert proxy.requests > sent
    assert proxy.accepted == 1
    # A claim has to rest on a session that the leader has just heard of: the client connects anew, with the same session.
    client.lock("x").acquire().release()
    assert channel.client.client_id[0] == session
    assert proxy.accepted == 2


def test_a_client_that_is_busy_is_not_pinged_besides(
    proxy: Proxy, url: str, client_of: Callable[..., lockline.Client]
) -> None:
    """A request is a sign of life: kazoo hears of ours, and pings only after a silence."""
    client = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}", session=6)
    client.lock("x").acquire().release()
    ping = bytes.fromhex("00000008fffffffe0000000b")
    silences: list[float] = []
    last = [time.monotonic()]

    def note(to_server: bool, data: bytes, fate: str) -> None:
        if to_server:
            if ping in data:
                silences.append(time.monotonic() - last[0])
            last[0] = time.monotonic()

    proxy.on_packet = note
    until = time.monotonic() + 4  # kazoo waits for 2 s at most before it pings in a session of 6 s
    while time.monotonic() < until:
        client.inspect("x")
        time.sleep(0.05)
    # kazoo's wait is never shorter than this. On a machine that stood still for so long there was a silence, and a ping is due.
    assert all(silence > 1 for silence in silences)


def test_a_waiter_whose_node_was_taken_away_stands_in_line_anew_when_its_turn_would_have_come(
    url: str, kazoo: KazooClient, client_of: Callable[..., lockline.Client]
) -> None:
    """The look that follows the end of the one ahead shows it: nobody holds without a node."""
    folder = f"{chroot(url)}/x"
    kazoo.ensure_path(folder)
    clients = [client_of(url, session=30) for _ in range(4)]
    got: list[queue.Queue[lockline.Lease]] = [queue.Queue() for _ in clients]
    nodes: list[str] = []
    threads = []

    def has_members(many: int) -> bool:
        return len(kazoo.get_children(folder)) == many

    for at, client in enumerate(clients):
        body = threading.Thread(target=lambda got=got[at], client=client: got.put(client.lock("x", ttl=60).acquire()))
        body.start()
        threads.append(body)
        wait_for(partial(has_members, at + 1), 60, "one more in the line")
        nodes += set(kazoo.get_children(folder)) - set(nodes)
    first = got[0].get(timeout=60)
    kazoo.delete(f"{folder}/{nodes[2]}")
    first.release()
    got[1].get(timeout=60).release()
    # The last one comes before it now.
    for at in (3, 2):
        lease = got[at].get(timeout=60)
        assert [held.token for held in clients[0].inspect("x").holders] == [lease.token]
        lease.release()
    for thread in threads:
        thread.join(60)


def test_more_requests_than_travel_together_are_all_answered(
    url: str, client_of: Callable[..., lockline.Client]
) -> None:
    client = client_of(url, session=30)
    leases = [client.lock(f"n{n}", ttl=60).acquire() for n in range(5)]
    channel = client._engine.backend._channel  # type: ignore[attr-defined]
    answers: list[list[object]] = []
    done = threading.Event()

    def then(told: list[object]) -> None:
        answers.append(told)
        if len(answers) == 1:
            # In kazoo's thread, which nobody has to wake for this.
            channel.post(*(Exists(f"/{n}", None) for n in range(450)), then=then)
        else:
            done.set()

    channel.post(*(Exists(f"/{n}", None) for n in range(450)), then=then)
    assert done.wait(60)
    assert list(itertools.chain.from_iterable(answers)) == [None] * 900
    for lease in leases:
        lease.release()
