"""A line that nobody stands in is forgotten soon, and never before its last ticket may be."""

from __future__ import annotations

import pytest

import lockline

from .conftest import Town

pytestmark = pytest.mark.server

SOON = 40_000
LONG = 3600


def remembered(town: Town) -> int:
    """Milliseconds for which the idle line still remembers its last ticket."""
    assert town.fields("x").keys() == {"last"}
    return int(town.server.command("PTTL", town.key("x")))


@pytest.mark.parametrize("ttl", [5, 10, 29, 31, LONG])
def test_an_idle_line_is_forgotten_soon_whatever_the_ttl_of_its_lease(town: Town, ttl: float) -> None:
    alice = town.near()
    alice.lock("x", ttl=ttl).acquire().release()
    assert 5_000 < remembered(town) <= SOON


def test_an_idle_line_is_forgotten_soon_after_a_lease_that_was_extended_for_long(town: Town) -> None:
    alice = town.near()
    lease = alice.lock("x", ttl=10).acquire()
    lease.extend(LONG)
    assert town.server.command("PTTL", town.key("x")) > LONG * 1000
    lease.release()
    assert 5_000 < remembered(town) <= SOON


def test_an_idle_line_is_forgotten_soon_after_one_with_a_long_ttl_gave_up_waiting(town: Town) -> None:
    alice, bob, carol = town.near(), town.near(), town.near()
    lease = alice.lock("x", ttl=10).acquire()
    waiting = carol.lock("x", ttl=10).acquire.start()
    town.direct.wait_for_line("x", holders=1, waiters=1)
    bob.lock("warm").acquire().release()
    with pytest.raises(lockline.AcquireTimeout):
        bob.lock("x", ttl=LONG).acquire(timeout=0.5)
    lease.release()
    waiting.result(60).release()
    assert 5_000 < remembered(town) <= SOON


def test_a_renewal_keeps_the_line_of_a_holder_alone(town: Town) -> None:
    alice = town.near()
    lease = alice.lock("x", ttl=60).acquire()
    town.server.command("PEXPIRE", town.key("x"), 30_000)
    lease.validate()
    assert town.server.command("PTTL", town.key("x")) > 40_000
    lease.release()
