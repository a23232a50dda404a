"""Answers that are lost and requests that arrive late: each does its work once, and takes nothing back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockline
from lockline.backends.etcd.channel import Answered
from lockline.runtime.blocking import run

from ..servers.etcd import EtcdCluster
from ..servers.process import free_port, wait_for
from ..servers.proxy import Proxy
from .conftest import backend_of, keys_under, leases_of, post, text

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


@pytest.fixture
def proxy(etcd: EtcdCluster) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", etcd.members[0].port)) as proxy:
        yield proxy


@pytest.fixture
def through(url: str, proxy: Proxy) -> str:
    """The same place, by way of the proxy."""
    return f"etcd://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}"


def _compact(etcd: EtcdCluster) -> None:
    revision = int(post(etcd, "kv/range", key=text("nothing"))["header"]["revision"])
    post(etcd, "kv/compaction", revision=revision)


def test_a_claim_whose_token_was_compacted_away_takes_a_fresh_one(
    url: str, through: str, etcd: EtcdCluster, proxy: Proxy, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the acquire is lost; before it is repeated others take tokens, and etcd forgets the past."""
    client, other = client_of(through), client_of(url)
    client.lock("warm").acquire().release()
    channel = backend_of(client)._channel
    sleep = channel._runtime.sleep
    others: list[int] = []

    async def forgetful(seconds: float) -> None:
        if not others:
            with other.lock("other") as lease:
                others.append(lease.token)
            _compact(etcd)
        await sleep(seconds)

    # The pause between a request and its repetition.
    monkeypatch.setattr(channel._runtime, "sleep", forgetful)
    proxy.drop_reply(b"/claims/x/")
    with client.lock("x").acquire(timeout=60) as lease:
        assert proxy.lost == 1
        assert lease.token > others[0]
        (held,) = other.inspect("x").claims
        assert held.token == lease.token
    assert not other.inspect("x").claims


def test_an_eviction_whose_answer_was_lost_is_counted_and_spares_the_next(
    url: str, through: str, proxy: Proxy, client_of: Clients
) -> None:
    holder, waiter, operator = client_of(url), client_of(url), client_of(through)
    lease = holder.lock("x", ttl=60).acquire()
    granted: list[lockline.Lease] = []
    thread = threading.Thread(target=lambda: granted.append(waiter.lock("x", ttl=60).acquire(timeout=60)), daemon=True)
    thread.start()
    wait_for(lambda: holder.inspect("x").waiters)
    proxy.drop_reply(b"/evicted/")
    assert operator.evict("x") == 1
    assert proxy.lost == 1
    wait_for(lease.lost.is_set, 60, "the loss")
    thread.join(60)
    assert [held.token for held in operator.inspect("x").claims] == [granted[0].token]
    granted[0].release()


def test_a_release_that_did_not_go_out_at_first_does_not_pass_for_one_whose_answer_was_lost(
    url: str, through: str, proxy: Proxy, client_of: Clients
) -> None:
    """The connection is gone, the next member too, and meanwhile an operator has taken the claim away."""
    hosts, _, prefix = through.rpartition("/")
    client, operator = client_of(f"{hosts},127.0.0.1:{free_port()}/{prefix}"), client_of(url)
    channel = backend_of(client)._channel
    channel._at = 0
    lease = client.lock("x", ttl=60).acquire()
    proxy.cut()
    wait_for(lambda: channel.link is None or channel.link.grpc.broken, 60, "the end of the connection")
    assert operator.evict("x") == 1
    with pytest.raises(lockline.LeaseLost):
        lease.release()


def test_an_evicted_claim_that_was_entered_twice_leaves_no_note(
    url: str, through: str, etcd: EtcdCluster, proxy: Proxy, client_of: Clients
) -> None:
    client, operator = client_of(through), client_of(url)
    client.lock("warm").acquire().release()
    proxy.drop_reply(b"/claims/x/")
    lease = client.lock("x", ttl=60).acquire(timeout=60)
    assert operator.evict("x") == 1
    wait_for(lease.lost.is_set, 60, "the loss")
    prefix = f"{url.rpartition('/')[2]}/"
    wait_for(lambda: not [key for key in keys_under(etcd, prefix) if "/evicted/" in key], 60, "the end of the note")


def test_a_renewal_that_was_long_under_way_does_not_take_back_an_extension(
    url: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(url)
    lease = client.lock("x", ttl=20).acquire()
    channel = backend_of(client)._channel
    transact = channel.transact
    sent: list[object] = []

    async def noted(request: object, until: float, **how: Any) -> Answered:
        sent.append(request)
        return await transact(request, until, **how)

    monkeypatch.setattr(channel, "transact", noted)
    lease.extend(20)
    monkeypatch.undo()
    lease.extend(60)
    for request in sent:
        run(transact(request, backend_of(client)._runtime.now() + 60))
    assert client_of(url).inspect("x").holders[0].remaining > 30
    lease.extend(120)
    assert client_of(url).inspect("x").holders[0].remaining > 90
    lease.release()


def test_a_lost_answer_to_a_renewal_is_no_loss(through: str, proxy: Proxy, client_of: Clients) -> None:
    client = client_of(through)
    lease = client.lock("x", ttl=60).acquire()
    proxy.drop_reply(b"/claims/x/")
    lease.extend(120)
    assert proxy.lost == 1
    assert lease.remaining() > 90
    assert client.inspect("x").holders[0].token == lease.token
    lease.release()


def test_leases_are_given_back_at_the_end_though_one_of_them_is_gone(
    url: str, etcd: EtcdCluster, client_of: Clients
) -> None:
    client = client_of(url)
    for ttl in (60, 600):
        client.lock("x", ttl=ttl).acquire().release()
    first, second = leases_of(client)
    post(etcd, "lease/revoke", ID=str(first.id))
    client.close()
    assert str(second.id) not in [lease["ID"] for lease in post(etcd, "lease/leases").get("leases", [])]
