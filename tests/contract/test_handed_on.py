"""Handed on inside: a claim directly behind one of the same client's own holds as soon as that one lets go.

The store is held up in these stories where that shows it: whoever goes on all the same was told by its own client.
"""

from __future__ import annotations

import threading
import time
from asyncio import CancelledError
from typing import Any

import pytest

from lockline import AcquireTimeout, BackendUnavailable, LeaseLost, LocklineError

from ..renewed import end_now
from .faults import Faults
from .parties import LONG, STUCK, Party, Pending
from .scene import A_MINUTE, KEPT, Scene

pytestmark = pytest.mark.needs("hands_on")
GIVES_UP = 5.0
"""The timeout of one that waits and gives up: by then the next one stands behind it."""
TTL = 60.0
"""No turn is handed on to a claim that has less than a third of its ttl left, and ZooKeeper's session bounds what is left of a longer one."""


def settled(world: Scene, name: str, party: Party, *waiting: Pending) -> None:
    """Wait until everybody who waits there knows where it stands."""
    live = party.client.real._engine._keeper.books

    def known() -> bool:
        return all(one.behind or one.token is not None for one in list(live.values()))

    world.wait_for(known, what="where each stands")
    assert not any(pending.done for pending in waiting)


def test_the_next_one_of_the_same_client_is_at_work_before_the_store_has_answered(world: Scene) -> None:
    alice = world.party()
    bob, carol = world.sibling(alice), world.sibling(alice)
    faults = Faults(alice)
    lease = alice.lock("x", ttl=TTL).acquire()
    seconds, thirds = world.queue_up("x", bob.lock("x", ttl=TTL).acquire.start, carol.lock("x", ttl=TTL).acquire.start)
    line = [claim.token for claim in world.line("x").claims]
    settled(world, "x", alice, seconds, thirds)
    let_through, looks = faults.hold("leave"), faults.count("place")
    first_release = lease.release.start()
    second = seconds.result()
    assert not thirds.done
    second_release = second.release.start()
    third = thirds.result()
    assert third.valid
    assert not first_release.done
    assert not second_release.done
    assert [claim.token for claim in world.line("x").claims] == line
    assert [lease.token, second.token, third.token] == line
    assert faults.count("place") == looks
    let_through.set()
    first_release.result()
    second_release.result()
    assert [claim.token for claim in world.wait_for_line("x", holders=1, waiters=0).holders] == [third.token]
    third.release()
    world.wait_until_free("x")


@pytest.mark.parametrize("kind", ["rlock", pytest.param("write", marks=pytest.mark.needs("read_write"))])
def test_whatever_is_held_alone_is_handed_on(world: Scene, kind: str) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    lease = getattr(alice, kind)("x", ttl=TTL).acquire()
    (waits,) = world.queue_up("x", getattr(bob, kind)("x", ttl=TTL).acquire.start)
    settled(world, "x", alice, waits)
    let_through = Faults(alice).hold("leave")
    released = lease.release.start()
    granted = waits.result()
    let_through.set()
    released.result()
    granted.release()


@pytest.mark.core
@pytest.mark.needs("read_write")
def test_a_writer_that_became_a_reader_hands_nothing_on(world: Scene) -> None:
    """Others may read beside it by then, behind whom the next writer has to wait."""
    alice = world.party()
    bob = world.sibling(alice)
    lease = alice.write("x", ttl=TTL).acquire()
    (waits,) = world.queue_up("x", bob.write("x", ttl=TTL).acquire.start)
    settled(world, "x", alice, waits)
    lease.downgrade()
    let_through = Faults(alice).hold("leave")
    released = lease.release.start()
    world.wait_for(lambda: not lease.valid, what="the release")
    (next_one,) = [live for live in alice.client.real._engine._keeper.books.values() if live.token is None]
    assert next_one.turn is None
    let_through.set()
    released.result()
    waits.result().release()


def test_a_stranger_between_two_of_a_client_has_its_turn_between(world: Scene) -> None:
    alice, xavier = world.party(), world.party("xavier")
    bob, carol = world.sibling(alice), world.sibling(alice)
    lease = alice.lock("x", ttl=TTL).acquire()
    seconds, stranger, thirds = world.queue_up(
        "x",
        bob.lock("x", ttl=TTL).acquire.start,
        xavier.lock("x", ttl=TTL).acquire.start,
        carol.lock("x", ttl=TTL).acquire.start,
    )
    line = [claim.token for claim in world.line("x").claims]
    let_through = Faults(alice).hold("leave")
    first_release = lease.release.start()
    second = seconds.result()
    second_release = second.release.start()
    world.wait_for(lambda: not second.valid, what="the release")
    assert not thirds.done
    assert not stranger.done
    let_through.set()
    first_release.result()
    second_release.result()
    foreign = stranger.result()
    assert not thirds.done
    foreign.release()
    third = thirds.result()
    assert [lease.token, second.token, foreign.token, third.token] == line
    third.release()


