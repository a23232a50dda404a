"""Anybody can see the whole line, and an operator can force it open."""

from __future__ import annotations

import dataclasses
import time

import pytest

from lockline import ConfigError, Guarantees, LeaseLost

from .scene import A_MINUTE, Scene

CLOCKS = 0.5
"""A store's clock is read a little before or after ours; far less than the time for which a claim waits here."""


def test_the_line_shows_who_holds_and_who_waits(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    before = time.time()
    lease = alice.lock("x", ttl=200, meta={"job": 42, "wo": "Köln"}).acquire()
    waiting = world.queue_up(
        "x", lambda: bob.lock("x", ttl=300).acquire.start(), lambda: carol.rlock("x").acquire.start()
    )
    line = world.line("x")
    assert line.name == "x"
    assert [claim.owner for claim in line.claims] == ["alice", "bob", "carol"]
    assert [claim.kind for claim in line.claims] == ["lock", "lock", "rlock"]
    (held,) = line.holders
    assert held.id == lease.id
    assert held.token == lease.token
    assert held.ttl == 200
    assert 100 < held.remaining <= 200.1
    assert held.granted_at is not None
    assert before - 1 < held.enqueued_at <= held.granted_at < time.time() + 1
    assert held.meta == {"job": 42, "wo": "Köln"}
    assert [claim.meta for claim in line.waiters] == [None, None]
    assert [claim.holds for claim in line.waiters] == [False, False]
    lease.release()
    for granted in world.in_turn(waiting):
        granted.release()


def test_a_holder_that_waited_shows_when_it_came_and_since_when_it_holds(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x", ttl=world.kept).acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x", ttl=world.kept).acquire.start())
    line = world.line("x")
    (first,), (waiter,) = line.holders, line.waiters
    assert waiter.granted_at is None
    assert first.granted_at is not None
    assert first.enqueued_at <= first.granted_at <= waiter.enqueued_at + CLOCKS
    time.sleep(1.5)
    released = time.time()
    lease.release()
    granted = waits.result()

    def grant() -> float:
        (held,) = world.line("x").holders
        assert held.id == granted.id
        assert held.enqueued_at == pytest.approx(waiter.enqueued_at, abs=CLOCKS)
        assert held.enqueued_at < released - 1
        assert held.granted_at is not None
        assert held.enqueued_at <= held.granted_at <= time.time() + CLOCKS
        return held.granted_at

    if world.world.notes_grants == "at once":
        assert grant() >= released - CLOCKS
    else:
        assert grant() >= waiter.enqueued_at - CLOCKS
    if world.world.notes_grants == "by the renewal":
        world.wait_for(lambda: grant() >= released - CLOCKS, what="a renewal that says since when it holds")
    granted.release()


@pytest.mark.needs("hands_on")
def test_a_turn_that_was_handed_on_inside_a_client_shows_since_when_it_is_held(world: Scene) -> None:
    """The client does not wait for the store's word; where no step of the store decides, the next renewal brings the moment along."""
    alice = world.party()
    sibling = world.sibling(alice)
    lease = alice.lock("x", ttl=world.kept).acquire()
    (waits,) = world.queue_up("x", lambda: sibling.lock("x", ttl=world.kept).acquire.start())
    time.sleep(1.5)
    released = time.time()
    lease.release()
    granted = waits.result()

    def grant() -> float:
        (held,) = world.line("x").holders
        assert held.id == granted.id
        assert held.enqueued_at < released - 1
        assert held.granted_at is not None
        assert held.enqueued_at <= held.granted_at <= time.time() + CLOCKS
        return held.granted_at

    world.wait_for(lambda: grant() >= released - CLOCKS, what="the moment of its grant")
    granted.release()


def test_a_line_that_nobody_stands_in_is_empty(world: Scene) -> None:
    alice = world.party()
    line = alice.client.inspect("nobody")
    assert line.name == "nobody"
    assert line.claims == line.holders == line.waiters == ()


def test_looking_changes_nothing(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=world.ttl(0.3), renew=False).acquire()
    # Were it renewed by each look, it would never end.
    world.wait_until_free("x")
    assert not lease.valid
    with pytest.raises(LeaseLost):
        lease.release()


