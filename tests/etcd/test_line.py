"""Lines in etcd: keys, places, tokens, and what is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import lockline
from lockline.backends.etcd.leases import lease_seconds
from lockline.core import waiting
from lockline.core.claim import Claim, Gone, Grant
from lockline.runtime.blocking import run

from ..servers.etcd import EtcdCluster
from ..servers.process import wait_for
from .conftest import backend_of, keys_under, leases_of, post, text

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


def test_a_lock_and_one_with_a_longer_name_have_nothing_to_do_with_each_other(url: str, client_of: Clients) -> None:
    client = client_of(url)
    with client.lock("a"), client.lock("a/b"), client.lock("a/"), client.lock("a%2Fb"), client.lock("A"):
        assert client.list() == sorted(["A", "a", "a%2Fb", "a/", "a/b"])
        assert client.list("a/") == ["a/", "a/b"]
        assert len(client.inspect("a").claims) == 1


def test_two_threads_of_one_client_exclude_each_other(url: str, client_of: Clients) -> None:
    client, inside, most = client_of(url), 0, 0
    mutex = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(10):
            with client.lock("x"):
                with mutex:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.001)
                with mutex:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert most == 1


def test_nothing_is_left_but_one_fence_whatever_the_number_of_names(
    url: str, etcd: EtcdCluster, client_of: Clients
) -> None:
    client = client_of(url)
    prefix = url.rpartition("/")[2]
    for number in range(20):
        with client.lock(f"x{number}"):
            assert client.lock(f"x{number}").try_acquire() is None
    blocked = client_of(url)
    # A server that is too busy to answer in this time is another reason to give up, and leaves as little.
    with client.lock("y"), pytest.raises((lockline.AcquireTimeout, lockline.BackendUnavailable)):
        blocked.lock("y").acquire(timeout=1)
    wait_for(lambda: [k for k in keys_under(etcd, f"{prefix}/") if "/session/" not in k] == [f"{prefix}/fence"])
    client.close()
    blocked.close()
    assert keys_under(etcd, f"{prefix}/") == [f"{prefix}/fence"]


def test_a_token_is_the_version_of_the_fence(url: str, etcd: EtcdCluster, client_of: Clients) -> None:
    client = client_of(url)
    tokens = [client.lock(name).acquire() for name in ("a", "b", "c")]
    assert [lease.token for lease in tokens] == [1, 2, 3]
    found = post(etcd, "kv/range", key=text(url.rpartition("/")[2] + "/fence"))
    assert found["kvs"][0]["version"] == "3"
    for lease in tokens:
        lease.release()


def test_others_see_the_tokens_of_young_and_of_old_claims_even_after_compaction(
    url: str, etcd: EtcdCluster, client_of: Clients
) -> None:
    holder, other = client_of(url), client_of(url)
    old = holder.lock("x", ttl=60).acquire()
    old.extend(60)
    assert all(own.written == own.granted for own in backend_of(holder)._claims.standing())
    young = holder.lock("y", ttl=60).acquire()
    assert other.inspect("y").holders[0].token == young.token
    revision = int(post(etcd, "kv/range", key=text("nothing"))["header"]["revision"])
    post(etcd, "kv/compaction", revision=revision)
    assert other.inspect("x").holders[0].token == old.token
    for lease in (old, young):
        lease.release()


def test_the_users_own_transaction_fails_once_the_lease_is_gone(
    url: str, etcd: EtcdCluster, client_of: Clients
) -> None:
    client = client_of(url)
    lease = client.lock("x").acquire()
    guard = lease.guard()
    write = [{"request_put": {"key": text("data/x"), "value": text("1")}}]
    assert post(etcd, "kv/txn", compare=[guard], success=write)["succeeded"] is True
    client.evict("x")
    with client_of(url).lock("x"):
        assert post(etcd, "kv/txn", compare=[guard], success=write).get("succeeded", False) is False
    with pytest.raises(lockline.LeaseLost):
        lease.release()


def test_an_extension_beyond_the_lease_moves_the_claim_to_a_longer_one(url: str, client_of: Clients) -> None:
    client = client_of(url)
    lease = client.lock("x", ttl=10).acquire()
    (short,) = leases_of(client)
    lease.extend(60)
    longer = max(leases_of(client), key=lambda lease: lease.seconds)
    assert longer.seconds >= 60 > short.seconds
    assert client_of(url).inspect("x").holders[0].remaining > 30
    assert lease.remaining() > 30
    lease.release()


@pytest.mark.parametrize("ttl", [0.001, 0.9, 1, 1.5, 10, 29.9, 30, 3600, 86400 * 30])
def test_a_lease_outlives_the_ttl_and_not_by_much(ttl: float) -> None:
    seconds = lease_seconds(ttl)
    assert ttl * 1.1 <= seconds <= max(1, ttl * 1.1 * 1.1 + 1)


def test_the_number_of_leases_is_bounded() -> None:
    assert len({lease_seconds(ttl / 10) for ttl in range(1, 100_000)}) < 300


def test_foreign_keys_among_the_claims_hold_nothing_and_stay(
    url: str, etcd: EtcdCluster, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy server may take longer than that to say how many were ahead.
    monkeypatch.setattr(waiting, "LAST_LOOK", 60.0)
    client, other = client_of(url), client_of(url)
    line = f"{url.rpartition('/')[2]}/claims/x/"
    nine = '["a","b","c","d",1,1,"e","f",1]'
    values = [text(value) for value in ("", "hello", "5", "{}", '"nine chars"', "[]", nine, "[" * 100_000, b"\xff")]
    with client.lock("x") as lease:
        (claim,) = post(etcd, "kv/range", key=text(line), range_end=text(line[:-1] + "0"))["kvs"]
        # The last is a claim, but on no lease: a copy that somebody made would stand for ever.
        for number, value in enumerate([*values, claim["value"]]):
            post(etcd, "kv/put", key=text(f"{line}{number}"), value=value)
        assert other.lock("x").try_acquire() is None
        with pytest.raises(lockline.AcquireTimeout) as late:
            other.lock("x").acquire(timeout=5)  # with time for an answer, also of a busy server
        assert late.value.ahead == 1
        # What could not be withdrawn within a quarter of a second is withdrawn a moment later.
        wait_for(lambda: [held.token for held in other.inspect("x").claims] == [lease.token], 60, "the withdrawal")
        assert other.list() == ["x"]
    assert client.list() == []
    assert client.inspect("x").claims == ()
    assert client.evict("x") == 0
    for lock in (client.lock("x"), client.semaphore("x", limit=2), client.rwlock("x").write()):
        with lock.acquire(timeout=60):
            pass
        tried = lock.try_acquire()
        assert tried is not None
        assert other.evict("x") == 1
        wait_for(tried.lost.is_set, 60, "the loss")
    assert len(keys_under(etcd, line)) == len(values) + 1


def test_a_claim_that_somebody_overwrites_is_lost_with_the_next_renewal(
    url: str, etcd: EtcdCluster, client_of: Clients
) -> None:
    """On no lease it holds nothing in the eyes of others, and one of them may be at work by then."""
    lease = client_of(url).lock("x", ttl=6).acquire()
    (key,) = keys_under(etcd, f"{url.rpartition('/')[2]}/claims/x/")
    post(etcd, "kv/put", key=text(key), value=text("junk"))
    with client_of(url).lock("x", ttl=30).acquire(timeout=60) as after:
        assert after.token > lease.token
        wait_for(lease.lost.is_set, 60, "the loss")


def test_a_release_leaves_alone_what_was_put_in_the_place_of_its_claim(
    url: str, etcd: EtcdCluster, client_of: Clients
) -> None:
    """The create revision tells the claim from a key of the same name: one that a backup brought back, or another hand."""
    lease = client_of(url).lock("x", ttl=600, renew=False).acquire()
    line = f"{url.rpartition('/')[2]}/claims/x/"
    (key,) = keys_under(etcd, line)
    post(etcd, "kv/deleterange", key=text(key))
    post(etcd, "kv/put", key=text(key), value=text("junk"))
    with pytest.raises(lockline.LeaseLost):
        lease.release()
    assert keys_under(etcd, line) == [key]


def test_a_claim_whose_ttl_is_over_is_not_renewed_though_it_could_not_be_removed(
    url: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd's lease goes on for longer than the claim's ttl, and the client got no answer when it tried to remove the claim."""
    backend = backend_of(client_of(url))
    until = backend._runtime.now() + 60
    claim = Claim("x", "late-1", "alice", "lock", 1, 1, 1.0, time.time(), "")
    assert isinstance(run(backend.enter(claim, wait=False, until=until)), Grant)

    async def silence(batch: object, until: float) -> dict[str, bool]:
        raise lockline.BackendUnavailable("no answer")

    monkeypatch.setattr(backend._claims, "remove", silence)
    time.sleep(claim.ttl)
    assert isinstance(run(backend.renew([claim._replace(ttl=60.0)], until))[0], Gone)
