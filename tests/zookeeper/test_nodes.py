"""What Lockline makes in ZooKeeper: one ephemeral node per claim under a container, and nothing that stays."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

import lockline
from lockline.backends.zookeeper.claims import OwnNode
from lockline.backends.zookeeper.commands import node_name
from lockline.backends.zookeeper.session import Session
from lockline.core.claim import Claim, Gone, Grant
from lockline.runtime.blocking import run

from ..servers.process import wait_for
from ..tier import sample
from .conftest import chroot

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


def test_a_claim_is_one_ephemeral_node_of_the_session_and_its_czxid_is_the_token(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    client = client_of(url, owner="me")
    lease = client.lock("orders/42", meta={"why": "test"}).acquire()
    parent = f"{chroot(url)}/orders%2F42"
    (node,) = kazoo.get_children(parent)
    data, stat = kazoo.get(f"{parent}/{node}")
    assert lease.token == stat.czxid
    assert stat.ephemeralOwner == client._engine.backend._channel.session.id  # type: ignore[attr-defined]
    assert lease.id in node
    assert b'"me"' in data
    assert b'"why"' in data
    lease.release()
    assert kazoo.get_children(parent) == []


def test_tokens_rise_although_the_sequence_starts_again_with_a_new_parent(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    client = client_of(url)
    first = client.lock("x").acquire()
    first.release()
    with contextlib.suppress(NoNodeError):  # the server may have been faster
        kazoo.delete(f"{chroot(url)}/x")
    second = client.lock("x").acquire()
    (node,) = kazoo.get_children(f"{chroot(url)}/x")
    assert node.endswith("0000000000")
    assert second.token > first.token
    second.release()


def test_the_server_itself_removes_a_parent_that_nobody_uses(client_of: Clients, url: str, kazoo: KazooClient) -> None:
    client = client_of(url)
    client.lock("gone").acquire().release()
    wait_for(lambda: kazoo.exists(f"{chroot(url)}/gone") is None, 60, "the end of the empty parent")
    wait_for(lambda: kazoo.exists(chroot(url)) is None, 60, "the end of the empty folder")
    client.lock("gone").acquire().release()


def test_a_parent_that_is_removed_all_the_time_never_comes_out_as_an_error(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    client, ended, removed = client_of(url), threading.Event(), [0]

    def remove() -> None:
        while not ended.is_set():
            try:
                kazoo.delete(f"{chroot(url)}/x")
                removed[0] += 1
            except (NoNodeError, NotEmptyError):
                pass

    remover = threading.Thread(target=remove)
    remover.start()
    tokens: list[int] = []
    until = time.monotonic() + 120
    while (len(tokens) < sample(50, 100) or removed[0] < 10) and time.monotonic() < until:
        with client.lock("x") as lease:
            tokens.append(lease.token)
    ended.set()
    remover.join()
    assert removed[0] >= 10
    assert tokens == sorted(set(tokens))


def test_a_name_and_a_longer_one_have_nothing_to_do_with_each_other(client_of: Clients, url: str) -> None:
    client = client_of(url)
    names = ["a", "a/b", "a/b/c", ".", "..", "a.b", "ä ö/ü", "%2F", "\x01\x7f", "x" * 512]
    leases = [client.lock(name).try_acquire() for name in names]
    assert all(leases)
    assert client.list() == sorted(names)
    assert client.list("a/") == ["a/b", "a/b/c"]
    for lease in leases:
        assert lease is not None
        lease.release()
    assert client.list() == []


def test_locks_of_one_client_exclude_each_other(client_of: Clients, url: str) -> None:
    client = client_of(url)
    inside, most, done = [0], [0], [0]

    def work() -> None:
        for _ in range(10):
            with client.lock("x"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.001)
                inside[0] -= 1
                done[0] += 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], done[0]) == (1, 60)


def test_a_downgrade_leaves_no_second_node_behind(client_of: Clients, url: str, kazoo: KazooClient) -> None:
    alice, bob = client_of(url), client_of(url)
    lease = alice.rwlock("x").write().acquire()
    waits: list[lockline.Lease] = []
    reader = threading.Thread(target=lambda: waits.append(bob.rwlock("x").read().acquire(timeout=60)))
    reader.start()
    wait_for(lambda: len(alice.inspect("x").claims) == 2)
    lease.downgrade()
    reader.join(60)
    assert len(alice.inspect("x").holders) == 2
    assert len(kazoo.get_children(f"{chroot(url)}/x")) == 3
    waits[0].release()
    lease.release()
    assert kazoo.get_children(f"{chroot(url)}/x") == []


def test_foreign_nodes_in_the_folder_are_no_claims(client_of: Clients, url: str, kazoo: KazooClient) -> None:
    kazoo.ensure_path(f"{chroot(url)}/x/somebody-elses")
    client = client_of(url)
    lease = client.lock("x").acquire(timeout=60)
    assert len(client.inspect("x").claims) == 1
    lease.release()
    kazoo.delete(f"{chroot(url)}/x", recursive=True)


def test_a_claim_whose_node_was_made_this_very_moment_is_not_taken_for_one_that_has_run_out(
    client_of: Clients, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(url)
    client.lock("first").acquire().release()
    backend = client._engine.backend
    begin = OwnNode.begin

    def look_round_and_begin(node: OwnNode, session: Session, token: int, sent: float) -> None:
        # As the worker would, which comes whenever something else is due.
        run(backend._beat())  # type: ignore[attr-defined]
        begin(node, session, token, sent)

    monkeypatch.setattr(OwnNode, "begin", look_round_and_begin)
    lease = client.lock("x").acquire()
    assert len(client.inspect("x").holders) == 1
    lease.release()


def test_a_wait_that_timed_out_leaves_nothing_in_the_clients_memory(client_of: Clients, url: str) -> None:
    holder, client = client_of(url), client_of(url)
    held = holder.lock("x").acquire()
    for _ in range(20):
        # A server that is too busy to answer in this time is another reason to give up, and leaves as little.
        with pytest.raises((lockline.AcquireTimeout, lockline.BackendUnavailable)):
            client.lock("x").acquire(timeout=0.01)
    backend = client._engine.backend
    wait_for(lambda: not any(list(backend._subscription._waiters.values())), 60, "no watch")  # type: ignore[attr-defined]
    wait_for(lambda: not backend._nodes, 60, "no node")  # type: ignore[attr-defined]
    held.release()


def test_a_line_where_somebody_always_waits_leaves_nothing_of_the_past_in_the_clients_memory(
    client_of: Clients, url: str
) -> None:
    client = client_of(url)
    watching = client._engine.backend._subscription  # type: ignore[attr-defined]
    most: list[int] = []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            with client.lock("x"):
                most.append(sum(map(len, watching._gone.values())))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(most) >= sample(200, 400), 120, "many grants")
    done.set()
    for thread in threads:
        thread.join(60)
    assert max(most) <= 100
    # Many a watch came too late for the node that it was meant for.
    assert [watching._waiters, watching._gone, watching._waiting] == [{}, {}, {}]


STRANGE = [
    b"[1,2,3,4,5]",
    b'[null,"lock",null,null,[1]]',
    b'["o","lock","x","y",{}]',
    b'["o","lock",NaN,Infinity,null]',
    b'["o","lock",1e999,-1e300,null]',
    b'["o","lock",1,1,"text"]',
    b"[" * 100_000,
]


def test_what_a_stranger_wrote_into_a_node_breaks_no_message_and_no_operators_look(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    """Longer than 5 s: so is the time in which each acquire gets an answer, also of a busy server; they wait side by side."""
    client = client_of(url)
    names = [f"x{number}" for number in range(len(STRANGE))]
    for name, data in zip(names, STRANGE, strict=True):
        kazoo.ensure_path(f"{chroot(url)}/{name}")
        kazoo.create(f"{chroot(url)}/{name}/1.1.stranger.", data, sequence=True)

    def given_up(name: str) -> str:
        with pytest.raises(lockline.AcquireTimeout) as late:
            client.lock(name).acquire(timeout=5)
        return str(late.value)

    with ThreadPoolExecutor(len(names)) as threads:
        assert all(threads.map(given_up, names))
    for name in names:
        (held,) = client.inspect(name).holders
        assert (held.owner, held.meta) == ("?", None)
        assert client.evict(name, token=held.token) == 1


def test_a_claim_whose_ttl_is_over_is_not_renewed_though_its_node_is_still_there(
    client_of: Clients, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node stands until somebody removes it; here the client's own worker has not come to that yet."""
    backend: Any = client_of(url)._engine.backend

    async def remove_nothing() -> float:
        return float("inf")

    monkeypatch.setattr(backend._worker, "_look_round", remove_nothing)
    until = backend._runtime.now() + 60
    claim = Claim("x", "late-1", "alice", "lock", 1, 1, 60.0, time.time(), "")
    assert isinstance(run(backend.enter(claim, wait=False, until=until)), Grant)
    backend._claims.nodes[claim.id].expires = backend._runtime.now()
    assert isinstance(run(backend.renew([claim], until))[0], Gone)


def test_a_node_that_another_session_has_made_is_not_taken_for_ones_own(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    """It will go with that session, at any time. A request of a session that has ended may have made it, unheard."""
    client = client_of(url)
    client.lock("x").acquire().release()
    backend: Any = client._engine.backend
    until = backend._runtime.now() + 60
    claim = Claim("x", "late-1", "alice", "lock", 1, 1, 60.0, time.time(), "")
    path = kazoo.create(
        f"{chroot(url)}/x/{node_name(1, 1, claim.id)}", b"", ephemeral=True, sequence=True, makepath=True
    )
    node = OwnNode(claim, backend._commands.parent("x"))
    assert not run(backend._maker._find(node, until))
    assert node.path is None
    assert not kazoo.exists(path)
