"""Hand it over: a lease is detached here and attached elsewhere, under a higher token, and the lock is never free in between."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

import pytest

import lockline
from lockline import ConfigError, LeaseLost, NotHeld, StaleToken, aio
from lockline.core.hand_over import BEGINNING, read_ticket
from lockline.fence import FileFence
from lockline.runtime.clock import now

from ..renewed import renewed_since
from .faults import Faults
from .parties import LONG
from .scene import A_MINUTE, Passed, Scene

GIVES_UP = 5.0
"""The timeout of one that waits and gives up: by then the next one stands behind it."""


@pytest.mark.lacks("hands_over")
def test_a_store_that_cannot_says_which_can_and_loses_nothing(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    with pytest.raises(ConfigError, match="redis://"):
        lease.detach(5)
    assert lease.valid
    lease.release()
    maker = lockline.connect("memory:refused")
    ticket = maker.lock("x").acquire().detach(5)
    with pytest.raises(ConfigError, match="redis://"):
        alice.client.attach(ticket)


@pytest.mark.needs("hands_over")
def test_it_goes_on_elsewhere_under_a_higher_token(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    first = alice.lock("x", meta={"order": 7}).acquire()
    ticket = first.detach(ttl=LONG)
    assert not first.valid
    assert first.remaining() == 0
    with pytest.raises(NotHeld, match="detached"):
        first.release()
    with pytest.raises(NotHeld):
        first.detach(5)
    carol = world.party()
    assert carol.lock("x").try_acquire() is None, "free for nobody in between"
    (kept,) = world.line("x").holders
    assert kept.detached
    assert (kept.owner, kept.meta) == ("alice", {"order": 7})
    second = bob.client.attach(ticket)
    assert second.token > first.token
    assert second.valid
    assert (second.name, second.kind, second.ttl, second.owner) == ("x", "lock", first.ttl, "bob")
    (held,) = world.line("x").holders
    assert not held.detached
    assert (held.owner, held.token, held.meta) == ("bob", second.token, {"order": 7})
    assert carol.lock("x").try_acquire() is None
    second.validate()
    second.release()
    third = carol.lock("x").acquire()
    assert third.token > second.token
    third.release()
    assert world.names() == []


@pytest.mark.needs("hands_over")
def test_it_is_renewed_where_it_is_attached(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = bob.client.attach(alice.lock("x").acquire().detach(LONG))
    world.wait_for_renewal(lease)
    assert lease.valid
    lease.release()


@pytest.mark.needs("hands_over")
def test_a_ticket_works_once(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ticket = alice.lock("x").acquire().detach(LONG)
    lease = bob.client.attach(ticket)
    for party in (alice, bob):
        with pytest.raises(NotHeld, match="'x'"):
            party.client.attach(ticket)
    assert lease.valid
    lease.validate()
    lease.release()
    with pytest.raises(NotHeld):
        alice.client.attach(ticket)


@pytest.mark.needs("hands_over")
def test_of_many_who_come_with_it_at_once_one_gets_it(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ticket = alice.lock("x").acquire().detach(LONG)
    parties = [bob, *(world.party() for _ in range(3))]
    begun = [party.client.attach.start(ticket) for party in parties]
    got: list[Any] = []
    for one in begun:
        try:
            got.append(one.result())
        except NotHeld:
            pass
    assert len(got) == 1
    got[0].release()


@pytest.mark.needs("hands_over")
def test_nobody_who_comes_in_time_leaves_it_free(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.5)
    lease = alice.lock("x").acquire()
    passed = Passed()
    ticket = lease.detach(ttl)
    alice.client.close()
    next_one = bob.lock("x").acquire(timeout=A_MINUTE)
    assert passed() >= ttl * 0.98
    assert next_one.token > lease.token
    with pytest.raises(NotHeld):
        bob.client.attach(ticket)
    assert next_one.valid
    next_one.release()


@pytest.mark.needs("hands_over")
def test_whoever_waits_already_comes_when_nobody_came_in_time(world: Scene) -> None:
    """It had planned to look again when the first lease would have ended, and would renew its own claim minutes later."""
    alice, bob = world.party(), world.party()
    lease = alice.lock("x", ttl=600).acquire()
    (waiting,) = world.queue_up("x", lambda: bob.lock("x", ttl=600).acquire.start())
    lease.detach(world.ttl(0.5))
    next_one = waiting.result()
    assert next_one.token > lease.token
    next_one.release()


@pytest.mark.needs("hands_over")
def test_whoever_waits_keeps_the_place_and_gets_a_token_that_is_higher_still(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    first = alice.lock("x").acquire()
    waiters = [world.party() for _ in range(2)]
    # Two of one client, which hands on inside, and one of another.
    waiters.append(world.sibling(waiters[1]))
    waits = world.queue_up("x", *(lambda party=party: party.lock("x").acquire.start() for party in waiters))
    owners = [claim.id for claim in world.line("x").waiters]
    ticket = first.detach(LONG)
    assert [claim.id for claim in world.line("x").waiters] == owners
    second = bob.client.attach(ticket)
    assert [claim.id for claim in world.line("x").waiters] == owners
    assert not any(wait.done for wait in waits)
    tokens = [first.token, second.token]
    second.release()
    for wait in waits:
        lease = wait.result()
        tokens.append(lease.token)
        (holder,) = world.line("x").holders
        assert holder.token == lease.token
        lease.validate()
        lease.release()
    assert tokens == sorted(set(tokens))
    assert world.names() == []


@pytest.mark.needs("hands_over")
def test_whoever_waits_can_give_up_and_be_renewed_after_it(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    carol, dave = world.party(), world.party()
    leaving, staying = world.queue_up(
        "x",
        lambda: carol.lock("x").acquire.start(timeout=GIVES_UP),
        lambda: dave.lock("x").acquire.start(),
    )
    second = bob.client.attach(lease.detach(LONG))
    with pytest.raises(lockline.AcquireTimeout):
        leaving.result()
    (waiter,) = dave.client.real._engine._keeper.books.values()
    began = now()
    waiter.due = 0.0
    waiter.keeper.ring()
    world.wait_for(lambda: renewed_since(waiter, began), what="a renewal of the one that waits")
    assert [claim.id for claim in world.line("x").waiters] == [waiter.claim.id], "the one that gave up is gone"
    second.release()
    staying.result().release()


@pytest.mark.core
@pytest.mark.needs("hands_over")
def test_a_fence_refuses_the_one_that_detached(world: Scene, tmp_path: Any) -> None:
    alice, bob = world.party(), world.party()
    fence, report = FileFence(), tmp_path / "report"
    report.write_text("")
    first = alice.lock("x").acquire()
    fence.enter(report, first.real)
    second = bob.client.attach(first.detach(LONG))
    fence.enter(report, second.real)
    with pytest.raises(StaleToken):
        fence.append(report, first.token, "late", lock="x")
    second.release()


@pytest.mark.needs("hands_over")
def test_a_block_in_which_it_was_detached_is_left_quietly(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    with alice.lock("x") as lease:
        ticket = lease.detach(LONG)
    with bob.client.attach(ticket) as second:
        assert second.valid
        again = second.detach(LONG)
    alice.client.attach(again).release()
    tickets: list[str] = []

    def fail() -> None:
        with alice.lock("x") as lease:
            tickets.append(lease.detach(LONG))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    bob.client.attach(tickets[0]).release()


@pytest.mark.needs("hands_over", "read_write", "semaphores")
def test_a_permit_and_a_reader_go_with_their_weight(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    heavy = alice.semaphore("s", limit=3, weight=2).acquire()
    light = alice.semaphore("s", limit=3).acquire()
    ticket = heavy.detach(LONG)
    assert bob.semaphore("s", limit=3).try_acquire() is None
    attached = bob.client.attach(ticket)
    assert attached.token > light.token > heavy.token
    assert bob.semaphore("s", limit=3).try_acquire() is None
    light.release()
    bob.semaphore("s", limit=3).try_acquire().release()
    attached.release()
    reader = alice.read("r").acquire()
    also = bob.read("r").acquire()
    attached = bob.client.attach(reader.detach(LONG))
    assert alice.write("r").try_acquire() is None
    also.release()
    assert alice.write("r").try_acquire() is None
    attached.release()
    alice.write("r").try_acquire().release()
    assert world.names() == []


@pytest.mark.needs("hands_over")
def test_an_operator_can_end_what_is_detached(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ticket = alice.lock("x").acquire().detach(3600)
    assert world.evict("x") == 1
    with pytest.raises(NotHeld):
        bob.client.attach(ticket)
    bob.lock("x").try_acquire().release()


@pytest.mark.needs("hands_over")
def test_a_lost_lease_cannot_be_handed_over(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    Faults(alice).fail("renew", times=None)
    world.evict("x")
    other = bob.lock("x").acquire()
    with pytest.raises(LeaseLost):
        lease.detach(LONG)
    assert other.valid
    other.validate()
    other.release()


@pytest.mark.needs("hands_over")
@pytest.mark.processes
def test_a_process_that_was_killed_after_it_detached_leaves_the_place_to_the_ticket(world: Scene) -> None:
    alice = world.party()
    process = world.process()
    token = process.ask("acquire", name="x", ttl=world.ttl(0.5))["token"]
    ticket = process.ask("detach", ttl=LONG)["ticket"]
    process.kill()
    world.outlive(world.ttl(0.5))
    lease = alice.client.attach(ticket)
    assert lease.token > token
    lease.release()


@pytest.mark.parametrize("connect", [lockline.connect, aio.connect], ids=["sync", "asyncio"])
def test_what_is_wrong_is_said_before_any_request(connect: type) -> None:
    room = f"memory:{uuid4()}"
    client = connect(room)
    ticket = lockline.connect(room).lock("x").acquire().detach(LONG)
    wrong: list[Any] = [
        None,
        5,
        b"bytes",
        "",
        "ticket",
        ticket[:-1],
        ticket[:30],
        ticket + "A",
        ticket.upper(),
        "a" * 30_000,
    ]
    wrong += [ticket[:40] + ("A" if ticket[40] != "A" else "B") + ticket[41:]]
    deep = b"[" * 12_000
    wrong += [BEGINNING + base64.urlsafe_b64encode(hashlib.sha256(deep).digest()[:4] + deep).decode()]
    for text in wrong:
        with pytest.raises(ConfigError):
            client.attach(text) if connect is lockline.connect else client.attach(text).send(None)


def test_a_ticket_travels_and_shows_no_secret_to_those_who_look() -> None:
    client = lockline.connect("memory:travel")
    lease = client.lock("Ärger/42 %&?#", meta={"ä": "€"}).acquire()
    ticket = lease.detach(LONG)
    assert ticket.isascii()
    assert quote(ticket, safe="") == ticket
    (kept,) = client.inspect("Ärger/42 %&?#").holders
    secret = read_ticket(ticket).secret
    assert secret not in kept.id
    assert read_ticket(ticket).place == kept.id
    travelled = json.loads(json.dumps({"ticket": unquote(quote(ticket))}))["ticket"]
    attached = client.attach(travelled)
    assert attached.name == "Ärger/42 %&?#"
    attached.release()


@pytest.mark.parametrize("ttl", [0, -1, True, float("nan"), "soon", None])
def test_a_ttl_that_is_none_is_refused_and_the_lease_goes_on(ttl: Any) -> None:
    with lockline.connect("memory:ttl").lock("x").acquire() as lease:
        with pytest.raises(ConfigError):
            lease.detach(ttl)
        assert lease.valid


def test_what_is_held_twice_is_not_handed_over() -> None:
    client = lockline.connect("memory:twice")
    with client.rlock("x") as outer:
        with client.rlock("x") as inner, pytest.raises(ConfigError, match="more than once"):
            inner.detach(LONG)
        ticket = outer.detach(LONG)
    client.attach(ticket).release()
    with client.lock("kept", keep_for=1) as kept, pytest.raises(ConfigError, match="keep_for"):
        kept.detach(LONG)
