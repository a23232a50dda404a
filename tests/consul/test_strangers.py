"""The hands of others in Lockline's keys and sessions: operators, other programs, and answers that do not come from Consul."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockline
from lockline import aio
from lockline.core.claim import Claim, Grant
from lockline.runtime.blocking import run

from ..servers.consul import ConsulCluster
from ..servers.process import wait_for
from .conftest import Clients, backend_of, delete, entries_under, keys_under, put

pytestmark = pytest.mark.server


def claim_key(consul: ConsulCluster, prefix: str, name: str = "x") -> str:
    (key,) = keys_under(consul, f"{prefix}/claims/{name}/")
    return key


@pytest.fixture
def held(consul: ConsulCluster, url: str, client_of: Clients) -> lockline.Lease:
    """A lease of one client, for a good while; it is renewed every two seconds."""
    return client_of(url).lock("x", ttl=6).acquire()


def a_waiter(client: lockline.Client) -> tuple[threading.Thread, list[lockline.Lease]]:
    """A thread that waits for `x`, and what it got."""
    granted: list[lockline.Lease] = []
    thread = threading.Thread(target=lambda: granted.append(client.lock("x", ttl=60).acquire(timeout=60)))
    thread.start()
    wait_for(lambda: client.inspect("x").waiters, 60, "the waiter")
    return thread, granted


def test_a_session_that_is_destroyed_from_outside_ends_its_leases_and_lets_the_next_in(
    consul: ConsulCluster, url: str, client_of: Clients, held: lockline.Lease
) -> None:
    thread, granted = a_waiter(client_of(url))
    session = client_session(consul, url)
    assert put(consul, f"session/destroy/{session}")[0] == 200
    assert held.lost.wait(60)
    thread.join(60)
    assert granted[0].token > held.token
    granted[0].release()
    with pytest.raises(lockline.LeaseLost):
        held.release()


def client_session(consul: ConsulCluster, url: str) -> str:
    """The session of whoever holds `x`."""
    prefix = url.partition("?")[0].rpartition("/")[2]
    (first, *_) = sorted(entries_under(consul, f"{prefix}/claims/x/"), key=lambda entry: entry["CreateIndex"])
    session: str = first["Session"]
    return session


def test_the_client_whose_session_was_destroyed_locks_again_with_another(
    consul: ConsulCluster, url: str, client_of: Clients
) -> None:
    client = client_of(url)
    client.lock("y").acquire().release()
    (session,) = backend_of(client)._sessions.all()
    assert put(consul, f"session/destroy/{session.id}")[0] == 200
    with client.lock("x").acquire(timeout=60) as lease:
        assert lease.valid
        (now,) = backend_of(client)._sessions.all()
        assert now.id != session.id


def test_a_claim_that_an_operator_deletes_is_lost_and_the_next_one_holds(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients, held: lockline.Lease
) -> None:
    key = claim_key(consul, prefix)
    thread, granted = a_waiter(client_of(url))
    assert delete(consul, f"kv/{key}") == 200
    thread.join(60)
    assert granted[0].token > held.token
    assert held.lost.wait(60)
    granted[0].release()


def test_a_claim_that_is_released_from_its_session_by_hand_is_lost_and_not_renewed_for_ever(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients, held: lockline.Lease
) -> None:
    """Without a session it holds nothing in the eyes of others: its holder must not go on."""
    key = claim_key(consul, prefix)
    session = client_session(consul, url)
    thread, granted = a_waiter(client_of(url))
    assert put(consul, f"kv/{key}?release={session}") == (200, True)
    thread.join(60)
    assert granted[0].token > held.token
    assert held.lost.wait(60)
    granted[0].release()
    wait_for(lambda: not keys_under(consul, f"{prefix}/claims/"), 60, "an empty line")


def test_a_claim_that_somebody_overwrites_is_lost_with_the_next_renewal(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients, held: lockline.Lease
) -> None:
    """Others cannot read it any more, and one of them may be at work by then."""
    assert put(consul, f"kv/{claim_key(consul, prefix)}", "junk")[0] == 200
    with client_of(url).lock("x").acquire(timeout=60) as lease:
        assert lease.token > held.token
        assert held.lost.wait(60)


JUNK: dict[str, Any] = {
    "meta": ["o", "lock", 1, 1, 60.0, 0.0, "{no json", "c"],
    "weight": ["o", "lock", -5, 1, 60.0, 0.0, "", "c"],
    "no weight": ["o", "lock", 0, 1, 60.0, 0.0, "", "c"],
    "bool": ["o", "lock", True, True, 60.0, 0.0, "", "c"],
    "capacity": ["o", "lock", 1, -1, 60.0, 0.0, "", "c"],
    "endless": ["o", "lock", 1, 1, float("inf"), 0.0, "", "c"],
    "no number": ["o", "lock", 1, 1, float("nan"), float("nan"), "", "c"],
    "huge": ["o", "lock", 1, 1, 10**400, 0.0, "", "c"],
    "client": ["o", "lock", 1, 1, 60.0, 0.0, "", "../../../x"],
    "kind": ["o", "\x1b[2J", 1, 1, 60.0, 0.0, "", "c"],
    "short": ["o", "lock"],
    "object": {"a": 1},
    "text": "hello",
}


SOUND = {"bool", "client", "kind"}
"""These could be claims: they hold until their session ends."""


@pytest.mark.parametrize("what", JUNK)
def test_a_forged_claim_breaks_no_question_and_is_gone_with_its_session(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients, what: str
) -> None:
    session = put(consul, "session/create", {"TTL": "60s", "Behavior": "delete", "LockDelay": "0s"})[1]["ID"]
    body = json.dumps(JUNK[what])
    step = {
        "Verb": "lock",
        "Key": f"{prefix}/claims/x/forged.",
        "Session": session,
        "Value": base64.b64encode(body.encode()).decode(),
    }
    assert put(consul, "txn", [{"KV": step}])[0] == 200
    client = client_of(url)
    line = client.inspect("x")
    assert bool(line.holders) == (what in SOUND)
    assert client.list() == ["x"][: len(line.claims)]
    lease = client.lock("x", ttl=60).try_acquire()
    assert (lease is None) == bool(line.holders)
    if lease is not None:
        assert len(client.inspect("x").holders) == 1
        lease.release()
        return
    thread, granted = a_waiter(client)
    assert not granted
    assert put(consul, f"session/destroy/{session}")[0] == 200
    thread.join(60)
    granted[0].release()


def test_claims_with_all_that_may_be_said_of_them_are_renewed_together(url: str, client_of: Clients) -> None:
    """One transaction takes half a megabyte, and these are more."""
    backend = backend_of(client_of(url))
    until = backend._runtime.now() + 120
    meta = json.dumps({"a": '"' * 2040})
    claims = [Claim(f"{n:02}" + "ü" * 255, f"id-{n}", "me", "lock", 1, 1, 60.0, 0.0, meta) for n in range(64)]
    for claim in claims:
        assert isinstance(run(backend.enter(claim, wait=True, until=until)), Grant)
    assert list(run(backend.renew(claims, until))) == [None] * len(claims)
    assert all(run(backend.leave_all(claims, until)))


class Answering:
    """A server that says the same to everybody."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer_all, args=(line,), daemon=True).start()

    def _answer_all(self, line: socket.socket) -> None:
        with line:
            try:
                line.recv(65536)
                line.sendall(self._answer)
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def http(status: str, body: bytes, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]).encode() + body


