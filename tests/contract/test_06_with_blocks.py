# ruff: noqa: PT012 - the blocks are the story here
"""Promise 6: leaving a `with` never hides the body's own exception, and the body never runs without the lease."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from lockline import AcquireTimeout, BackendUnavailable, LeaseLost, NotHeld

from .faults import Faults
from .parties import LONG
from .scene import A_MINUTE, Scene


class OwnError(Exception):
    """What goes wrong in a body."""


def test_the_body_runs_under_the_lease_and_the_lock_is_free_after_it(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    with alice.lock("x") as lease:
        assert lease.valid
        assert bob.lock("x").try_acquire() is None
    assert not lease.valid
    bob.lock("x").try_acquire().release()


def test_a_lease_in_hand_can_be_used_with_with_too(world: Scene) -> None:
    alice = world.party()
    with alice.lock("x").acquire(timeout=A_MINUTE) as lease:
        assert lease.valid
    assert not world.line("x").claims


def test_the_bodys_error_comes_out_and_the_lock_is_free(world: Scene) -> None:
    alice = world.party()
    with pytest.raises(OwnError, match="mine"), alice.lock("x"):
        raise OwnError("mine")
    assert not world.line("x").claims


def test_the_bodys_error_comes_out_of_a_lost_lease_with_the_loss_beside_it(world: Scene) -> None:
    """Loss and error come in the same moment: in asyncio too it is the body's own error that ends the block."""
    alice = world.party()
    lock = alice.lock("x").real

    def work() -> None:
        with lock as lease:
            lease._live.lose("evicted")
            raise OwnError("mine")

    async def async_work() -> None:
        async with lock as lease:
            lease._live.lose("evicted")
            raise OwnError("mine")

    with pytest.raises(OwnError) as caught:
        alice.do(work if world.flavour == "sync" else async_work)
    assert isinstance(caught.value.__context__, LeaseLost)
    assert any("was lost" in note for note in caught.value.__notes__)
    # The cancel that was on its way has been taken back.
    alice.lock("x").acquire(timeout=A_MINUTE).release()


