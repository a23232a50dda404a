"""Promise 14: every wait can end: by timeout, cancel or `close()`; a closed client answers at once."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
import traceback
from types import CodeType

import pytest

import lockline
from lockline import BackendUnavailable, ClientClosed, LeaseLost
from lockline.core import engine
from lockline.runtime.blocking import BlockingMailbox

from ..tier import sample
from .faults import Faults
from .parties import LONG
from .scene import A_MINUTE, Scene


def test_close_ends_a_wait(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    held = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", lambda: world.sibling(bob).lock("x").acquire.start())
    bob.client.close()
    with pytest.raises(ClientClosed):
        waits.result()
    assert [claim.id for claim in world.line("x").claims] == [held.id]
    held.release()


def test_close_ends_many_waits(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    held = alice.lock("x").acquire()
    many = [world.sibling(bob) for _ in range(10)]
    waiting = world.queue_up("x", *((lambda p=party: p.lock("x").acquire.start()) for party in many))
    bob.client.close()
    for pending in waiting:
        with pytest.raises(ClientClosed):
            pending.result()
    world.wait_for_line("x", holders=1, waiters=0)
    held.release()


def test_close_gives_back_what_is_held_and_its_holders_know(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    told: list[LeaseLost] = []
    lease = alice.lock("x").acquire()
    lease.on_lost(told.append)
    alice.client.close()
    assert not lease.valid
    assert lease.lost.is_set()
    assert told
    assert told[0].reason == "closed"
    bob.lock("x").acquire(timeout=A_MINUTE).release()
    with pytest.raises(LeaseLost):
        lease.release()


def test_close_inside_a_with_block_stops_the_block_and_returns(world: Scene) -> None:
    alice = world.party()
    other = world.sibling(alice)
    with pytest.raises(LeaseLost, match="closed"), alice.lock("x"):
        other.client.close.start().result()
    assert not world.line("x").claims


@pytest.mark.core
def test_a_closed_client_answers_without_asking_the_store(world: Scene) -> None:
    alice = world.party()
    alice.lock("x").acquire().release()
    faults = Faults(alice)
    alice.client.close()
    before = len(faults.calls)
    for call in ("acquire", "try_acquire", "inspect", "list", "evict", "with"):
        with pytest.raises(ClientClosed, match="closed"):  # noqa: PT012 - one of these
            if call in ("acquire", "try_acquire"):
                getattr(alice.lock("x"), call)()
            elif call == "with":
                with alice.lock("x"):
                    raise AssertionError("the body ran")
            else:
                getattr(alice.client, call)(*([] if call == "list" else ["x"]))
        assert len(faults.calls) == before, call


@pytest.mark.core
def test_close_again_is_harmless(world: Scene) -> None:
    alice = world.party()
    alice.lock("x").acquire().release()
    alice.client.close()
    alice.client.close()
    never_used = world.party()
    never_used.client.close()
    never_used.client.close()


@pytest.mark.slow
def test_close_of_a_client_whose_store_hangs_comes_back(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(alice)
    # No answer comes before the deadline that the client itself has set: less than a minute, though the lease has ten.
    faults.hang("leave")
    faults.hang("renew")
    closing = alice.client.close.start()
    world.wait_for(lambda: closing.done, what="the end of close()")
    closing.result()
    assert not lease.valid
    faults.heal()


@pytest.mark.core
def test_an_enter_that_hangs_ends_with_the_callers_timeout(world: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "GRACE", 0.2)
    alice = world.party()
    Faults(alice).hang("enter")
    acquiring = alice.lock("x").acquire.start(timeout=0.3)
    world.wait_for(lambda: acquiring.done, what="the end of acquire()")
    with pytest.raises((BackendUnavailable, TimeoutError)):
        acquiring.result()


@pytest.mark.core
def test_a_waiter_that_is_nudged_without_reason_goes_on_waiting(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
    hints = bob.client.real._engine._hints
    claim_id = world.line("x").waiters[0].id
    for _ in range(20):
        hints.heard(claim_id)
        time.sleep(0.002)
    assert not waits.done
    lease.release()
    waits.result().release()


@pytest.mark.flavour("asyncio")
def test_a_cancelled_wait_ends_at_once(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        waits.result()
    world.wait_for_line("x", waiters=0)
    lease.release()


@pytest.mark.flavour("asyncio")
def test_the_loop_goes_on_while_somebody_waits(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
    ticks = 0

    async def heartbeat() -> None:
        nonlocal ticks
        while ticks < 50:
            await asyncio.sleep(0.004)
            ticks += 1

    # A wait that blocks the loop would let none of these happen before its end, which does not come.
    world.sibling(alice).do(heartbeat)
    assert not waits.done
    lease.release()
    waits.result().release()


@pytest.mark.core
@pytest.mark.flavour("asyncio")
def test_a_client_used_on_another_loop_says_so(world: Scene) -> None:
    alice = world.party()
    alice.lock("x").acquire().release()
    with pytest.raises(ValueError, match="event loop"):
        asyncio.run(alice.client.real.lock("x").acquire())


@pytest.mark.core
def test_a_wait_that_ends_while_the_store_is_silent_says_so(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    held = bob.lock("x").acquire()
    faults = Faults(alice)
    faults.fail("place", times=None)
    # Time to ask more than once: one silence alone says nothing.
    with pytest.raises(BackendUnavailable):
        alice.lock("x").acquire(timeout=0.5)
    faults.heal()
    world.wait_for(lambda: not world.line("x").waiters)
    held.release()


@pytest.mark.core
def test_a_waiter_whose_one_question_outlasted_its_place_stands_again(world: Scene) -> None:
    """As after a freeze: the answer came in time, and nobody was there to read it. The store was never silent."""
    alice, bob = world.party(), world.party()
    held = bob.lock("x").acquire()
    faults = Faults(alice)
    faults.hang("place", times=1)
    faults.fail("renew", times=None)
    waits = alice.lock("x", ttl=world.ttl(0.5)).acquire.start()
    world.wait_for(lambda: faults.calls.count("enter") == 2)
    faults.heal()
    held.release()
    waits.result().release()


@pytest.mark.slow
def test_close_gives_back_hundreds_of_leases_together(world: Scene) -> None:
    """A client that holds many does not ask once for each: its end would outlast what anybody waits for."""
    many = sample(100, 700)
    alice = world.party()
    faults = Faults(alice)
    leases = [alice.lock(f"x{number}").acquire() for number in range(many)]
    alice.client.close()
    assert not any(lease.valid for lease in leases)
    assert not world.names()
    assert faults.count("leave") <= 5


def test_a_lease_that_is_gone_does_not_keep_close_from_releasing_the_others(world: Scene) -> None:
    alice = world.party()
    leases = [alice.lock(f"x{number}").acquire() for number in range(5)]
    world.evict("x2")
    alice.client.close()
    assert not any(lease.valid for lease in leases)
    assert not world.names()


def rests_in_its_wait() -> bool:
    """Whether the main thread waits for its turn, and has not moved on for a fifth of a second."""

    def stack() -> list[tuple[CodeType, int]]:
        frames = traceback.walk_stack(sys._current_frames()[threading.main_thread().ident or 0])
        return [(frame.f_code, frame.f_lasti) for frame, _ in frames]

    before = stack()
    time.sleep(0.2)
    return stack() == before and any(code is BlockingMailbox.wait.__code__ for code, _ in before)


@pytest.mark.flavour("sync")
def test_a_signal_handler_that_waits_for_a_worker_of_the_same_client_ends(world: Scene) -> None:
    """A graceful stop: the main thread waits for a turn, and on top of that wait a handler waits for a thread that needs the store."""
    alice = world.party()
    held = alice.lock("x").acquire()
    client = lockline.connect(world.place, **world.world.options())
    done: list[float] = []

    def work() -> None:
        client.lock("y", ttl=LONG).acquire().release()
        done.append(time.monotonic())

    def stop(number: int, frame: object) -> None:
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        worker.join(A_MINUTE)
        done.append(time.monotonic())

    def ask_for_it() -> None:
        world.wait_for(lambda: len(world.line("x").waiters) == 1)
        # The store knows of the claim before the main thread has read the answer. In the middle of that, the handler would wait
        # for a worker that waits for the main thread.
        world.wait_for(rests_in_its_wait)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        world.wait_for(lambda: len(done) == 2)
        held.release()

    before = signal.signal(signal.SIGALRM, stop)
    asking = threading.Thread(target=ask_for_it)
    try:
        asking.start()
        client.lock("x", ttl=LONG).acquire(timeout=A_MINUTE).release()
        worked, ended = done
        assert worked <= ended
    finally:
        asking.join()
        signal.signal(signal.SIGALRM, before)
        client.close()