STRANGE = {
    "a page": http("200 OK", b"<html>log in</html>", "Content-Type: text/html"),
    "null": http("200 OK", b"null"),
    "a list": http("200 OK", b"[]"),
    "a number": http("200 OK", b"1"),
    "other keys": http("200 OK", b'{"Results":[{"KV":{}}],"ID":7}'),
    "not there": http("404 Not Found", b"no such page"),
    "conflict": http("409 Conflict", b"{}"),
}


@pytest.fixture
def strange(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of something that always gives this answer."""
    server = Answering(request.param)
    yield f"consul://127.0.0.1:{server.port}"
    server.close()


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE, indirect=True)
def test_whatever_answers_in_place_of_consul_there_is_a_typed_error(strange: str, client_of: Clients) -> None:
    client = client_of(strange)
    questions: list[Callable[[], object]] = [
        lambda: client.inspect("x"),
        lambda: client.evict("x"),
        lambda: client.list(),
        lambda: client.examine(),
    ]
    for question in questions:
        with pytest.raises(lockline.BackendUnavailable, match="does not answer like this"):
            question()

    def is_named() -> bool:
        with pytest.raises(lockline.BackendUnavailable) as told:
            client.lock("x").acquire(timeout=0.3)
        return "does not answer like this" in str(told.value)

    # On a busy machine an answer may take longer than that.
    wait_for(is_named, 60, "the reason")


NO_ANSWER = {
    "redirect": http("302 Found", b"", "Location: http://elsewhere/"),
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort",
    "silence": b"",
}


@pytest.mark.parametrize("strange", NO_ANSWER.values(), ids=NO_ANSWER, indirect=True)
def test_what_is_no_answer_is_asked_again_until_the_deadline(strange: str, client_of: Clients) -> None:
    with pytest.raises(lockline.BackendUnavailable):
        client_of(strange).lock("x").acquire(timeout=0.3)


@pytest.mark.parametrize("strange", [http("200 OK", b'{"Results":null}', "Connection: close")], indirect=True)
def test_an_answer_that_is_the_last_on_its_connection_is_followed_by_another_connection(
    strange: str, client_of: Clients
) -> None:
    """As behind proxies that keep none open."""
    client = client_of(strange)
    assert [client.list() for _ in range(4)] == [[], [], [], []]

    async def scene() -> list[list[str]]:
        async with aio.connect(strange) as other:
            return [await other.list() for _ in range(4)]

    assert asyncio.run(scene()) == [[], [], [], []]
