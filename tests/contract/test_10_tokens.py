"""Promise 10: tokens never go down."""

from __future__ import annotations

import itertools

import pytest

from lockline import LeaseLost

from ..tier import sample
from .parties import Party
from .scene import A_MINUTE, Scene


def rising(tokens: list[int]) -> bool:
    return all(earlier < later for earlier, later in itertools.pairwise(tokens))


def test_each_grant_has_a_higher_token_than_all_before(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    tokens = []
    for _ in range(10):
        for party in (alice, bob):
            with party.lock("x") as lease:
                tokens.append(lease.token)
    assert rising(tokens)
    assert all(isinstance(token, int) and token > 0 for token in tokens)


def test_tokens_rise_over_expiry_eviction_and_withdrawal(world: Scene) -> None:
    alice, bob, carol, dave = (world.party() for _ in range(4))
    ttl = world.ttl(0.2)
    late = alice.lock("x", ttl=ttl, renew=False).acquire()
    after_expiry = bob.lock("x").acquire(timeout=A_MINUTE)
    world.evict("x")
    after_eviction = carol.lock("x").acquire(timeout=A_MINUTE)
    assert alice.lock("x").try_acquire() is None
    after_eviction.release()
    after_a_failed_try = alice.lock("x").acquire(timeout=A_MINUTE)
    after_a_failed_try.release()
    again = dave.lock("x").acquire()
    again.release()
    with pytest.raises(LeaseLost):
        after_expiry.release()
    assert rising([late.token, after_expiry.token, after_eviction.token, after_a_failed_try.token, again.token])


def test_tokens_rise_after_the_line_was_empty(world: Scene) -> None:
    alice = world.party()
    tokens = []
    for _ in range(5):
        lease = alice.lock("x").acquire()
        tokens.append(lease.token)
        lease.release()
        world.wait_until_free("x")
    assert rising(tokens)


def test_tokens_rise_from_client_to_client(world: Scene) -> None:
    tokens = []
    for _ in range(3):
        somebody = world.party()
        with somebody.lock("x") as lease:
            tokens.append(lease.token)
        somebody.client.close()
    assert rising(tokens)


def test_tokens_rise_in_the_order_of_grants_among_many(world: Scene) -> None:
    alice = world.party()
    many = [world.sibling(alice) for _ in range(4)] + [world.party() for _ in range(3)]
    lease = alice.lock("x").acquire()
    waiting = world.queue_up("x", *((lambda p=party: p.lock("x").acquire.start()) for party in many))
    tokens = [lease.token]
    lease.release()
    # Where there is no order of arrival, the tokens still follow the order of the grants.
    for granted in world.in_turn(waiting):
        tokens.append(granted.token)
        granted.release()
    assert rising(tokens)


@pytest.mark.needs("semaphores")
def test_each_permit_has_its_own_token(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    permits = [party.semaphore("x", limit=4).acquire() for party in (alice, bob, alice, bob)]
    assert rising([permit.token for permit in permits])
    for permit in permits:
        permit.release()
    with alice.semaphore("x", limit=4) as later:
        assert later.token > permits[-1].token


@pytest.mark.needs("read_write")
def test_readers_and_writers_share_one_order_of_tokens(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    tokens = []
    for kind in ("read", "write", "read", "write"):
        with getattr(alice, kind)("x") as lease:
            tokens.append(lease.token)
        with getattr(bob, kind)("x") as lease:
            tokens.append(lease.token)
    assert rising(tokens)


@pytest.mark.needs("read_write")
def test_a_token_does_not_change_while_the_lease_lives(world: Scene) -> None:
    alice = world.party()
    lease = alice.write("x").acquire()
    token = lease.token
    lease.extend(30)
    assert lease.token == token
    lease.downgrade()
    assert lease.token == token
    assert world.line("x").holders[0].token == token
    lease.release()


def test_every_grant_has_an_id_of_its_own(world: Scene) -> None:
    parties: list[Party] = [world.party(), world.party()]
    ids = set()
    for _ in range(5):
        for party in parties:
            with party.lock("x") as lease:
                ids.add(lease.id)
    assert len(ids) == 10


@pytest.mark.processes
def test_tokens_rise_over_processes_that_are_gone(world: Scene) -> None:
    tokens = []
    for _ in range(sample(1, 2)):
        other = world.process()
        tokens.append(other.ask("acquire", name="x", ttl=world.ttl(0.4))["token"])
        other.kill()
    alice = world.party()
    with alice.lock("x").acquire(timeout=A_MINUTE) as lease:
        tokens.append(lease.token)
    assert rising(tokens)
