"""Promise 7: cancel-safe at every await, and Ctrl-C takes the same path.

Whatever is cut short at whatever step: afterwards the lock is free or still rightly owned, the line has no ghost in it, and
another party gets the lock, long before a ttl could have cleaned up.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial

import pytest

import lockline
from lockline import AcquireTimeout, LeaseLost, NotHeld

from ..cutting import alarm
from .interruption import CUT, CancelAt, Steps
from .parties import LONG, Party
from .scene import A_MINUTE, KINDS, Scene

MANY = 200
"""No story has as many steps; a loop that comes as far does not end by itself."""

ONE_OR_TWO = pytest.mark.parametrize("again", [False, True], ids=["cut once", "cut again while cleaning up"])


def cut_points(again: bool) -> list[set[int]]:
    return [{number, number + 1} if again else {number} for number in range(1, MANY)]


def free_at_once(world: Scene, name: str, party: Party) -> None:
    """No claim is left, and another client is granted the lock: long before a ttl could have removed anything."""
    world.wait_until_free(name)
    party.lock(name).acquire(timeout=A_MINUTE).release()


@ONE_OR_TWO
def test_an_acquire_of_a_free_lock(world: Scene, again: bool) -> None:
    alice, bob = world.party(), world.party()
    for at in cut_points(again):
        steps, name = Steps(bob, at), f"x{min(at)}"
        try:
            lease = bob.lock(name).acquire()
        except CUT:
            steps.remove()
            assert steps.hit
            free_at_once(world, name, alice)
        else:
            steps.remove()
            assert not steps.hit
            assert lease.valid
            lease.release()
            break
    assert min(at) > 2


@ONE_OR_TWO
def test_an_acquire_that_waits_its_turn(world: Scene, again: bool) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    for at in cut_points(again):
        name = f"x{min(at)}"
        held = alice.lock(name).acquire()
        steps = Steps(bob, at)
        pending = bob.lock(name).acquire.start()
        world.wait_for(partial(lambda n, p: p.done or len(world.line(n).claims) == 2, name, pending), what="Bob")
        held.release()
        try:
            lease = pending.result()
        except CUT:
            steps.remove()
            assert steps.hit
            free_at_once(world, name, carol)
        else:
            steps.remove()
            assert not steps.hit
            lease.release()
            break
    assert min(at) > 4


@ONE_OR_TWO
def test_an_acquire_that_gives_up(world: Scene, again: bool) -> None:
    alice, bob = world.party(), world.party()
    held = alice.lock("x").acquire()
    for at in cut_points(again):
        steps = Steps(bob, at)
        try:
            bob.lock("x").acquire(timeout=0.02)
        except CUT:
            assert steps.hit
        except AcquireTimeout:
            assert not steps.hit
            break
        finally:
            steps.remove()
        world.wait_for(lambda: len(world.line("x").claims) == 1, what="the withdrawal")
    assert min(at) > 4
    assert held.valid
    held.release()
    free_at_once(world, "x", bob)


@ONE_OR_TWO
@pytest.mark.parametrize("busy", [False, True], ids=["free", "busy"])
def test_a_try(world: Scene, busy: bool, again: bool) -> None:
    alice, bob = world.party(), world.party()
    held = alice.lock("x").acquire() if busy else None
    for at in cut_points(again):
        steps = Steps(bob, at)
        lease = None
        try:
            lease = bob.lock("x").try_acquire()
        except CUT:
            assert steps.hit
        else:
            assert not steps.hit
        finally:
            steps.remove()
        if lease is not None:
            lease.release()
        world.wait_for(lambda: len(world.line("x").claims) == int(busy), what="the withdrawal")
        if not steps.hit:
            break
    assert min(at) > 2
    if held is not None:
        held.release()
    free_at_once(world, "x", bob)


@ONE_OR_TWO
@pytest.mark.parametrize("kind", KINDS)
def test_a_release(world: Scene, kind: str, again: bool) -> None:
    alice, bob = world.party(), world.party()
    for at in cut_points(again):
        name = f"x{min(at)}"
        lease = getattr(bob, kind)(name).acquire()
        steps = Steps(bob, at)
        try:
            lease.release()
        except CUT:
            assert steps.hit
        else:
            assert not steps.hit
        finally:
            steps.remove()
        assert not lease.valid
        with pytest.raises(NotHeld):
            lease.release()
        free_at_once(world, name, alice)
        if not steps.hit:
            break
    assert min(at) > 2


def test_a_release_with_somebody_waiting(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    for at in cut_points(False):
        name = f"x{min(at)}"
        lease = bob.lock(name).acquire()
        (waits,) = world.queue_up(name, partial(lambda n: alice.lock(n).acquire.start(), name))
        steps = Steps(bob, at)
        try:
            lease.release()
        except CUT:
            assert steps.hit
        finally:
            steps.remove()
        waits.result().release()
        world.wait_until_free(name)
        if not steps.hit:
            break


def test_a_release_of_a_lost_lease_touches_nobody(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    for at in cut_points(False):
        name = f"x{min(at)}"
        late = bob.lock(name).acquire()
        world.evict(name)
        taken = alice.lock(name).acquire(timeout=A_MINUTE)
        steps = Steps(bob, at)
        with pytest.raises((*CUT, LeaseLost)):
            late.release()
        steps.remove()
        assert [held.id for held in world.line(name).claims] == [taken.id]
        taken.release()
        if not steps.hit:
            break


@pytest.mark.needs("read_write")
@pytest.mark.parametrize("change", ["extend", "downgrade"])
def test_a_change_leaves_the_lease_rightly_owned(world: Scene, change: str) -> None:
    alice, bob = world.party(), world.party()
    for at in cut_points(False):
        name = f"x{min(at)}"
        lease = bob.write(name).acquire()
        steps = Steps(bob, at)
        try:
            if change == "extend":
                lease.extend(90)
            else:
                lease.downgrade()
        except CUT:
            assert steps.hit
        finally:
            steps.remove()
        assert lease.valid
        assert [held.id for held in world.line(name).claims] == [lease.id]
        assert alice.write(name).try_acquire() is None
        lease.release()
        free_at_once(world, name, alice)
        if not steps.hit:
            break


@pytest.mark.needs("read_write")
def test_leaving_a_write_inside_a_read_leaves_the_read_rightly_owned(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    for at in cut_points(False):
        name = f"x{min(at)}"
        writing = bob.write(name).acquire()
        reading = bob.read(name).acquire()
        steps = Steps(bob, at)
        try:
            writing.release()
        except CUT:
            assert steps.hit
        finally:
            steps.remove()
        assert reading.valid
        assert alice.write(name).try_acquire() is None
        reading.release()
        free_at_once(world, name, alice)
        if not steps.hit:
            break


@ONE_OR_TWO
def test_a_with_block(world: Scene, again: bool) -> None:
    alice, bob = world.party(), world.party()
    for at in cut_points(again):
        name = f"x{min(at)}"
        steps = Steps(bob, at)
        lock = bob.lock(name)

        def work(lock: object = lock) -> None:
            with lock.real:  # type: ignore[attr-defined]
                pass

        async def async_work(lock: object = lock) -> None:
            async with lock.real:  # type: ignore[attr-defined]
                await asyncio.sleep(0)

        try:
            bob.do(work if world.flavour == "sync" else async_work)
        except CUT:
            assert steps.hit
        else:
            assert not steps.hit
        finally:
            steps.remove()
        free_at_once(world, name, alice)
        if not steps.hit:
            break
    assert min(at) > 4


@pytest.mark.flavour("asyncio")
@pytest.mark.parametrize("story", ["free", "waits", "times out", "release"])
def test_a_cancel_at_every_real_suspension(world: Scene, story: str) -> None:
    """The same, at the points where this backend's own code gives way to the loop."""
    alice, bob, carol = world.party(), world.party(), world.party()
    for nth in itertools.count(1):
        assert nth < MANY
        name = f"x{nth}"
        held = alice.lock(name).acquire() if story in ("waits", "times out") else None
        mine = bob.lock(name).acquire() if story == "release" else None
        lock = bob.lock(name).real

        async def work(lock: object = lock, mine: object = mine) -> object:
            if mine is not None:
                return await mine.real.release()  # type: ignore[attr-defined]
            timeout = 0.02 if story == "times out" else None
            return await lock.acquire(timeout)  # type: ignore[attr-defined]

        cut = CancelAt(work(), nth)

        async def run(cut: CancelAt = cut) -> object:
            return await cut

        pending = bob.begin(run)
        if story == "waits":
            world.wait_for(partial(lambda n, p: p.done or len(world.line(n).claims) == 2, name, pending), what="Bob")
            assert held is not None
            held.release()
            held = None
        try:
            lease = pending.result()
            if lease is not None:
                lease.release()
        except asyncio.CancelledError:
            assert cut.hit
        except AcquireTimeout:
            pass
        if held is not None:
            held.release()
        free_at_once(world, name, carol)
        if not cut.hit:
            break


@pytest.mark.flavour("sync")
@pytest.mark.parametrize("story", ["free", "busy"])
def test_ctrl_c_from_the_keyboard_while_waiting(world: Scene, story: str) -> None:
    """A real signal in the main thread, where Python delivers it."""
    alice = world.party()
    held = alice.lock("x").acquire()
    with lockline.connect(world.place, **world.world.options()) as client:
        with alarm(KeyboardInterrupt(), after=0.2), pytest.raises(KeyboardInterrupt):
            client.lock("x", ttl=LONG).acquire(timeout=None if story == "free" else A_MINUTE)
        assert len(world.line("x").claims) == 1
        held.release()
        free_at_once(world, "x", alice)