def test_one_between_that_gave_up_breaks_no_chain(world: Scene) -> None:
    alice = world.party()
    bob, carol = world.sibling(alice), world.sibling(alice)
    lease = alice.lock("x", ttl=TTL).acquire()
    impatient, waits = world.queue_up(
        "x", lambda: bob.lock("x", ttl=TTL).acquire.start(timeout=GIVES_UP), carol.lock("x", ttl=TTL).acquire.start
    )
    settled(world, "x", alice, waits)
    with pytest.raises(AcquireTimeout):
        impatient.result()
    world.wait_for_line("x", holders=1, waiters=1)
    let_through = Faults(alice).hold("leave")
    released = lease.release.start()
    granted = waits.result()
    assert not released.done
    let_through.set()
    released.result()
    granted.release()


@pytest.mark.core
def test_a_lost_lease_hands_nothing_on(world: Scene) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    lease = alice.lock("x", ttl=TTL, renew=False).acquire()
    (waits,) = world.queue_up("x", bob.lock("x", ttl=TTL).acquire.start)
    settled(world, "x", alice)
    faults = Faults(alice)
    # Nobody can ask the store: if Bob went on, it would be by Alice's word.
    asked, let_through = faults.hold("place"), faults.hold("leave")
    (heir,) = [live for live in alice.client.real._engine._keeper.books.values() if live.token is None]
    end_now(lease)
    world.wait_for(lambda: not lease.valid, what="the end of the lease")
    released = lease.release.start()
    world.wait_for(lambda: faults.count("leave"), what="the clearing away")
    assert heir.turn is None
    let_through.set()
    asked.set()
    with pytest.raises(LeaseLost):
        released.result()
    waits.result().release()


def test_a_leave_that_is_lost_lets_no_stranger_in(world: Scene) -> None:
    """The line shows one that has let go, and behind it the one that is at work: it is renewed there, and others wait."""
    alice, xavier = world.party(), world.party("xavier")
    bob = world.sibling(alice)
    lease = alice.lock("x", ttl=KEPT).acquire()
    waits, stranger = world.queue_up("x", bob.lock("x", ttl=TTL).acquire.start, xavier.lock("x", ttl=TTL).acquire.start)
    settled(world, "x", alice, waits)
    faults = Faults(alice)
    faults.fail("leave", times=None)
    with pytest.raises(BackendUnavailable):
        lease.release()
    granted = waits.result()
    # The one that let go is gone from the line by its own ttl.
    world.wait_for(lambda: [claim.id for claim in world.line("x").holders] == [granted.id], what="the end of the ghost")
    world.wait_for_renewal(granted)
    assert granted.valid
    assert not stranger.done
    faults.heal()
    granted.release()
    stranger.result().release()


def test_a_lease_behind_one_whose_removal_is_still_owed_is_kept_and_given_back(world: Scene) -> None:
    alice, xavier = world.party(), world.party("xavier")
    bob = world.sibling(alice)
    lease = alice.lock("x", ttl=TTL).acquire()
    waits, stranger = world.queue_up("x", bob.lock("x", ttl=TTL).acquire.start, xavier.lock("x", ttl=TTL).acquire.start)
    settled(world, "x", alice, waits)
    faults = Faults(alice)
    faults.fail("leave", times=None)
    with pytest.raises(BackendUnavailable):
        lease.release()
    granted = waits.result()
    world.wait_for_renewal(granted)
    granted.check()
    assert not stranger.done
    faults.heal()
    granted.release()
    stranger.result().release()


def test_an_operator_who_evicts_one_that_has_let_go_does_not_hit_the_next(world: Scene) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    lease = alice.lock("x", ttl=TTL).acquire()
    (waits,) = world.queue_up("x", bob.lock("x", ttl=TTL).acquire.start)
    settled(world, "x", alice, waits)
    let_through = Faults(alice).hold("leave")
    released = lease.release.start()
    granted = waits.result()
    assert world.evict("x") == 1
    assert [claim.id for claim in world.line("x").holders] == [granted.id]
    let_through.set()
    with pytest.raises(LeaseLost):
        released.result()
    granted.extend(LONG)
    assert world.evict("x") == 1
    world.wait_for(lambda: not granted.valid, what="the eviction of the one that holds")
    with pytest.raises(LeaseLost):
        granted.release()


