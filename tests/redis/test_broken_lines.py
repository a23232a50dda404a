"""A proxy between client and server: replies get lost, connections break, packets vanish, everything is slow.

Whatever happens on the way: never two holders, no claim left behind for longer than stated, and whoever loses a lease
knows it before anybody else can hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from lockline import AcquireTimeout, BackendUnavailable, LeaseLost, LocklineError
from lockline.backends.resp.subscription import AsyncioSubscription, BlockingSubscription
from lockline.runtime import clock
from tests.redis.renewed import wait_for_renewal
from tests.servers.process import wait_for
from tests.tier import sample

from .conftest import Town

pytestmark = pytest.mark.server


@pytest.mark.parametrize("lost", range(4))
def test_the_reply_of_any_one_request_may_get_lost(town: Town, lost: int) -> None:
    alice, bob = town.far(), town.near()
    # Warm, so that the requests that count are those of the story.
    alice.lock("x").acquire().release()
    town.proxy.drop_reply(b"EVALSHA", skip=lost)
    tokens = []
    for _ in range(2):
        lease = alice.lock("x").acquire(timeout=60)
        tokens.append(lease.token)
        assert bob.lock("x").try_acquire() is None
        lease.release()
        after = bob.lock("x").try_acquire()
        assert after is not None, "nothing was left behind"
        tokens.append(after.token)
        after.release()
    assert town.proxy.lost == 1
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("lost", range(3))
def test_a_waiter_whose_reply_gets_lost_still_has_its_turn(town: Town, lost: int) -> None:
    alice, bob, carol = town.far(), town.near(), town.near()
    alice.lock("x").acquire().release()
    held = bob.lock("x").acquire()
    town.proxy.drop_reply(b"EVALSHA", skip=lost)
    waiting = alice.lock("x", ttl=30).acquire.start()
    town.direct.wait_for_line("x", holders=1, waiters=1)
    behind = carol.lock("x").acquire.start()
    town.direct.wait_for_line("x", holders=1, waiters=2)
    held.release()
    lease = waiting.result(60)
    assert not behind.done
    lease.release()
    behind.result(60).release()
    town.direct.wait_until_free("x")


@pytest.mark.parametrize("spoilt", sample([0, 1], range(4)))
def test_an_answer_that_makes_no_sense_is_as_good_as_none(town: Town, spoilt: int) -> None:
    """Something on the way speaks another protocol."""
    alice, bob = town.far(), town.near()
    alice.lock("x").acquire().release()
    town.proxy.spoil_reply(b"HTTP/1.1 502 Bad Gateway\r\n\r\n", b"EVALSHA", skip=spoilt)
    for _ in range(2):
        lease = alice.lock("x").acquire(timeout=60)
        assert bob.lock("x").try_acquire() is None
        lease.release()
        after = bob.lock("x").try_acquire()
        assert after is not None, "nothing was left behind"
        after.release()
    assert town.proxy.lost == 1


def test_a_subscription_that_brings_nonsense_is_made_anew(town: Town) -> None:
    alice, bob = town.far(), town.near()
    held = bob.lock("x").acquire()
    town.proxy.spoil_reply(b"HTTP/1.1 502 Bad Gateway\r\n\r\n", b"SUBSCRIBE")
    waiting = alice.lock("x").acquire.start()
    town.direct.wait_for_line("x", holders=1, waiters=1)
    wait_for(lambda: town.proxy.lost == 1, 60, "the nonsense")
    held.release()
    waiting.result(60).release()


def test_a_lost_reply_with_no_time_left_leaves_nothing_behind(town: Town) -> None:
    alice, bob = town.far(), town.near()
    alice.lock("x").acquire().release()
    town.proxy.black_hole()
    with pytest.raises((BackendUnavailable, AcquireTimeout)):
        alice.lock("x", ttl=1).acquire(timeout=0.2)
    town.proxy.heal()
    town.proxy.cut()
    bob.lock("x").acquire(timeout=60).release()


def test_a_request_that_arrives_after_its_withdrawal_is_refused(town: Town) -> None:
    alice, bob = town.far(socket_timeout=0.3), town.near()
    alice.lock("x").acquire().release()
    town.proxy.strand()
    town.proxy.refuse()
    with pytest.raises(LocklineError):
        alice.lock("x", ttl=30).acquire(timeout=0.1)
    # The withdrawal finds a way; the request itself, long under way, arrives only after that.
    town.proxy.heal()
    wait_for(lambda: any(field[0] == "-" for field in town.fields("x")), 60, "the withdrawal")
    town.proxy.deliver()
    wait_for(lambda: not town.proxy.unanswered, 60, "the server's answer to what came late")
    assert not town.direct.line("x").claims
    bob.lock("x").acquire(timeout=60).release()


def test_a_cut_line_does_not_end_a_lease(town: Town) -> None:
    alice = town.far()
    lease = alice.lock("x", ttl=60).acquire()
    for _ in range(2):
        town.proxy.cut()
        wait_for_renewal(lease)
    token = lease.token
    lease.release()
    again = alice.lock("x").acquire()
    assert again.token > token
    again.release()


def test_a_waiter_whose_line_is_cut_goes_on_waiting_and_is_told(town: Town) -> None:
    alice, bob = town.far(), town.near()
    # Nobody would look for a minute and more unless it is told.
    held = bob.lock("x", ttl=300).acquire()
    waiting = alice.lock("x", ttl=300).acquire.start()
    town.direct.wait_for_line("x", holders=1, waiters=1)
    for _ in range(3):
        town.proxy.cut()
        time.sleep(0.2)
    assert not waiting.done
    held.release()
    waiting.result(60).release()


def test_a_message_that_gets_lost_costs_a_look_and_not_a_ttl(town: Town) -> None:
    """The subscription is a black hole: the server believes that it told, and the waiter has heard nothing."""
    alice, bob = town.far(), town.near()
    held = bob.lock("x", ttl=300).acquire()
    waiting = alice.lock("x", ttl=300).acquire.start()
    town.direct.wait_for_line("x", holders=1, waiters=1)
    town.proxy.strand()
    held.release()
    # A second of silence, two for the answer to a ping: a minute is no part of a ttl.
    waiting.result(60).release()


def test_a_line_that_dies_before_the_subscription_is_confirmed_costs_no_ttl(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = town.far(socket_timeout=0.5), town.near()
    said: list[str] = []
    for kind in (BlockingSubscription, AsyncioSubscription):

        def dies(self: Any, *words: str, say: Callable[..., None] = kind.say) -> None:
            if not said:
                town.proxy.strand()
            said.append(words[0])
            say(self, *words)

        monkeypatch.setattr(kind, "say", dies)
    held = bob.lock("x", ttl=300).acquire()
    waiting = alice.lock("x", ttl=300).acquire.start()
    wait_for(lambda: said, 60, "the subscription")
    held.release()
    waiting.result(60).release()
    assert said[0] == "SUBSCRIBE"


def test_a_release_in_a_black_hole_may_be_repeated(town: Town) -> None:
    alice, bob = town.far(socket_timeout=0.2), town.near()
    lease = alice.lock("x", ttl=1).acquire()
    town.proxy.black_hole()
    with pytest.raises(LocklineError):
        lease.release()
    town.proxy.heal()
    town.proxy.cut()
    bob.lock("x").acquire(timeout=60).release()


def test_whoever_is_cut_off_knows_of_its_loss_before_anybody_else_can_hold(town: Town) -> None:
    alice, bob = town.far(), town.near()
    lease = alice.lock("x", ttl=2).acquire()
    told: list[None] = []
    lease.on_lost(lambda: told.append(None))
    town.proxy.black_hole()
    next_lease = bob.lock("x", ttl=300).acquire.start().result(60)
    held_at = clock.now()
    assert not lease.valid
    # Since its own deadline, whenever the news of it got through.
    assert lease.real._live.deadline < held_at
    wait_for(lambda: told, 60, "the news of the loss")
    assert next_lease.token > lease.token
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    assert next_lease.valid
    next_lease.release()


def test_a_waiter_that_is_cut_off_holds_up_nobody_for_longer_than_its_ttl(town: Town) -> None:
    """Five seconds: less is no ttl with which a waiter of a busy machine surely stays until the next one has come."""
    alice, bob, carol = town.far(), town.near(), town.near()
    held = bob.lock("x", ttl=300).acquire()
    cut_off = alice.lock("x", ttl=5).acquire.start(timeout=60)
    town.direct.wait_for_line("x", holders=1, waiters=1)
    behind = carol.lock("x", ttl=300).acquire.start()
    town.direct.wait_for_line("x", holders=1, waiters=2)
    town.proxy.black_hole()
    held.release()
    behind.result(60).release()
    town.proxy.heal()
    town.proxy.cut()
    try:
        cut_off.result(60).release()
    except LocklineError:
        pass
    town.direct.wait_until_free("x")


def test_a_slow_line_shortens_what_is_trusted_and_nothing_else(town: Town) -> None:
    alice = town.far()
    alice.lock("x").acquire().release()
    town.proxy.delay(0.2)
    lease = alice.lock("x", ttl=10).acquire()
    assert lease.remaining() <= 10 - 0.4
    lease.release()
    town.proxy.heal()


def test_a_server_that_refuses_connections_gives_a_typed_error_in_time(town: Town) -> None:
    alice = town.far()
    town.proxy.refuse()
    with pytest.raises(BackendUnavailable, match="127"):
        alice.lock("x", ttl=1).acquire.start().result(60)
    town.proxy.heal()
    alice.lock("x").acquire().release()
