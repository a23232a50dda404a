"""Claims that end together, holders that are evicted by their token, and calls that never went out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import lockline
from lockline import aio
from lockline.backends.etcd.channel import Answered
from lockline.backends.etcd.claims import REMOVED_TOGETHER
from lockline.backends.etcd.leases import lease_seconds
from lockline.core.claim import Claim, Grant
from lockline.errors import BackendUnavailable
from lockline.runtime.blocking import run

from ..servers.etcd import EtcdCluster
from ..servers.process import free_port, wait_for
from ..servers.proxy import Proxy
from ..tier import sample
from .conftest import backend_of, keys_under, leases_of, post, text

Clients = Callable[..., lockline.Client]
server = pytest.mark.server


def _claim(number: int, name: str = "x", ttl: float = 60.0) -> Claim:
    return Claim(f"{name}{number}", f"id-{name}-{number}", "me", "lock", 1, 1, ttl, 0.0, "")


def _transactions(etcd: EtcdCluster) -> float:
    metrics = etcd.members[0].metrics()
    return sum(value for key, value in metrics.items() if "handled_total" in key and '"Txn"' in key)


@server
def test_very_many_claims_leave_in_few_transactions(url: str, etcd: EtcdCluster, client_of: Clients) -> None:
    count = sample(150, 1000)
    client = client_of(url)
    backend = backend_of(client)
    now = backend._runtime.now
    claims = [_claim(number) for number in range(count)]
    for claim in claims[:-1]:
        assert isinstance(run(backend.enter(claim, wait=True, until=now() + 60)), Grant)
    before = _transactions(etcd)
    fates = run(backend.leave_all(claims, now() + 60))
    assert _transactions(etcd) - before <= count / REMOVED_TOGETHER + 3
    assert list(fates) == [True] * (count - 1) + [False]
    assert not keys_under(etcd, f"{url.rpartition('/')[2]}/claims/")
    assert not backend._claims.standing()
    assert list(run(backend.leave_all(claims[:3], now() + 60))) == [False] * 3


@server
def test_claims_that_are_still_under_way_do_not_arrive_after_all_have_left(
    url: str, etcd: EtcdCluster, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(url)
    backend = backend_of(client)
    channel, now = backend._channel, backend._runtime.now
    run(backend.enter(_claim(0), wait=True, until=now() + 60))
    transact = channel.transact
    held_up = []

    async def no_answer(request: object, until: float, **how: object) -> Answered:
        held_up.append(request)
        raise BackendUnavailable("held up")

    monkeypatch.setattr(channel, "transact", no_answer)
    for number in range(1, 90):
        with pytest.raises(BackendUnavailable) as told:
            run(backend.enter(_claim(number), wait=True, until=now() + 1))
        assert not told.value.unsent
    monkeypatch.undo()
    assert list(run(backend.leave_all([_claim(number) for number in range(90)], now() + 60))) == [True] + [False] * 89
    for request in held_up:
        assert not run(transact(request, now() + 60)).answer.succeeded
    assert not keys_under(etcd, f"{url.rpartition('/')[2]}/claims/")
    assert not backend._claims._claims


@server
def test_a_claim_that_an_operator_removed_is_told_apart_among_many_that_leave(url: str, client_of: Clients) -> None:
    client, operator = client_of(url), client_of(url)
    backend = backend_of(client)
    now = backend._runtime.now
    claims = [_claim(number) for number in range(5)]
    for claim in claims:
        run(backend.enter(claim, wait=True, until=now() + 60))
    assert operator.evict("x2") == 1
    assert list(run(backend.leave_all(claims, now() + 60))) == [True, True, False, True, True]


@server
def test_an_eviction_by_token_takes_that_holder_or_nobody(url: str, client_of: Clients) -> None:
    client, operator = client_of(url), client_of(url)
    leases = [client.semaphore("x", limit=3).acquire() for _ in range(3)]
    waiting: list[lockline.Lease] = []
    thread = threading.Thread(target=lambda: waiting.append(client.semaphore("x", limit=3).acquire(timeout=60)))
    thread.start()
    wait_for(lambda: operator.inspect("x").waiters)
    (waiter,) = operator.inspect("x").waiters
    assert operator.evict("x", token=waiter.token) == 0
    assert operator.evict("x", token=waiter.token + 1000) == 0
    assert operator.evict("x", token=leases[1].token) == 1
    wait_for(leases[1].lost.is_set, 60, "the loss")
    assert operator.evict("x", token=leases[1].token) == 0
    thread.join(60)
    assert waiting[0].token == waiter.token
    assert leases[0].valid
    assert leases[2].valid
    for lease in (leases[0], leases[2], waiting[0]):
        lease.release()


@server
def test_a_lease_whose_grant_was_never_heard_of_is_found_again(single: EtcdCluster, client_of: Clients) -> None:
    """Otherwise each try would leave another lease behind, and on a slow server none would ever be had."""
    with Proxy(("127.0.0.1", single.members[0].port)) as proxy:
        client = client_of(f"etcd://127.0.0.1:{proxy.port}/grant")
        before = {lease["ID"] for lease in post(single, "lease/leases").get("leases", [])}
        proxy.drop_reply(skip=1)  # the first packet opens the connection
        with client.lock("x", ttl=60).acquire(timeout=60) as lease:
            assert lease.valid
            after = {lease["ID"] for lease in post(single, "lease/leases").get("leases", [])}
            assert proxy.lost == 1
            assert after - before == {str(lease.id) for lease in leases_of(client)}
            assert lease_seconds(60) == leases_of(client)[0].seconds


@pytest.mark.parametrize("members", [1, 3])
def test_what_does_not_insist_says_soon_that_nobody_is_there(client_of: Clients, members: int) -> None:
    hosts = ",".join(f"127.0.0.1:{free_port()}" for _ in range(members))
    client = client_of(f"etcd://{hosts}")
    backend = backend_of(client)
    now = backend._runtime.now
    claim = _claim(1)
    calls: dict[str, Callable[[float], object]] = {
        "try": lambda until: run(backend.enter(claim, wait=False, until=until)),
        "leave_all": lambda until: run(backend.leave_all([claim], until)),
        "look": lambda until: run(backend.look("x", until)),
        "list": lambda until: run(backend.list("", until)),
        "evict": lambda until: run(backend.evict("x", until)),
        "examine": lambda until: run(backend.examine(until)),
    }
    for name, call in calls.items():
        with pytest.raises(BackendUnavailable, match=r"cannot be reached.*refused") as told:
            call(now() + 3600)  # one that insists hangs here
        assert told.value.unsent, name
        assert not told.value.permanent, name


def test_what_does_not_insist_says_soon_in_tasks_too() -> None:
    async def scene() -> None:
        async with aio.connect(f"etcd://127.0.0.1:{free_port()}") as client:
            until = client._engine.runtime.now() + 3600
            asked = (client._engine.backend.look(f"x{n}", until) for n in range(20))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(answer, BackendUnavailable) and answer.unsent for answer in answers)

    asyncio.run(scene())


def test_what_insists_tries_until_its_deadline_and_says_that_nothing_went_out(client_of: Clients) -> None:
    backend = backend_of(client_of(f"etcd://127.0.0.1:{free_port()}"))
    now = backend._runtime.now
    began = now()
    with pytest.raises(BackendUnavailable) as told:
        run(backend.enter(_claim(1), wait=True, until=began + 1))
    assert told.value.unsent
    assert now() - began > 0.8
    assert not backend._claims._claims


@server
def test_a_request_that_may_have_arrived_does_not_count_as_unsent(single: EtcdCluster, client_of: Clients) -> None:
    with Proxy(("127.0.0.1", single.members[0].port)) as proxy:
        client = client_of(f"etcd://127.0.0.1:{proxy.port}/sent")
        client.lock("warm", ttl=60).acquire().release()
        backend = backend_of(client)
        now = backend._runtime.now
        proxy.black_hole()
        began = now()
        with pytest.raises(BackendUnavailable, match="no answer in time") as told:
            run(backend.enter(_claim(1, ttl=60.0), wait=False, until=began + 1))
        assert not told.value.unsent
        assert now() - began > 0.8
        # Neither does one that got an answer to its claim and none to the question after it.
        proxy.heal()
        holder = client_of(f"{single.url}/sent")
        lease = holder.lock("y2", ttl=60).acquire()
        claim = _claim(2, "y")
        assert not isinstance(run(backend.enter(claim, wait=True, until=now() + 60)), Grant)
        backend._claims.get(claim.id).ahead = None  # type: ignore[union-attr]
        proxy.refuse()
        proxy.cut()
        link = backend._channel.link
        assert link is not None
        wait_for(lambda: link.glance() or link.grpc.broken, 60, "the end of the connection")  # type: ignore[func-returns-value]
        with pytest.raises(BackendUnavailable):
            run(backend.place(claim, now() + 0.6))
        proxy.heal()
        lease.release()


@server
def test_a_renewal_is_confirmed_by_what_a_quorum_has_written(url: str, etcd: EtcdCluster, client_of: Clients) -> None:
    """Some releases answer reads from an old state after a pause; a write goes through the log, or gets no answer."""
    client = client_of(url)
    lease = client.lock("x", ttl=60).acquire()
    lease.extend(60)  # the first one also writes the token down

    def counted() -> tuple[float, int]:
        written = etcd.members[0].metrics()["etcd_server_proposals_applied_total"]
        return written, int(post(etcd, "kv/range", key=text("nothing"))["header"]["revision"])

    before, revision = counted()
    for _ in range(3):
        lease.extend(60)
    after, same = counted()
    assert after - before >= 3
    assert same == revision  # nothing is changed by it, and nobody who watches is woken
    lease.release()


@server
@pytest.mark.usefixtures("one_lease")
def test_cancelling_every_other_task_leaves_nothing_standing_that_nobody_renews(url: str) -> None:
    """A claim whose time is over, on a lease that another claim keeps alive: only its own client can remove it."""

    async def scene() -> None:
        async with aio.connect(url) as client, aio.connect(url) as other:
            kept = await client.lock("kept", ttl=60).acquire()
            claim = _claim(1, ttl=1.0)
            backend = client._engine.backend
            assert isinstance(await backend.enter(claim, wait=False, until=client._engine.runtime.now() + 60), Grant)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            async with asyncio.timeout(60):
                while (await other.inspect(claim.name)).claims:  # noqa: ASYNC110 - the server has the only event
                    await asyncio.sleep(0.05)
            assert kept.valid
            await kept.release()

    asyncio.run(scene())