def test_the_bodys_error_comes_out_when_the_release_fails(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    with pytest.raises(OwnError) as caught, alice.lock("x"):
        faults.fail("leave")
        raise OwnError("mine")
    assert isinstance(caught.value.__context__, BackendUnavailable)
    world.wait_until_free("x")


def test_the_bodys_error_keeps_the_context_it_had(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    with pytest.raises(OwnError) as caught, alice.lock("x"):
        faults.fail("leave")
        try:
            raise KeyError("first")
        except KeyError:
            raise OwnError("second")  # noqa: B904 - the implicit context is the point
    assert isinstance(caught.value.__context__, KeyError)
    assert isinstance(caught.value.__context__.__context__, BackendUnavailable)


def test_a_failing_release_after_a_good_body_is_told(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    with pytest.raises(BackendUnavailable), alice.lock("x"):
        faults.fail("leave")
    world.wait_until_free("x")


def test_loss_during_the_body_comes_out_as_lease_lost(world: Scene) -> None:
    alice = world.party()
    with pytest.raises(LeaseLost) as caught, alice.lock("x") as lease:
        world.evict("x")
        world.wait_for(lambda: lease.lost.is_set())
    assert caught.value.reason == "evicted"
    assert caught.value.token == lease.token
    # Whoever works on afterwards is not haunted by a cancel that has been dealt with.
    alice.lock("x").acquire(timeout=A_MINUTE).release()


def test_expiry_during_the_body_comes_out_as_lease_lost(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.3)
    with pytest.raises(LeaseLost) as caught, alice.lock("x", ttl=ttl, renew=False):
        time.sleep(1.5 * ttl)
    assert caught.value.reason == "expired"


def test_the_body_never_runs_after_a_timeout(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    bob.lock("warm").acquire().release()
    ran = []
    with pytest.raises(AcquireTimeout), bob.lock("x").acquire(timeout=0.2):
        ran.append("body")
    assert not ran
    assert len(world.line("x").claims) == 1
    lease.release()


@pytest.mark.needs("semaphores")
def test_one_lock_object_serves_many_with_blocks_at_once(world: Scene) -> None:
    alice = world.party()
    lock = alice.semaphore("x", limit=3)
    others = [alice, world.sibling(alice), world.sibling(alice)]
    with (
        lock.given_to(others[0]) as one,
        lock.given_to(others[1]) as two,
        lock.given_to(others[2]) as three,
    ):
        assert len({one.token, two.token, three.token}) == 3
        assert len(world.line("x").holders) == 3
    assert not world.line("x").claims


@pytest.mark.flavour("asyncio")
def test_the_body_of_an_async_with_is_cancelled_at_once_on_loss(world: Scene) -> None:
    alice = world.party()
    cut = []

    async def work() -> None:
        async with alice.client.real.lock("x", ttl=LONG):
            try:
                await asyncio.sleep(A_MINUTE)
            except asyncio.CancelledError:
                cut.append("here")
                raise

    working = alice.begin(work)
    world.wait_for_line("x", holders=1)
    world.evict("x")
    with pytest.raises(LeaseLost) as caught:
        working.result()
    assert cut == ["here"]
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


@pytest.mark.flavour("asyncio")
def test_a_cancel_by_others_stays_a_cancel(world: Scene) -> None:
    alice = world.party()

    async def work() -> None:
        async with alice.client.real.lock("x"):
            await asyncio.sleep(A_MINUTE)

    working = alice.begin(work)
    world.wait_for_line("x", holders=1)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        working.result()
    assert not world.line("x").claims


@pytest.mark.flavour("asyncio")
def test_a_cancel_by_others_together_with_loss_stays_a_cancel(world: Scene) -> None:
    alice = world.party()
    lost = []

    async def work() -> None:
        async with alice.client.real.lock("x", ttl=LONG) as lease:
            task = asyncio.current_task()
            assert task is not None
            lease.on_lost(task.cancel)
            lease.on_lost(lambda: lost.append(1))
            await asyncio.sleep(A_MINUTE)

    working = alice.begin(work)
    world.wait_for_line("x", holders=1)
    world.evict("x")
    with pytest.raises(asyncio.CancelledError):
        working.result()
    assert lost


@pytest.mark.flavour("asyncio")
def test_asyncio_timeout_around_a_body_keeps_its_meaning(world: Scene) -> None:
    alice = world.party()

    async def work() -> None:
        async with asyncio.timeout(0.1), alice.client.real.lock("x"):
            await asyncio.sleep(A_MINUTE)

    with pytest.raises(TimeoutError) as caught:
        alice.do(work)
    assert not isinstance(caught.value, AcquireTimeout)
    world.wait_until_free("x")


@pytest.mark.flavour("asyncio")
def test_a_loss_in_the_last_moment_of_a_body_is_told_as_loss(world: Scene) -> None:
    """The cancel is on its way when the body ends: it must neither vanish nor hit what comes after the block."""
    alice = world.party()

    async def work() -> str:
        try:
            async with alice.client.real.lock("x", ttl=LONG) as lease:
                lease._live.lose("evicted")
        except LeaseLost:
            await asyncio.sleep(0.01)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            return "told"
        return "not told"

    assert alice.do(work) == "told"


@pytest.mark.flavour("asyncio")
def test_a_body_that_swallows_the_cancel_still_hears_of_the_loss(world: Scene) -> None:
    alice = world.party()

    async def work() -> None:
        async with alice.client.real.lock("x", ttl=LONG) as lease:
            lease._live.lose("evicted")
            try:
                await asyncio.sleep(A_MINUTE)
            except asyncio.CancelledError:
                pass

    with pytest.raises(LeaseLost):
        alice.do(work)
    alice.do(lambda: asyncio.sleep(0.01))


@pytest.mark.flavour("asyncio")
def test_nested_blocks_both_lost_come_out_as_one_loss(world: Scene) -> None:
    alice = world.party()

    async def work() -> None:
        async with alice.client.real.lock("x", ttl=LONG) as outer, alice.client.real.lock("y", ttl=LONG) as inner:
            outer._live.lose("evicted")
            inner._live.lose("evicted")
            await asyncio.sleep(A_MINUTE)

    with pytest.raises(LeaseLost):
        alice.do(work)
    alice.do(lambda: asyncio.sleep(0.01))


def contexts(error: BaseException) -> list[BaseException]:
    """The error and what stands behind it; fails on a ring."""
    chain = [error]
    while (behind := chain[-1].__context__) is not None:
        assert not any(behind is one for one in chain), f"a ring: {chain} and again {behind!r}"
        chain.append(behind)
    return chain


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_nested_locks_that_are_all_lost_let_the_bodys_error_out_without_a_ring(world: Scene, depth: int) -> None:
    """Whoever follows the contexts of an error (a logger, a debugger, the next block) comes to an end."""
    alice = world.party()
    client = alice.client.real
    names = ["a", "b", "c"][:depth]

    def work() -> None:
        with contextlib.ExitStack() as stack:
            for lease in [stack.enter_context(client.lock(name, ttl=LONG)) for name in names]:
                lease._live.lose("evicted")
            raise KeyError("mine")

    async def async_work() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for lease in [await stack.enter_async_context(client.lock(name, ttl=LONG)) for name in names]:
                lease._live.lose("evicted")
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        alice.do(work if world.flavour == "sync" else async_work)
    behind = contexts(caught.value)
    assert [error.name for error in behind[1:] if isinstance(error, LeaseLost)] == names[::-1]
    assert len([note for note in caught.value.__notes__ if "was lost" in note]) == depth


def test_a_lost_lock_inside_an_except_block_keeps_the_error_that_was_there(world: Scene) -> None:
    alice = world.party()
    client = alice.client.real

    def work() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            with client.lock("x", ttl=LONG) as lease:
                lease._live.lose("evicted")
                raise OwnError("second")  # noqa: B904 - the implicit context is the point

    async def async_work() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            async with client.lock("x", ttl=LONG) as lease:
                lease._live.lose("evicted")
                raise OwnError("second")  # noqa: B904 - the implicit context is the point

    with pytest.raises(OwnError) as caught:
        alice.do(work if world.flavour == "sync" else async_work)
    assert [type(error) for error in contexts(caught.value)] == [OwnError, KeyError, LeaseLost]


def test_a_block_that_is_entered_here_and_left_there_gives_the_lock_back(world: Scene) -> None:
    """An ExitStack in a thread pool, an async fixture: a lease belongs to the object, not to a thread or task."""
    alice = world.party()
    bob = world.sibling(alice)
    lock = alice.lock("x").real
    if world.flavour == "sync":
        lease = alice.do(lock.__enter__)
        bob.do(lambda: lock.__exit__(None, None, None))
    else:
        lease = alice.do(lock.__aenter__)
        bob.do(lambda: lock.__aexit__(None, None, None))
    assert not lease.valid
    assert not world.line("x").claims
    with alice.lock("x"):
        pass


def test_a_block_left_by_another_leaves_the_leavers_own_block_alone(world: Scene) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    one, two = (party.lock(name) for party, name in ((alice, "one"), (bob, "two")))
    enter, leave = ("__enter__", "__exit__") if world.flavour == "sync" else ("__aenter__", "__aexit__")
    first, second = alice.do(getattr(one.real, enter)), bob.do(getattr(two.real, enter))
    bob.do(lambda: getattr(one.real, leave)(None, None, None))
    assert not first.valid
    assert second.valid
    bob.do(lambda: getattr(two.real, leave)(None, None, None))
    assert not world.line("two").claims


@pytest.mark.flavour("asyncio")
def test_a_loss_cancels_only_the_task_that_is_in_the_block(world: Scene) -> None:
    """Entered in one task and left in another: neither has a cancel too many afterwards."""
    alice = world.party()
    bob = world.sibling(alice)
    lock = alice.client.real.lock("x", ttl=LONG)

    async def leave() -> int:
        with pytest.raises(LeaseLost):
            await lock.__aexit__(None, None, None)
        await asyncio.sleep(0.01)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    lease = alice.do(lock.__aenter__)
    alice.end()
    lease._live.lose("evicted")
    assert bob.do(leave) == 0


def test_leaving_a_block_that_was_never_entered_says_so(world: Scene) -> None:
    alice = world.party()
    lock = alice.lock("x").real
    leave = lock.__exit__ if world.flavour == "sync" else lock.__aexit__
    with pytest.raises(NotHeld, match="entered"):
        alice.do(lambda: leave(None, None, None))
