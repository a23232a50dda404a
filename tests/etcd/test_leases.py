"""etcd's leases: what happens when one dies, and when a renewal may not be trusted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import lockline
from lockline.backends.etcd.channel import Answered, Way
from lockline.backends.etcd.claims import EtcdClaim
from lockline.backends.etcd.leases import LeaseRenewal, ServerLease
from lockline.core.claim import Claim, Gone, Grant, Waiting
from lockline.errors import BackendUnavailable
from lockline.runtime.blocking import run

from ..servers.etcd import EtcdCluster
from ..servers.process import wait_for
from .conftest import backend_of, keys_under, leases_of, post

Clients = Callable[..., lockline.Client]
server = pytest.mark.server


def _revoke(etcd: EtcdCluster, client: lockline.Client) -> None:
    for lease in leases_of(client):
        post(etcd, "kv/lease/revoke", ID=str(lease.id))


async def _wait(client: lockline.Client, claim: Claim, until: float) -> Grant | Waiting | Gone:
    """As the core waits, for a claim that it knows nothing of."""
    hints, backend = client._engine._hints, backend_of(client)
    hints.expect(claim.id)
    while True:
        answer = await backend.place(claim, until)
        if not isinstance(answer, Waiting) or not await hints.wait(claim.id, min(until, answer.look_by)):
            return answer


@server
@pytest.mark.usefixtures("no_net")
def test_a_waiter_whose_lease_was_revoked_is_told(url: str, etcd: EtcdCluster, client_of: Clients) -> None:
    holder, waiter = client_of(url), client_of(url)
    lease = holder.lock("x", ttl=600).acquire()
    backend = backend_of(waiter)
    claim = Claim("x", "me-1", "me", "lock", 1, 1, 600.0, 0.0, "")
    now = backend._runtime.now
    assert isinstance(run(backend.enter(claim, wait=True, until=now() + 60)), Waiting)
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(run(_wait(waiter, claim, now() + 3600))), daemon=True)
    thread.start()
    wait_for(lambda: backend._watches.at_home and backend._watches._by_claim, 60, "the wait")
    _revoke(etcd, waiter)
    thread.join(60)
    (answer,) = answers
    assert isinstance(answer, Gone)
    lease.release()


@server
def test_a_waiter_without_its_lease_is_not_granted_but_stands_again(
    url: str, etcd: EtcdCluster, client_of: Clients
) -> None:
    holder, waiter = client_of(url), client_of(url)
    lease = holder.lock("x", ttl=60).acquire()
    granted: list[lockline.Lease] = []
    thread = threading.Thread(target=lambda: granted.append(waiter.lock("x", ttl=60).acquire(timeout=60)), daemon=True)
    thread.start()
    wait_for(lambda: len(holder.inspect("x").waiters) == 1)
    (before,) = holder.inspect("x").waiters
    _revoke(etcd, waiter)
    wait_for(lambda: [w.id for w in holder.inspect("x").waiters] not in ([], [before.id]), 60, "a new place")
    assert not granted
    lease.release()
    thread.join(60)
    assert granted[0].valid
    assert granted[0].token > before.token
    granted[0].release()


@server
def test_a_holder_whose_lease_was_revoked_knows_it_soon_and_the_client_lives_on(
    url: str, etcd: EtcdCluster, client_of: Clients
) -> None:
    client = client_of(url)
    lease = client.lock("x", ttl=600).acquire()
    other = client.lock("y", ttl=600).acquire()
    wait_for(lambda: backend_of(client)._watches.at_home, 60, "the watch of its own keys")
    _revoke(etcd, client)
    # No session key was needed so far; the keys themselves are gone, which a renewal would find after a third of the ttl.
    with client.lock("z", ttl=600) as fresh:
        assert fresh.token > other.token
    wait_for(lambda: lease.lost.is_set() and other.lost.is_set(), 60, "the loss of both")
    with client.lock("x", ttl=600) as again:
        assert again.token > lease.token
        with pytest.raises(lockline.LeaseLost):
            lease.release()
        assert again.valid


@server
def test_a_claim_that_was_withdrawn_on_its_way_does_not_arrive_later(
    url: str, etcd: EtcdCluster, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is held up, the caller gives up and withdraws, and only then the request reaches etcd."""
    client = client_of(url)
    client.lock("warm").acquire().release()
    backend = backend_of(client)
    channel = backend._channel
    transact = channel.transact
    held_up = []

    async def no_answer(request: object, until: float, **how: object) -> Answered:
        held_up.append(request)
        monkeypatch.setattr(channel, "transact", transact)
        raise BackendUnavailable("held up")

    monkeypatch.setattr(channel, "transact", no_answer)
    with pytest.raises(BackendUnavailable):
        client.lock("x").acquire(timeout=0)  # with more time it would ask again
    (request,) = held_up
    late = run(transact(request, backend._runtime.now() + 60)).answer
    assert not late.succeeded
    assert not client.inspect("x").claims
    with client.lock("x"):
        pass


