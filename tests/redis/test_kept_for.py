"""A name that is kept for a while after its release is kept for that long, and not for the ttl that its lease had."""

from __future__ import annotations

from .conftest import Town


def test_a_name_is_free_when_its_time_is_over_and_not_a_ttl_later(town: Town) -> None:
    alice, bob = town.near(), town.near()
    alice.lock("x", ttl=3600, keep_for=20).acquire().release()
    (kept,) = town.direct.line("x").holders
    assert kept.remaining <= 20
    assert bob.lock("x").try_acquire() is None


def test_one_who_waits_hears_that_its_turn_comes_sooner(town: Town) -> None:
    """It has planned to look when the ttl would have been over, which is in an hour."""
    alice, bob = town.near(), town.near()
    lease = alice.lock("x", ttl=3600, keep_for=6).acquire()
    (waiting,) = town.direct.queue_up("x", bob.lock("x").acquire.start)
    lease.release()
    waiting.result().release()
