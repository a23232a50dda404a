"""How long a session may be trusted: by what the leader must have heard of it, never by what a follower said."""

from __future__ import annotations

import pytest

from lockline.backends.zookeeper.session import Session
from lockline.core.clock import validity


def test_nothing_is_trusted_before_a_majority_has_answered() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    assert session.ceiling.until == 0.0


def test_a_new_session_counts_from_the_moment_it_was_asked_for() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    session.confirm(100.1)
    assert session.ceiling.until == 100.0 + validity(10.0)


def test_a_write_is_not_news_of_itself_but_of_what_was_sent_well_before() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    for moment in (105.0, 106.0, 107.9, 108.0):
        session.touch(moment)
    session.confirm(108.0)
    assert session.ceiling.until == pytest.approx(105.0 + validity(10.0))


def test_touches_alone_confirm_nothing() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    session.confirm(100.0)
    before = session.ceiling.until
    for moment in range(101, 120):
        session.touch(float(moment))
    assert session.ceiling.until == before


def test_a_late_confirmation_never_lowers_what_was_confirmed() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    session.touch(110.0)
    session.confirm(115.0)
    high = session.ceiling.until
    session.confirm(101.0)
    assert session.ceiling.until == high


def test_a_shorter_timeout_is_believed_before_it_is_granted() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    session.confirm(100.0)
    session.lower(2.0, now=101.0)
    assert session.ceiling.until == 101.0 + validity(2.0)


def test_what_has_ended_is_never_confirmed_again() -> None:
    session = Session(1, 10.0, 10000, sent=100.0)
    session.confirm(100.0)
    session.end()
    session.confirm(101.0)
    assert session.ceiling.until == 0.0