@pytest.mark.needs("semaphores")
def test_a_semaphore_shows_every_holder(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    permits = [party.semaphore("x", limit=2).acquire() for party in (alice, bob)]
    line = world.line("x")
    assert [claim.owner for claim in line.holders] == ["alice", "bob"]
    assert {claim.capacity for claim in line.holders} == {2}
    for permit in permits:
        permit.release()


@pytest.mark.needs("read_write")
def test_evict_removes_the_holders_and_lets_the_next_in(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    one, two = alice.read("x").acquire(), bob.read("x").acquire()
    (waits,) = world.queue_up("x", lambda: carol.write("x").acquire.start())
    assert world.evict("x") == 2
    granted = waits.result()
    assert granted.token > max(one.token, two.token)
    assert [claim.id for claim in world.line("x").claims] == [granted.id]
    for victim in (one, two):
        with pytest.raises(LeaseLost) as caught:
            victim.release()
        assert caught.value.reason == "evicted"
        assert caught.value.name == "x"
    assert granted.valid
    granted.release()


def test_evict_of_an_empty_line_removes_nobody(world: Scene) -> None:
    alice = world.party()
    assert alice.client.evict("x") == 0
    lease = alice.lock("y").acquire()
    assert alice.client.evict("x") == 0
    assert lease.valid
    lease.release()


def test_one_can_evict_oneself(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    assert alice.client.evict("x") == 1
    assert lease.lost.wait(A_MINUTE)
    with pytest.raises(LeaseLost):
        lease.release()
    alice.lock("x").acquire(timeout=A_MINUTE).release()


@pytest.mark.core
def test_guarantees_are_a_value_that_code_can_read(world: Scene) -> None:
    alice = world.party()
    promised = alice.client.guarantees
    assert isinstance(promised, Guarantees)
    assert len(promised.tolerates) > 20
    with pytest.raises(dataclasses.FrozenInstanceError):
        promised.fifo = not promised.fifo  # type: ignore[misc]  # that is the story
    assert alice.client.url
    assert alice.client.owner == "alice"


def test_examine_has_something_to_say(world: Scene) -> None:
    alice = world.party()
    findings = alice.client.examine()
    assert findings
    assert all(finding.level in ("ok", "warning", "error") and finding.text for finding in findings)


@pytest.mark.core
def test_a_decorated_function_runs_under_the_lock(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    seen: list[object] = []

    def look(order: int) -> int:
        """Look who holds."""
        seen.append(order)
        return order * 2

    async def look_too(order: int) -> int:
        """Look who holds."""
        return look(order)

    plain, other = (look, look_too) if world.flavour == "sync" else (look_too, look)
    client = alice.client.real
    decorated = client.locked("x", ttl=5)(plain)
    assert decorated.__doc__ == "Look who holds."
    assert alice.do(lambda: decorated(21)) == 42
    with pytest.raises(ConfigError, match="decorate"):
        client.locked("x")(other)
    by_order = client.locked(lambda order: f"order/{order}", timeout=0.1)(plain)
    held = bob.lock("order/7").acquire()
    with pytest.raises(TimeoutError):
        alice.do(lambda: by_order(7))
    assert alice.do(lambda: by_order(8)) == 16
    assert seen == [21, 8]
    held.release()
    assert world.names() == []


@pytest.mark.core
def test_a_decorated_function_that_raises_frees_the_lock(world: Scene) -> None:
    alice = world.party()

    def fail() -> None:
        assert len(alice_holds()) == 1
        raise KeyError("mine")

    async def fail_too() -> None:
        fail()

    def alice_holds() -> list[object]:
        return list(alice.client.real._engine._keeper.kept())

    decorated = alice.client.real.locked("x")(fail if world.flavour == "sync" else fail_too)
    with pytest.raises(KeyError, match="mine"):
        alice.do(decorated)
    assert not world.line("x").claims


def test_an_eviction_by_token_hits_that_holder_and_nobody_who_took_over(world: Scene) -> None:
    """The operator looks, thinks, and says yes: meanwhile another holds, whom nobody spoke of."""
    alice, bob = world.party(), world.party()
    first = alice.lock("x").acquire()
    seen = world.line("x").holders[0].token
    assert seen == first.token
    first.release()
    second = bob.lock("x").acquire()
    assert alice.client.evict("x", token=seen) == 0
    assert second.valid
    assert [claim.id for claim in world.line("x").holders] == [second.id]
    assert alice.client.evict("x", token=second.token) == 1
    with pytest.raises(LeaseLost) as caught:
        second.release()
    assert caught.value.reason == "evicted"
    assert not world.line("x").claims


@pytest.mark.needs("semaphores")
def test_an_eviction_by_token_takes_one_of_several_holders(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    one, two = (party.semaphore("x", limit=2).acquire() for party in (alice, bob))
    (waits,) = world.queue_up("x", lambda: carol.semaphore("x", limit=2).acquire.start())
    assert alice.client.evict("x", token=two.token) == 1
    three = waits.result()
    assert one.valid
    assert three.token > two.token
    assert {claim.id for claim in world.line("x").holders} == {one.id, three.id}
    with pytest.raises(LeaseLost):
        two.release()
    one.release()
    three.release()


@pytest.mark.needs("has_lines")
def test_a_waiter_is_not_evicted_by_its_ticket(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    held = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
    assert alice.client.evict("x", token=world.line("x").waiters[0].token) == 0
    held.release()
    waits.result().release()
