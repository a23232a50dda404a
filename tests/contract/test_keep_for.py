"""keep_for: the name is held at least that long from the grant, also after a release before that."""

from __future__ import annotations

import time
from typing import Any

import pytest

import lockline
from lockline import BackendUnavailable, ConfigError, NotHeld, aio
from lockline.runtime.blocking import run

from .faults import Faults
from .parties import LONG
from .scene import A_MINUTE, Passed, Scene

TTL = 2.0
"""Less than it is kept for: a store that does not make it longer lets the next one in when this is over."""
KEEP_FOR = 3.0
HOURS = 7200.0


@pytest.mark.lacks("keeps_for")
def test_a_store_whose_claims_end_with_their_client_says_which_can(world: Scene) -> None:
    with pytest.raises(ConfigError, match="keep_for has to outlive"):
        world.party().lock("x", keep_for=5)


@pytest.mark.needs("keeps_for")
def test_the_name_stays_taken_after_an_early_release_until_its_time_has_come(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    passed = Passed()
    with alice.lock("x", ttl=TTL, keep_for=KEEP_FOR) as lease:
        pass
    assert not lease.valid
    with pytest.raises(NotHeld):
        lease.release()
    waiting = bob.lock("x").acquire.start()
    next_one = waiting.result()
    assert passed() >= KEEP_FOR * 0.98
    assert next_one.token > lease.token
    next_one.release()


@pytest.mark.needs("keeps_for")
def test_the_name_stays_taken_when_the_client_has_gone(world: Scene) -> None:
    """The client gives back with its end whatever goes with it: what is there after that is kept by the store, for so long."""
    alice, bob = world.party(), world.party()
    alice.lock("x", keep_for=HOURS).acquire().release()
    given_back_by_close = alice.lock("y", keep_for=HOURS).acquire()
    alice.client.close()
    assert not given_back_by_close.valid
    for name in ("y", "x"):
        (kept,) = world.line(name).holders
        assert kept.remaining > HOURS / 2
        assert bob.lock(name).try_acquire() is None
        world.evict(name)


@pytest.mark.needs("keeps_for")
@pytest.mark.processes
def test_the_name_stays_taken_when_the_process_was_killed_after_its_release(world: Scene) -> None:
    bob, process = world.party(), world.process()
    passed = Passed()
    process.ask("acquire", name="x", ttl=TTL, keep_for=KEEP_FOR)
    assert process.ask("release") == {}
    process.kill()
    bob.lock("x").acquire(timeout=A_MINUTE).release()
    assert passed() >= KEEP_FOR * 0.98


@pytest.mark.needs("keeps_for")
def test_a_renewal_that_arrives_after_the_release_takes_nothing_away(world: Scene) -> None:
    """It was under way when the lease was released, and must not tie the claim to its client again, which goes after that."""
    alice, bob = world.party(), world.party()
    lease = alice.lock("x", ttl=LONG, keep_for=LONG / 4).acquire()
    engine, claim = alice.client.real._engine, lease.real._live.claim
    lease.release()

    def renew() -> Any:
        renewal = engine.backend.renew([claim], engine.runtime.now() + A_MINUTE)
        return run(renewal) if world.flavour == "sync" else renewal

    alice.do(renew)
    alice.client.close()
    (kept,) = world.line("x").holders
    assert kept.id == claim.id
    assert bob.lock("x").try_acquire() is None
    world.evict("x")


@pytest.mark.needs("keeps_for")
def test_one_who_holds_it_for_longer_gives_it_back_at_once(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    with alice.lock("x", keep_for=0.05):
        time.sleep(0.1)
    bob.lock("x").try_acquire().release()


@pytest.mark.needs("keeps_for")
def test_an_operator_can_end_it(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    alice.lock("x", keep_for="1h").acquire().release()
    assert bob.lock("x").try_acquire() is None
    assert world.evict("x") == 1
    bob.lock("x").acquire(timeout=A_MINUTE).release()


@pytest.mark.parametrize("connect", [lockline.connect, aio.connect], ids=["sync", "asyncio"])
def test_what_is_wrong_is_said_before_any_request(connect: type) -> None:
    client = connect("memory:keep-for")
    for wrong in (0, -1, "soon", True, [5]):
        with pytest.raises(ConfigError):
            client.lock("x", keep_for=wrong)


@pytest.mark.needs("keeps_for")
def test_it_is_not_handed_on_inside_the_client_before_its_time(world: Scene) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    lease = alice.lock("x", keep_for=HOURS).acquire()
    (waiting,) = world.queue_up("x", bob.lock("x").acquire.start)
    lease.release()
    # A turn is handed on by the release itself, before it asks the store.
    assert not any(live.turn for live in alice.client.real._engine._keeper.books.values())
    assert not waiting.done
    assert world.line("x").holders[0].remaining > HOURS / 2
    assert world.evict("x") == 1
    waiting.result().release()


@pytest.mark.needs("keeps_for")
@pytest.mark.parametrize("problem", [BackendUnavailable("no answer"), KeyboardInterrupt()], ids=["silence", "cut"])
def test_the_name_stays_taken_when_its_release_got_no_answer(world: Scene, problem: BaseException) -> None:
    """Whoever sees to it in the background lets it last as well, and takes nothing away."""
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