@server
def test_a_try_that_was_repeated_leaves_nothing_that_could_arrive_later(
    url: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, client = client_of(url), client_of(url)
    client.lock("warm").acquire().release()
    lease = holder.lock("x").acquire()
    channel = backend_of(client)._channel
    transact = channel.transact
    sent = []

    async def twice(request: object, until: float, **how: Any) -> Answered:
        sent.append(request)
        return (await transact(request, until, **how))._replace(repeated=True)

    monkeypatch.setattr(channel, "transact", twice)
    assert client.lock("x").try_acquire() is None
    monkeypatch.undo()
    lease.release()
    late = run(transact(sent[0], holder._engine.runtime.now() + 60)).answer
    assert not late.succeeded
    assert not client.inspect("x").claims


@server
@pytest.mark.usefixtures("one_lease")
def test_claims_with_short_ttls_end_in_time_though_the_lease_goes_on(
    url: str, etcd: EtcdCluster, client_of: Clients
) -> None:
    """Longer than 5 s: so is the ttl, within which the first answer has to come."""
    client, other = client_of(url), client_of(url)
    kept, ttl = client.lock("kept", ttl=60).acquire(), 5.0
    began = time.monotonic()
    dropped = client.lock("x", ttl=ttl, renew=False).acquire()
    assert len(leases_of(client)) == 1
    # The lease is renewed for as long as there is another claim on it.
    other.lock("x").acquire(timeout=60).release()
    assert not dropped.valid
    assert time.monotonic() - began >= ttl * 0.99
    assert kept.valid
    kept.release()
    assert not keys_under(etcd, url.rpartition("/")[2] + "/claims/")


def test_a_renewal_counts_only_in_the_term_that_a_quorum_confirmed_after_it() -> None:
    """A deposed leader that does not know it yet says yes to renewals that the new one never hears of."""
    lease = ServerLease(1, 11, good_until=100.0)
    assert not LeaseRenewal([lease], 200.0, term=4).confirm(5)
    assert lease.good_until == 100.0
    assert not LeaseRenewal([lease], 200.0, term=-1).confirm(5)
    assert LeaseRenewal([lease], 200.0, term=5).confirm(5)
    assert lease.good_until == 211.0


@server
def test_a_renewal_in_an_old_term_is_asked_for_again(
    url: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(url)
    lease = client.lock("x", ttl=30).acquire()
    backend = backend_of(client)
    renew = backend._leases.renew
    terms: list[int | None] = []

    async def deposed(leases: object, until: float, **how: Any) -> LeaseRenewal:
        renewal = await renew(leases, until, **how)  # type: ignore[arg-type]
        if len(terms) < 2 and renewal.term is not None:
            renewal.term -= 1
        terms.append(renewal.term)
        return renewal

    monkeypatch.setattr(backend._leases, "renew", deposed)
    lease.extend(30)
    assert len(terms) == 3
    lease.release()


@server
@pytest.mark.usefixtures("one_lease")
def test_a_release_that_found_no_server_is_made_good_though_the_lease_lives_on(
    url: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim's key hangs on a lease that other claims keep alive: waiting for its end would mean for ever.

    Longer than 5 s: so is the ttl, within which the first answer has to come.
    """
    client, other = client_of(url), client_of(url)
    kept = client.lock("kept", ttl=60).acquire()
    lease = client.lock("x", ttl=5.0).acquire()
    assert len(leases_of(client)) == 1
    backend = backend_of(client)
    delete = backend._claims._delete
    until_then = time.monotonic() + 5.5

    async def no_answer(batch: list[EtcdClaim], way: Way, until: float) -> dict[str, bool]:
        if time.monotonic() < until_then and any(own.claim.name == "x" for own in batch):
            raise BackendUnavailable("nobody is there")
        return await delete(batch, way, until)

    monkeypatch.setattr(backend._claims, "_delete", no_answer)
    # On a machine that stood still for its ttl it is lost by now, and its claim stays as well.
    with pytest.raises((BackendUnavailable, lockline.LeaseLost)):
        lease.release()
    wait_for(lambda: not other.inspect("x").claims, 60, "the end of the claim")
    assert time.monotonic() > until_then
    assert kept.valid
    kept.release()
