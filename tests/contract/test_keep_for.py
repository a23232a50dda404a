"""keep_for: the name is held at least that long from the grant, also after a release before that."""

from __future__ import annotations

import time

import pytest

import lockline
from lockline import BackendUnavailable, ConfigError, NotHeld, aio
from lockline.core.backend import Lasting

from .faults import Faults
from .scene import Scene


def lasts(world: Scene) -> bool:
    return isinstance(world.party().client.real._engine.backend, Lasting)


def test_a_store_whose_claims_end_with_their_client_says_which_can(world: Scene) -> None:
    alice = world.party()
    if not lasts(world):
        with pytest.raises(ConfigError, match="keep_for has to outlive"):
            alice.lock("x", keep_for=5)


def test_the_name_stays_taken_after_an_early_release_until_its_time_has_come(world: Scene) -> None:
    if not lasts(world):
        return
    alice, bob = world.party(), world.party()
    keep_for = world.ttl(0.6)
    ttl = world.ttl(0.3)
    sent = time.monotonic()
    with alice.lock("x", ttl=ttl, keep_for=keep_for) as lease:
        pass
    assert not lease.valid
    with pytest.raises(NotHeld):
        lease.release()
    waiting = bob.lock("x", ttl=ttl).acquire.start()
    next_one = waiting.result()
    assert time.monotonic() - sent >= keep_for * 0.98
    assert next_one.token > lease.token
    next_one.release()


def test_the_name_stays_taken_when_the_client_has_gone(world: Scene) -> None:
    if not lasts(world):
        return
    alice, bob = world.party(), world.party()
    keep_for = world.ttl(0.6)
    sent = time.monotonic()
    alice.lock("x", ttl=world.ttl(0.3), keep_for=keep_for).acquire().release()
    given_back_by_close = alice.lock("y", ttl=world.ttl(0.3), keep_for=keep_for).acquire()
    alice.client.close()
    assert not given_back_by_close.valid
    for name in ("y", "x"):
        bob.lock(name).acquire(timeout=20).release()
        assert time.monotonic() - sent >= keep_for * 0.98


@pytest.mark.processes
def test_the_name_stays_taken_when_the_process_was_killed_after_its_release(world: Scene) -> None:
    if not lasts(world):
        return
    bob, process = world.party(), world.process()
    keep_for = world.ttl(1.2)
    sent = time.monotonic()
    process.ask("acquire", name="x", ttl=world.ttl(0.6), keep_for=keep_for)
    assert process.ask("release") == {}
    process.kill()
    bob.lock("x").acquire(timeout=20).release()
    assert time.monotonic() - sent >= keep_for * 0.98


def test_one_who_holds_it_for_longer_gives_it_back_at_once(world: Scene) -> None:
    if not lasts(world):
        return
    alice, bob = world.party(), world.party()
    with alice.lock("x", ttl=20, keep_for=0.05):
        time.sleep(0.1)
    bob.lock("x").try_acquire().release()


def test_an_operator_can_end_it(world: Scene) -> None:
    if not lasts(world):
        return
    alice, bob = world.party(), world.party()
    alice.lock("x", keep_for="1h").acquire().release()
    assert bob.lock("x").try_acquire() is None
    assert world.evict("x") == 1
    bob.lock("x").acquire(timeout=10).release()


@pytest.mark.parametrize("connect", [lockline.connect, aio.connect], ids=["sync", "asyncio"])
def test_what_is_wrong_is_said_before_any_request(connect: type) -> None:
    client = connect("memory:keep-for")
    for wrong in (0, -1, "soon", True, [5]):
        with pytest.raises(ConfigError):
            client.lock("x", keep_for=wrong)


def test_it_is_not_handed_on_inside_the_client_before_its_time(world: Scene) -> None:
    if not lasts(world):
        return
    alice = world.party()
    bob = world.sibling(alice)
    keep_for = world.ttl(0.6)
    sent = time.monotonic()
    lease = alice.lock("x", ttl=world.ttl(0.3), keep_for=keep_for).acquire()
    waiting = bob.lock("x").acquire.start()
    world.wait_for(lambda: len(world.line("x").claims) == 2 or not world.world.has_lines)
    lease.release()
    waiting.result().release()
    assert time.monotonic() - sent >= keep_for * 0.98


@pytest.mark.parametrize("problem", [BackendUnavailable("no answer"), KeyboardInterrupt()], ids=["silence", "cut"])
def test_the_name_stays_taken_when_its_release_got_no_answer(world: Scene, problem: BaseException) -> None:
    """Whoever sees to it in the background lets it last as well, and takes nothing away."""
    if not lasts(world):
        return
    alice, bob = world.party(), world.party()
    lease = alice.lock("x", keep_for="1h").acquire()
    faults = Faults(alice)
    faults.fail("last", error=problem)
    with pytest.raises(type(problem)):
        lease.release()
    world.wait_for(lambda: faults.count("last") + faults.count("leave") >= 2)
    alice.client.close()
    assert bob.lock("x").try_acquire() is None
    world.evict("x")
