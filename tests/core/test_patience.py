"""How long a call asks a store that does not answer, and when it stops asking one that has."""

from __future__ import annotations

import time

import pytest

import lockline
from lockline import BackendUnavailable
from lockline.core import engine as engine_module
from tests.contract.faults import Faults
from tests.contract.parties import Face, ThreadParty
from tests.servers.process import wait_for


class Denied(BackendUnavailable):
    """The store answered, and the answer is no."""

    permanent = True


def test_an_acquire_goes_on_to_the_callers_deadline_when_the_store_was_silent_for_a_ttl(alice: ThreadParty) -> None:
    faults = Faults(alice)
    faults.hang("enter", times=2)
    lease = alice.lock("x", ttl=2).acquire(timeout=120)
    assert faults.count("enter") == 3
    lease.release()


def test_a_wait_goes_on_to_the_callers_deadline_when_the_store_was_silent_for_a_ttl(alice: ThreadParty) -> None:
    other = ThreadParty("other")
    other.client = alice.client.given_to(other)
    held = other.lock("x", ttl=600).acquire()
    faults = Faults(alice)
    faults.fail("place", times=40)
    faults.fail("renew", times=None)
    waits = alice.lock("x", ttl=1).acquire.start(timeout=120)
    time.sleep(2.5)
    assert not waits.done
    faults.heal()
    held.release()
    waits.result(60).release()
    other.end()


def test_without_a_timeout_a_silent_store_is_an_error_after_a_ttl(alice: ThreadParty) -> None:
    faults = Faults(alice)
    faults.hang("enter")
    with pytest.raises(BackendUnavailable):
        alice.lock("x", ttl=0.3).acquire()


def test_a_try_does_not_take_a_long_ttl_to_say_that_nobody_answers(
    alice: ThreadParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "A_TRY", 0.2)
    faults = Faults(alice)
    faults.hang("enter")
    with pytest.raises(BackendUnavailable):
        alice.lock("x", ttl=3600).try_acquire()


@pytest.mark.parametrize("call", ["enter", "place"])
def test_a_store_that_says_no_is_not_asked_again(alice: ThreadParty, call: str) -> None:
    other = ThreadParty("other")
    other.client = alice.client.given_to(other)
    held = other.lock("x", ttl=30).acquire()
    faults = Faults(alice)
    faults.fail(call, times=None, error=Denied("no permission to listen"))
    with pytest.raises(Denied):
        alice.lock("x", ttl=30).acquire(timeout=20)
    assert faults.count(call) == 1
    assert not alice.client.inspect("x").waiters
    held.release()
    other.end()


def test_a_waiter_that_nobody_could_renew_for_a_while_gets_a_lease_worth_having(
    alice: ThreadParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn comes a moment before its place would have run out: the grant is renewed before it is handed over."""
    other = ThreadParty("other")
    other.client = Face(other, lockline.connect(alice.client.url))
    held = alice.lock("x", ttl=600).acquire()
    faults = Faults(other)
    faults.fail("renew", times=None)
    waits = other.lock("x", ttl=600).acquire.start()
    wait_for(lambda: alice.client.inspect("x").waiters, 60, "one that waits")
    place = alice.client.inspect("x").waiters[0].id
    runtime = other.client.real._engine.runtime
    now = runtime.now
    # Of its place are left 94 s, by its own clock.
    monkeypatch.setattr(runtime, "now", lambda: now() + 500)
    faults.heal()
    held.release()
    lease = waits.result()
    assert lease.id == place
    assert lease.remaining() > 300
    lease.release()
    other.client.close()
    other.end()


def test_a_wait_whose_look_could_not_even_be_sent_is_withdrawn_all_the_same(alice: ThreadParty) -> None:
    other = ThreadParty("other")
    other.client = alice.client.given_to(other)
    held = other.lock("x", ttl=30).acquire()
    faults = Faults(alice)
    unsent = Denied("nobody there")
    unsent.unsent = True
    faults.fail("place", error=unsent)
    with pytest.raises(Denied) as told:
        alice.lock("x", ttl=30).acquire(timeout=20)
    assert not told.value.unsent
    assert not alice.client.inspect("x").waiters
    held.release()
    other.end()