# In asyncio nothing runs between the turn and its beginning.
@pytest.mark.parametrize("first", ["who waits", pytest.param("the keeper", marks=pytest.mark.flavour("sync"))])
def test_an_eviction_that_is_heard_before_the_one_that_was_handed_the_turn_has_begun_counts(
    world: Scene, first: str
) -> None:
    """Both lie there when it wakes, its turn by the word of its own client and the push of the eviction, and two hints are one.

    It begins with its turn and is told at once; or, where its keeper has asked before it began, it stands in the line anew.
    """
    alice = world.party()
    bob = world.sibling(alice)
    lease = alice.lock("x", ttl=TTL).acquire()
    hints, asleep, evicted = alice.client.real._engine._hints, threading.Event(), threading.Event()
    wait, stop_expecting = hints.wait, hints.stop_expecting

    async def sleep_in(claim_id: str, until: float) -> Any:
        asleep.set()
        while not evicted.is_set():
            await hints._runtime.sleep(0.005)
        return await wait(claim_id, until)

    def let_the_keeper_ask(claim_id: str) -> None:
        stop_expecting(claim_id)
        hints.for_keeper(claim_id)
        claim = alice.client.real._engine._keeper.books[claim_id]
        world.wait_for(lambda: claim.lost is not None, what="the keeper's word")

    hints.wait = sleep_in
    if first == "the keeper":
        hints.stop_expecting = let_the_keeper_ask
    (waits,) = world.queue_up("x", bob.lock("x", ttl=TTL).acquire.start)
    settled(world, "x", alice, waits)
    assert asleep.wait(A_MINUTE)
    (waiter,) = world.line("x").waiters
    lease.release()
    assert world.evict("x") == 1
    time.sleep(0.1)  # for the push, where there is one
    evicted.set()
    granted = waits.result()
    if granted.token == waiter.token:
        world.wait_for(lambda: not granted.valid, what="the eviction, long before a renewal is due")
        with pytest.raises(LeaseLost):
            granted.release()
        return
    assert granted.token > waiter.token
    assert [holder.token for holder in world.line("x").holders] == [granted.token]
    granted.release()


@pytest.mark.core
@pytest.mark.flavour("asyncio")
def test_one_that_is_cancelled_at_the_instant_of_its_turn_hands_it_on(world: Scene) -> None:
    alice = world.party()
    bob, carol = world.sibling(alice), world.sibling(alice)
    lease = alice.lock("x", ttl=TTL).acquire()
    cancelled, waits = world.queue_up("x", bob.lock("x", ttl=TTL).acquire.start, carol.lock("x", ttl=TTL).acquire.start)
    settled(world, "x", alice, cancelled, waits)
    (heir,) = [live for live in alice.client.real._engine._keeper.books.values() if live.behind == lease.id]

    async def release() -> bool:
        real = lease.real.release()
        # As far as the first await of the store: the turn is handed on, and nobody has run since.
        step = real.__await__()
        first = next(step, DONE)
        handed = heir.turn is not None
        bob.me.cancel()
        await _rest(step, first)
        return handed

    assert alice.do(release)
    with pytest.raises(CancelledError):
        cancelled.result()
    waits.result().release()
    world.wait_until_free("x")


DONE = object()
"""The end of a coroutine; None is what it gives when it only lets others run."""


async def _rest(step: Any, first: Any) -> None:
    class Rest:
        def __await__(self) -> Any:
            waited = first
            while waited is not DONE:
                yield waited
                waited = next(step, DONE)

    await Rest()


def test_a_client_that_is_closed_in_the_middle_leaves_nobody_in_the_line(world: Scene) -> None:
    alice, xavier = world.party(), world.party("xavier")
    others = [world.sibling(alice) for _ in range(3)]
    lease = alice.lock("x", ttl=TTL).acquire()
    waiting = world.queue_up("x", *(other.lock("x", ttl=TTL).acquire.start for other in others))
    (stranger,) = world.queue_up("x", xavier.lock("x", ttl=TTL).acquire.start)
    released = lease.release.start()
    world.sibling(alice).client.close()
    for pending in (released, *waiting):
        try:
            pending.result()
        except LocklineError:
            pass  # closed, lost or granted: whatever it was, nothing is left of it
    stranger.result().release()
    world.wait_until_free("x")


def test_never_two_inside_and_in_order_of_arrival_with_a_stranger_in_the_line(world: Scene) -> None:
    alice, xavier = world.party(), world.party("xavier")
    many = [world.sibling(alice) for _ in range(6)] + [xavier, world.sibling(xavier)]
    inside: list[str] = []
    clashes: list[list[str]] = []
    tokens: list[int] = []

    def work(party: Party) -> None:
        for turn in range(12):
            try:
                with party.lock("x", ttl=TTL) as lease:
                    inside.append(party.name)
                    if len(inside) > 1:
                        clashes.append(list(inside))
                    tokens.append(lease.token)
                    inside.remove(party.name)
                if turn % 4 == 3:
                    party.lock("x", ttl=TTL).acquire(timeout=0.001).release()
            except AcquireTimeout:
                pass

    workers = [threading.Thread(target=work, args=(party,)) for party in many]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(STUCK)
        assert not worker.is_alive()
    assert not clashes
    assert tokens == sorted(tokens)
    world.wait_until_free("x")
