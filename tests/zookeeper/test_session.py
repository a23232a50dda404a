"""How long a session may be trusted: by what the leader must have heard of it, never by what a follower said."""

from __future__ import annotations

import pytest

from lockline.backends.zookeeper.session import Session
from lockline.runtime.clock import validity


def test_nothing_is_trusted_before_a_majority_has_answered() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    assert session.ceiling.until == 0.0


def test_a_new_session_counts_from_the_moment_it_was_asked_for() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    session.confirm(100.1, 100.2)
    assert session.ceiling.until == 100.0 + validity(10.0)


def test_a_write_is_not_news_of_itself_but_of_the_one_before_the_last_ping() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    for sent, answered in ((105.0, 105.1), (106.0, 106.1), (108.3, 108.4), (108.5, 108.6)):
        session.confirm(sent, answered)
    # The first lies a ping before the third, and the fourth was sent when the third had been answered.
    assert session.ceiling.until == pytest.approx(105.0 + validity(10.0))


def test_a_write_that_was_answered_late_counts_from_its_answer_for_those_after_it() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    before = 100.0 + validity(10.0)
    # Sent long before the second, but both were answered at one moment: no ping lies between.
    for sent, answered in ((105.0, 109.0), (108.9, 109.0), (109.1, 109.2)):
        session.confirm(sent, answered)
    assert session.ceiling.until == before


def test_the_third_write_is_sent_after_the_second_was_answered_or_proves_nothing() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    for sent, answered in ((105.0, 105.1), (109.0, 109.5), (109.4, 109.6)):
        session.confirm(sent, answered)
    assert session.ceiling.until == 100.0 + validity(10.0)
    session.confirm(109.5, 109.7)
    assert session.ceiling.until == 105.0 + validity(10.0)


def test_a_late_confirmation_never_lowers_what_was_confirmed() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    for moment in (105.0, 110.0, 115.0):
        session.confirm(moment, moment + 0.1)
    high = session.ceiling.until
    assert high == 105.0 + validity(10.0)
    session.confirm(101.0, 115.2)
    assert session.ceiling.until == high


def test_a_server_that_grants_less_than_the_last_one_is_believed_at_once() -> None:
    session = Session(1, 30.0, 30000, sent=100.0)
    session.confirm(100.0, 100.1)
    session.connected(102.0, 4.0, 30000)
    assert session.ceiling.until == 102.0 + validity(4.0)


def test_a_proof_that_lacks_only_its_last_write_does_not_wait_for_its_turn_when_time_is_short() -> None:
    """A slow ensemble: each answer takes a seventh of the timeout."""
    session, now = Session(1, 7.0, 7000, sent=100.0), 100.0
    under_way: list[tuple[float, float]] = []
    session.confirm(100.0, 101.0)
    while now < 160.0:
        now += 0.05
        while under_way and under_way[0][1] <= now:
            session.confirm(*under_way.pop(0))
        if session.due(now) <= now:
            session.proving(now)
            under_way.append((now, now + 1.0))
        assert session.ceiling.until > now


def test_a_shorter_timeout_is_believed_before_it_is_granted() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    session.confirm(100.0, 100.1)
    session.lower(2.0, now=101.0)
    assert session.ceiling.until == 101.0 + validity(2.0)


def test_what_has_ended_is_never_confirmed_again() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    session.confirm(100.0, 100.1)
    session.end()
    session.confirm(101.0, 101.1)
    assert session.ceiling.until == 0.0
