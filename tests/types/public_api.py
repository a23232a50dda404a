"""Every public name with its exact type, as `mypy --strict` and pyright see it. Nothing here runs; `make check` reads it.

What stands here is promised: a line that no longer checks is a change that a user's own type checker would notice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Literal, NoReturn, assert_type

import lockline
from lockline import aio, fence
from lockline.core.backend import Finding
from lockline.kit.codec import Codec
from lockline.kit.once_per import Run

# -- lockline --------------------------------------------------------------------------------------


def clients(own: Any) -> None:
    assert_type(lockline.connect(), lockline.Client)
    assert_type(lockline.connect("redis://h"), lockline.Client)
    assert_type(lockline.connect(own, owner="me", prefix="app", timeout=1.5), lockline.Client)
    with lockline.connect("memory:") as client:
        assert_type(client, lockline.Client)
        assert_type(client.close(), None)
    assert_type(client.guarantees, lockline.Guarantees)
    assert_type(client.url, str)
    assert_type(client.owner, str)
    assert_type(client.inspect("x"), lockline.Line)
    assert_type(client.list(), list[str])
    assert_type(client.list(prefix="x/"), list[str])
    assert_type(client.attach("ticket"), lockline.Lease)
    assert_type(client.evict("x"), int)
    assert_type(client.evict("x", token=5), int)
    assert_type(client.examine(), list[Finding])


def locks(client: lockline.Client, meta: Mapping[str, Any]) -> None:
    assert_type(client.lock("x"), lockline.Lock)
    assert_type(client.lock("x", 10), lockline.Lock)
    assert_type(client.lock("x", ttl=timedelta(seconds=3), renew=False, max_hold=5, meta=meta), lockline.Lock)
    assert_type(client.rlock("x", 10.0, renew=True, max_hold=timedelta(1), meta=None), lockline.Lock)
    assert_type(client.semaphore("x", 3), lockline.Lock)
    assert_type(client.semaphore("x", 80, weight=24), lockline.Lock)
    assert_type(client.lock("x", timeout=5, on_wait=print, max_waiting=3, keep_for="5m"), lockline.Lock)
    assert_type(client.semaphore("x", limit=3, ttl=1.0, renew=True, max_hold=None, meta={"a": 1}), lockline.Lock)
    both = client.rwlock("x", ttl=1.0, renew=True, max_hold=None, meta=None)
    assert_type(both, lockline.RWLock)
    assert_type(both.name, str)
    assert_type(both.read(), lockline.Lock)
    assert_type(both.write(), lockline.Lock)


def takes(never_returns: Callable[[], NoReturn]) -> None: ...


def leases(lock: lockline.Lock) -> None:
    assert_type(lock.name, str)
    assert_type(lock.acquire(), lockline.Lease)
    assert_type(lock.acquire(5), lockline.Lease)
    assert_type(lock.acquire(timeout=timedelta(seconds=5)), lockline.Lease)
    assert_type(lock.try_acquire(), lockline.Lease | None)
    assert_type(lock.locked(), bool)
    with lock as lease:
        assert_type(lease, lockline.Lease)
    with lock.acquire(timeout=1) as lease:
        assert_type(lease, lockline.Lease)
    takes(lock.release)


def several(client: lockline.Client, told: Callable[[lockline.LeaseLost], object]) -> None:
    locks = client.locks("a", "b", ttl=5, timeout=5, renew=True, max_hold=None, meta=None)
    assert_type(locks.names, tuple[str, ...])
    with locks as leases:
        assert_type(leases["a"], lockline.Lease)
        assert_type(leases.tokens, dict[str, int])
        assert_type(leases.valid, bool)
        assert_type(leases.remaining(), float)
        assert_type(leases.check(), None)
        assert_type(leases.on_lost(told), None)
        assert_type(leases.lost.is_set(), bool)
        assert_type(leases.lost.wait(1), bool)
    assert_type(locks.acquire(timeout=5).release(), None)


def leaders(client: lockline.Client, main: Callable[[lockline.Lease], bytes]) -> None:
    assert_type(client.lead("x", main, ttl=5, meta={"a": 1}), bytes)
    assert_type(client.leader("x"), lockline.Standing | None)
    for leader in client.watch("x", every=0.1):
        assert_type(leader, lockline.Standing | None)


def periods(client: lockline.Client) -> None:
    @client.once_per("15m", name="x", on_busy="wait", ttl=5, timeout=3, meta=None)
    def job(a: int) -> bytes:
        return bytes(a)

    def named(a: int) -> str:
        return str(a)

    @client.once_per(slot=lambda now: now.year, name=named)
    def yearly(a: int) -> None: ...

    ran = job(5)
    assert_type(ran, Run[bytes])
    assert_type(ran.state, Literal["ran", "done", "running"])
    assert_type(ran.slot, int | str)
    assert_type(ran.missed, int | None)
    assert_type(ran.value, bytes | None)
    assert_type(yearly(5), Run[None])


def values_once(client: lockline.Client, make: Callable[[], bytes], codec: Codec) -> None:
    assert_type(client.once("x", make, 60), bytes)
    assert_type(client.once("x", make, fresh="10m", ttl=5, timeout=3, codec=codec), bytes)


def pools(client: lockline.Client) -> None:
    pool = client.pool("gpu", [0, 1], 5, timeout=5, renew=True, max_hold=None, meta=None, on_wait=print, max_waiting=3)
    assert_type(pool.name, str)
    assert_type(pool.items, tuple[int, ...])
    with pool as slot:
        assert_type(slot.item, int)
        assert_type(slot.name, str)
        assert_type(slot.token, int)
        assert_type(slot.owner, str)
        assert_type(slot.ttl, float)
    assert_type(pool.acquire(timeout=5).release(), None)


def a_lease(lease: lockline.Lease, told: Callable[[lockline.LeaseLost], object]) -> None:
    assert_type(lease.id, str)
    assert_type(lease.name, str)
    assert_type(lease.token, int)
    assert_type(lease.owner, str)
    assert_type(lease.kind, str)
    assert_type(lease.ttl, float)
    assert_type(lease.valid, bool)
    assert_type(lease.remaining(), float)
    assert_type(lease.check(), None)
    assert_type(lease.validate(), None)
    assert_type(lease.detach(60), str)
    assert_type(lease.extend(5), None)
    assert_type(lease.extend(timedelta(seconds=5)), None)
    assert_type(lease.downgrade(), None)
    assert_type(lease.adopt(), None)
    assert_type(lease.guard(), Any)
    assert_type(lease.guard(object()), Any)
    assert_type(lease.release(), None)
    assert_type(lease.headers(), dict[str, str])
    assert_type(lease.sequencer(), str)
    assert_type(lease.on_lost(told), None)
    assert_type(lease.lost.is_set(), bool)
    assert_type(lease.lost.wait(), bool)
    assert_type(lease.lost.wait(timeout=timedelta(seconds=1)), bool)


async def decorated(client: lockline.Client, looped: aio.Client) -> None:
    @client.locked("x", 10, timeout=5, renew=True, max_hold=None, meta=None)
    def add(a: int, b: int = 2) -> str:
        return str(a + b)

    def name_of(number: int) -> str:
        return f"order/{number}"

    @client.locked(name_of)
    def order(number: int) -> bool:
        return bool(number)

    @looped.locked("x")
    async def work(a: int) -> bytes:
        return bytes(a)

    assert_type(add(1, b=3), str)
    assert_type(order(5), bool)
    assert_type(await work(1), bytes)


def values(line: lockline.Line, standing: lockline.Standing, says: lockline.Guarantees, finding: Finding) -> None:
    assert_type(line.name, str)
    assert_type(line.claims, tuple[lockline.Standing, ...])
    assert_type(line.holders, tuple[lockline.Standing, ...])
    assert_type(line.waiters, tuple[lockline.Standing, ...])
    assert_type(standing.id, str)
    assert_type(standing.owner, str)
    assert_type(standing.kind, str)
    assert_type(standing.token, int)
    assert_type(standing.holds, bool)
    assert_type(standing.detached, bool)
    assert_type(standing.weight, int)
    assert_type(standing.capacity, int)
    assert_type(standing.ttl, float)
    assert_type(standing.remaining, float)
    assert_type(standing.enqueued_at, float)
    assert_type(standing.granted_at, float | None)
    assert_type(standing.began, float)
    assert_type(standing.meta, Mapping[str, Any] | None)
    assert_type(says.exclusion, Literal["process", "machine", "server", "majority", "consensus"])
    assert_type(says.fifo, bool)
    assert_type(says.push, bool)
    assert_type(says.token_survives, frozenset[Literal["release", "expiry", "restart", "failover", "wipe"]])
    assert_type(says.tolerates, str)
    assert_type(finding.level, Literal["ok", "warning", "error"])
    assert_type(finding.text, str)
    assert_type(finding.cure, str)


def errors(
    late: lockline.AcquireTimeout,
    lost: lockline.LeaseLost,
    few: lockline.QuorumNotReached,
    away: lockline.BackendUnavailable,
    stale: lockline.StaleToken,
    full: lockline.LineFull,
    failed: lockline.OnceFailed,
) -> tuple[object, ...]:
    roots: tuple[type[lockline.LocklineError], ...] = (
        lockline.AcquireTimeout, lockline.BackendUnavailable, lockline.ClientClosed, lockline.ConfigError, lockline.LeaseLost,
        lockline.LineFull, lockline.NotHeld, lockline.OnceFailed, lockline.QuorumNotReached, lockline.StaleToken, lockline.WouldDeadlock, fence.ReadAgain,
    )  # fmt: skip
    wrong: type[ValueError] = lockline.ConfigError
    timed_out: type[TimeoutError] = lockline.AcquireTimeout
    unavailable: tuple[type[ConnectionError], ...] = (
        lockline.BackendUnavailable, lockline.ClientClosed, lockline.QuorumNotReached,
    )  # fmt: skip
    misused: tuple[type[RuntimeError], ...] = (lockline.NotHeld, lockline.WouldDeadlock)
    warned: type[RuntimeWarning] = lockline.LeaseDropped
    assert_type(late.name, str)
    assert_type(late.waited, float)
    assert_type(late.holders, tuple[str, ...])
    assert_type(late.ahead, int | None)
    assert_type((failed.name, failed.owner, failed.kind, failed.text), tuple[str, str, str, str])
    assert_type(full.name, str)
    assert_type(full.waiting, int)
    assert_type(full.most, int)
    assert_type(lost.name, str)
    assert_type(lost.token, int | None)
    assert_type(lost.reason, Literal["expired", "evicted", "taken", "closed"])
    assert_type(
        lost.cause,
        Literal["silent", "session", "paused", "ended", "dropped", "unrenewed", "max_hold", "gone", "closed"] | None,
    )
    assert_type(lost.when, float)
    assert_type(few.nodes, dict[str, str])
    assert_type(away.permanent, bool)
    assert_type(away.unsent, bool)
    assert_type(stale.resource, str)
    assert_type(stale.offered, int | str)
    assert_type(stale.highest, int | str)
    return roots, wrong, timed_out, unavailable, misused, warned


# -- lockline.aio ----------------------------------------------------------------------------------


async def looped_clients(own: Any) -> None:
    assert_type(aio.connect(), aio.Client)
    assert_type(lockline.aio.connect(own, owner="me", prefix="app"), aio.Client)
    assert_type(aio.connect("memory:", keeper="thread"), aio.Client)
    async with aio.connect("memory:") as client:
        assert_type(client, aio.Client)
        assert_type(await client.close(), None)
    assert_type(client.guarantees, lockline.Guarantees)
    assert_type(client.url, str)
    assert_type(client.owner, str)
    assert_type(await client.inspect("x"), lockline.Line)
    assert_type(await client.attach("ticket"), aio.Lease)
    assert_type(await client.list(), list[str])
    assert_type(await client.list(prefix="x/"), list[str])
    assert_type(await client.evict("x", token=5), int)
    assert_type(await client.examine(), list[Finding])


def looped_locks(client: aio.Client, meta: Mapping[str, Any]) -> None:
    assert_type(client.lock("x", ttl=timedelta(seconds=3), renew=False, max_hold=5, meta=meta), aio.Lock)
    assert_type(client.rlock("x", 10.0, renew=True, max_hold=timedelta(1), meta=None), aio.Lock)
    assert_type(client.semaphore("x", limit=3, ttl=1.0, renew=True, max_hold=None, meta={"a": 1}), aio.Lock)
    both = client.rwlock("x", ttl=1.0, renew=True, max_hold=None, meta=None)
    assert_type(both, aio.RWLock)
    assert_type(both.name, str)
    assert_type(both.read(), aio.Lock)
    assert_type(both.write(), aio.Lock)


async def looped_leases(lock: aio.Lock) -> None:
    assert_type(lock.name, str)
    assert_type(await lock.acquire(), aio.Lease)
    assert_type(await lock.acquire(timeout=timedelta(seconds=5)), aio.Lease)
    assert_type(await lock.try_acquire(), aio.Lease | None)
    assert_type(await lock.locked(), bool)
    async with lock as lease:
        assert_type(lease, aio.Lease)
    async with lock.acquire(timeout=1) as lease:
        assert_type(lease, aio.Lease)
    takes(lock.release)


async def a_looped_lease(lease: aio.Lease, told: Callable[[], object]) -> None:
    assert_type(lease.id, str)
    assert_type(lease.name, str)
    assert_type(lease.token, int)
    assert_type(lease.owner, str)
    assert_type(lease.kind, str)
    assert_type(lease.ttl, float)
    assert_type(lease.valid, bool)
    assert_type(lease.remaining(), float)
    assert_type(lease.check(), None)
    assert_type(await lease.validate(), None)
    assert_type(await lease.detach(timedelta(seconds=5)), str)
    assert_type(await lease.extend(timedelta(seconds=5)), None)
    assert_type(await lease.downgrade(), None)
    assert_type(lease.adopt(), None)
    assert_type(lease.guard(), Any)
    assert_type(await lease.release(), None)
    assert_type(lease.headers(), dict[str, str])
    assert_type(lease.sequencer(), str)
    assert_type(lease.on_lost(told), None)
    assert_type(lease.lost.is_set(), bool)
    assert_type(await lease.lost.wait(timeout=1), bool)


async def looped_several(client: aio.Client) -> None:
    async with client.locks("a", "b", timeout=5) as leases:
        assert_type(leases["a"], aio.Lease)
        assert_type(leases.tokens, dict[str, int])
        assert_type(await leases.lost.wait(1), bool)
    assert_type(await (await client.locks("a").acquire(5)).release(), None)


async def looped_leaders(client: aio.Client, main: Callable[[aio.Lease], Awaitable[bytes]]) -> None:
    assert_type(await client.lead("x", main, ttl=5, meta={"a": 1}), bytes)
    assert_type(await client.leader("x"), lockline.Standing | None)
    async for leader in client.watch("x", every=0.1):
        assert_type(leader, lockline.Standing | None)


async def looped_periods(client: aio.Client) -> None:
    @client.once_per("15m")
    async def job(a: int) -> bytes:
        return bytes(a)

    assert_type(await job(5), Run[bytes])


async def looped_values_once(client: aio.Client, make: Callable[[], Awaitable[bytes]]) -> None:
    assert_type(await client.once("x", make, fresh=60), bytes)


async def looped_pools(client: aio.Client) -> None:
    async with client.pool("gpu", ["a", "b"]) as slot:
        assert_type(slot.item, str)
    assert_type((await client.pool("gpu", ["a"]).acquire(5)).item, str)
