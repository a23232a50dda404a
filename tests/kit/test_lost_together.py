"""Several locks of which one is lost, or two at once: whoever listens is called once, and whoever waits wakes, in whichever threads it happens."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import lockline
from lockline import BackendUnavailable, LeaseLost
from lockline.sync import Lease
from tests.contract.faults import Faults
from tests.contract.parties import Face, ThreadParty

from ..servers.process import wait_for
from ..standstill import EachInstruction

LOCKS = "/lockline/kit/locks.py"


def sleeping(leases: Any) -> int:
    """How many wait for a loss of these."""
    return len(leases._signal._sleeping) if leases._signal is not None else 0


def test_two_losses_that_are_told_in_two_threads_at_once_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    listening: list[Any] = []
    monkeypatch.setattr(Lease, "on_lost", lambda lease, call: listening.append(call))
    lost = LeaseLost("a", token=1, reason="evicted")
    each = EachInstruction(LOCKS, least=5)
    with lockline.connect("memory:lost-together") as client, client.locks("a", "b") as leases:
        for nth in each:
            told: list[LeaseLost] = []
            listening.clear()
            leases.on_lost(told.append)
            one, other = listening
            first = each.stand_still(lambda call=one: call(lost), nth)  # type: ignore[misc]
            other(lost)
            first.go_on()
            assert told == [lost], f"it stood before its instruction {nth}"


def test_a_loss_wakes_whoever_is_about_to_wait_for_it_and_all_who_wait_already() -> None:
    """Long before a ttl is over, by when each would look by itself."""
    each = EachInstruction(LOCKS, least=50)
    with lockline.connect("memory:wait-together") as client:
        for nth in each:
            leases, woken = client.locks(f"a{nth}", f"b{nth}", ttl=600).acquire(), threading.Event()

            def wait(leases: Any = leases, woken: threading.Event = woken) -> None:
                leases.lost.wait()
                woken.set()

            first = each.stand_still(leases.lost.wait, nth, lambda of=leases: sleeping(of) == 1)  # type: ignore[misc]
            already = sleeping(leases)
            threading.Thread(target=wait, daemon=True).start()
            wait_for(lambda of=leases, n=already: sleeping(of) > n, 60, "another who sleeps")  # type: ignore[misc]
            leases[f"a{nth}"]._live.lose("evicted")
            first.go_on()
            assert woken.wait(60), f"the other stood before its instruction {nth}"
            with pytest.raises(LeaseLost):
                leases.release()


def test_a_wait_for_a_loss_ends_with_a_release_that_got_no_answer() -> None:
    """Nobody holds anything from then on, whether it is repeated or not."""
    party = ThreadParty("alice")
    party.client = Face(party, lockline.connect(f"memory:{time.monotonic_ns()}"))
    leases = party.client.real.locks("a", "b", ttl=600).acquire()
    Faults(party).fail("leave", times=2)
    told: list[bool] = []
    waits = threading.Thread(target=lambda: told.append(leases.lost.wait()), daemon=True)
    waits.start()
    wait_for(lambda: sleeping(leases), 60, "one who sleeps")
    with pytest.raises(BackendUnavailable):
        leases.release()
    waits.join(60)
    assert told == [False]
    party.client.close()
    party.end()


def test_they_are_taken_in_one_order_whatever_the_order_of_the_names() -> None:
    """A client that waits for the first of them holds none of the others, so no two clients wait for each other."""
    with lockline.connect("memory:one-order") as client, lockline.connect("memory:one-order") as other:
        first = other.lock("a").acquire()
        thread = threading.Thread(target=lambda: client.locks("b", "a").acquire().release())
        thread.start()
        wait_for(lambda: other.inspect("a").waiters, 60, "a claim that waits for the first of them")
        second = other.lock("b").try_acquire()
        assert second is not None
        second.release()
        first.release()
        thread.join(60)
        assert not thread.is_alive()
