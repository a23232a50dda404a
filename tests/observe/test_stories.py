"""What a client tells: each claim's story, in order, with one end; on each kind of store, blocking and in asyncio."""

from __future__ import annotations

import time
from asyncio import CancelledError
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from lockline import AcquireTimeout, BackendUnavailable, ClientClosed, LeaseLost, LineFull, LocklineError, WouldDeadlock
from lockline.core import telling
from lockline.observe import (
    Asked,
    Evicted,
    Granted,
    Lost,
    Released,
    RenewalLate,
    Renewed,
    StoreBack,
    StoreSilent,
    Waiting,
    Withdrawn,
)

from ..contract.faults import Faults
from ..contract.parties import LONG, Party
from ..contract.scene import A_MINUTE, Scene
from ..renewed import hasten
from .heard import Heard


def listening(world: Scene, name: str | None = None) -> tuple[Party, Heard]:
    heard = Heard()
    return world.party(name, on_event=heard), heard


def test_a_free_lock(world: Scene) -> None:
    alice, heard = listening(world)
    before = time.monotonic()
    with alice.lock("x", ttl=77) as lease:
        inside = time.monotonic()
        token = lease.token
        time.sleep(0.1)
        at_least = time.monotonic() - inside
    at_most = time.monotonic() - before
    heard.wait(Released)
    assert heard.words() == ["asked", "granted", "released"]
    asked, granted, released = heard.events
    assert isinstance(asked, Asked)
    assert isinstance(granted, Granted)
    assert isinstance(released, Released)
    assert {event.claim for event in (asked, granted, released)} == {asked.claim}
    assert (asked.name, asked.kind, asked.owner, asked.ttl, asked.store) == (
        "x",
        "lock",
        "alice",
        77.0,
        alice.client.url,
    )
    assert granted.token == released.token == token
    assert not granted.waited
    assert released.end == "released"
    assert asked.at <= granted.at <= released.at
    assert at_least <= released.held <= at_most


def test_an_event_is_a_value_that_nobody_changes(world: Scene) -> None:
    alice, heard = listening(world)
    alice.lock("x").acquire().release()
    event: Any = heard.wait(Granted)
    with pytest.raises((FrozenInstanceError, AttributeError)):
        event.token = 5
    assert event == replace(event)


def test_one_that_waits(world: Scene) -> None:
    alice, heard = listening(world)
    bob, other = listening(world)
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", bob.lock("x").acquire.start)
    waiting = other.wait(Waiting)
    assert waiting.ahead == 1
    assert other.waiters == 1
    known = time.monotonic()
    time.sleep(0.1)
    at_least = time.monotonic() - known
    lease.release()
    waits.result().release()
    other.wait(Released)
    heard.wait(Released)
    assert other.words() == ["asked", "waiting", "granted", "released"]
    assert heard.words() == ["asked", "granted", "released"]
    granted = other.wait(Granted)
    assert granted.waited
    assert granted.took >= at_least


@pytest.mark.needs("hands_on")
def test_a_turn_that_is_handed_on_inside_is_a_grant(world: Scene) -> None:
    alice, heard = listening(world)
    bob = world.sibling(alice)
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", bob.lock("x").acquire.start)
    books = alice.client.real._engine._keeper.books
    world.wait_for(lambda: any(live.behind for live in list(books.values())), what="where it stands")
    let_through = Faults(alice).hold("leave")
    released = lease.release.start()
    granted = waits.result()
    # Nobody has heard from the store: by its own client's word alone.
    assert heard.wait(Granted, 2).token == granted.token
    assert not heard.all(Released)
    let_through.set()
    released.result()
    granted.release()
    heard.wait(Released, 2)
    assert heard.stories() == [["asked", "granted", "released"], ["asked", "waiting", "granted", "released"]]
    assert heard.wait(Released).at <= heard.wait(Granted, 2).at, "`at` is when it let go, whenever the store answers"


def test_a_timeout(world: Scene) -> None:
    alice, _ = listening(world)
    bob, other = listening(world)
    lease = alice.lock("x").acquire()
    with pytest.raises(AcquireTimeout):
        bob.lock("x").acquire(timeout=0.2)
    withdrawn = other.wait(Withdrawn)
    assert other.words() == ["asked", "waiting", "withdrawn"]
    assert (withdrawn.why, withdrawn.waited) == ("timeout", True)
    assert withdrawn.took > 0.1
    lease.release()


def test_a_try_that_finds_no_room(world: Scene) -> None:
    alice, _ = listening(world)
    bob, other = listening(world)
    lease = alice.lock("x").acquire()
    assert bob.lock("x").try_acquire() is None
    assert other.wait(Withdrawn).why == "busy"
    assert other.words() == ["asked", "withdrawn"]
    lease.release()


def test_a_line_that_is_too_long(world: Scene) -> None:
    alice, _ = listening(world)
    bob, other = listening(world)
    lease = alice.lock("x").acquire()
    with pytest.raises(LineFull):
        bob.lock("x", max_waiting=0).acquire()
    assert other.wait(Withdrawn).why == "line full"
    lease.release()


def test_one_that_would_wait_for_itself_never_asked(world: Scene) -> None:
    alice, heard = listening(world)
    lease = alice.lock("x").acquire()
    with pytest.raises(WouldDeadlock):
        alice.lock("x").acquire()
    lease.release()
    heard.wait(Released)
    assert heard.words() == ["asked", "granted", "released"]


def test_re_entrance_asks_nobody(world: Scene) -> None:
    alice, heard = listening(world)
    with alice.rlock("x"), alice.rlock("x"):
        pass
    heard.wait(Released)
    assert heard.words() == ["asked", "granted", "released"]


@pytest.mark.flavour("asyncio")
def test_a_cancel(world: Scene) -> None:
    alice, _ = listening(world)
    bob, other = listening(world)
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", bob.lock("x").acquire.start)
    other.wait(Waiting)
    waits.cancel()
    with pytest.raises(CancelledError):
        waits.result()
    assert other.wait(Withdrawn).why == "cancelled"
    assert (other.waiters, other.holders) == (0, 0)
    lease.release()


def test_a_client_that_is_closed(world: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may take longer than a moment to wake the one who tells.
    monkeypatch.setattr(telling, "FLUSH", A_MINUTE)
    alice, heard = listening(world)
    bob, xavier = world.sibling(alice), world.party("xavier")
    foreign = xavier.lock("y").acquire()
    held = alice.lock("x").acquire()
    (waits,) = world.queue_up("y", bob.lock("y").acquire.start)
    heard.wait(Waiting)
    world.sibling(alice).client.close()
    # What was held is told before close() returns, for a program that ends next.
    assert [event.reason for event in heard.all(Lost)] == ["closed"]
    with pytest.raises(ClientClosed):
        waits.result()
    assert heard.wait(Withdrawn).why == "closed"
    assert (heard.waiters, heard.holders, heard.open) == (0, 0, 0)
    assert not held.valid
    foreign.release()


def test_a_grant_that_comes_while_the_client_is_closed_has_an_end(world: Scene) -> None:
    alice, heard = listening(world)
    bob = world.sibling(alice)
    held = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", bob.lock("x").acquire.start)
    heard.wait(Waiting)
    world.sibling(alice).client.close()
    with pytest.raises(LocklineError):
        waits.result()
    heard.wait_for(lambda: heard.open == 0, "the end of both")
    assert (heard.waiters, heard.holders) == (0, 0)
    assert not held.valid


def test_a_loss_by_expiry_with_its_cause(world: Scene) -> None:
    alice, heard = listening(world)
    before = time.monotonic()
    lease = alice.lock("x", ttl=world.ttl(0.6)).acquire()
    Faults(alice).fail("renew", times=None)
    assert lease.lost.wait(A_MINUTE)
    lost = heard.wait(Lost)
    assert (lost.reason, lost.cause, lost.token) == ("expired", "silent", lease.token)
    assert "no answer to renew" in lost.detail
    assert lost.held is not None
    assert 0 < lost.held <= time.monotonic() - before
    assert heard.words() == ["asked", "granted", "store silent", "lost"]
    with pytest.raises(LeaseLost):
        lease.release()
    assert heard.open == 0


def test_a_loss_that_the_holder_finds_first_is_told_once(world: Scene) -> None:
    alice, heard = listening(world)
    lease = alice.lock("x", ttl=world.ttl(0.3), renew=False).acquire()
    world.wait_for(lambda: not lease.valid, what="the end")
    with pytest.raises(LeaseLost):
        lease.release()
    assert heard.wait(Lost).cause == "unrenewed"
    alice.lock("y").acquire().release()
    heard.wait(Released)
    assert heard.words("x") == ["asked", "granted", "lost"]


def test_an_eviction_as_both_see_it(world: Scene) -> None:
    alice, heard = listening(world)
    operator, other = listening(world, "operator")
    lease = alice.lock("x", ttl=60).acquire()
    assert operator.client.evict("x", token=lease.token) == 1
    assert heard.wait(Lost).reason == "evicted"
    evicted = other.wait(Evicted)
    assert (evicted.name, evicted.owner, evicted.holders, evicted.token) == ("x", "operator", 1, lease.token)
    assert other.words() == ["evicted"]


def test_renewals_with_their_margin(world: Scene) -> None:
    alice, heard = listening(world)
    lease = alice.lock("x").acquire()
    world.wait_for_renewal(lease)
    renewed = heard.wait(Renewed)
    assert renewed.token == lease.token
    assert 0 < renewed.margin < lease.ttl
    assert 0 <= renewed.took < lease.ttl
    before = len(heard.all(Renewed))
    lease.extend(2 * LONG)
    heard.wait_for(lambda: len(heard.all(Renewed)) > before, "the extension, which is a renewal too")
    lease.release()


def test_a_renewal_that_is_late(world: Scene) -> None:
    """Takes most of a ttl, of which enough has to be left when the answer comes that a busy machine does not lose the lease."""
    alice, heard = listening(world)
    faults = Faults(alice)
    ttl = 8.0
    # Each of them: a store that begins to listen asks once more long before the first is due.
    faults.delay("renew", 0.4 * ttl, after=True, times=None)
    lease = alice.lock("x", ttl=ttl).acquire()
    late = heard.wait(RenewalLate)
    assert late.margin < late.usual / 2
    assert late.took >= 0.4 * ttl
    told = [event.what for event in list(heard.events) if event.what.startswith("renew")]
    assert told[told.index("renewal late") - 1] == "renewed"
    lease.release()


def test_a_store_that_is_silent_and_comes_back(world: Scene) -> None:
    alice, heard = listening(world)
    faults = Faults(alice)
    before = time.monotonic()
    lease = alice.lock("x").acquire()
    faults.fail("renew", times=2)
    hasten(lease)
    silent = heard.wait(StoreSilent)
    assert "no answer to renew" in silent.problem
    back = heard.wait(StoreBack)
    assert back.store == silent.store == alice.client.url
    assert 0 < back.silent <= time.monotonic() - before
    lease.release()
    heard.wait(Released)
    assert heard.words() == ["asked", "granted", "store silent", "store back", "released"], "once each"


def test_an_acquire_without_an_answer_begins_a_new_story(world: Scene) -> None:
    alice, heard = listening(world)
    Faults(alice).fail("enter", after=True)
    alice.lock("x").acquire(timeout=A_MINUTE).release()
    heard.wait(Released)
    assert heard.stories() == [["asked", "withdrawn"], ["asked", "granted", "released"]]
    assert heard.wait(Withdrawn).why == "unavailable"
    assert heard.words() == ["asked", "store silent", "withdrawn", "asked", "store back", "granted", "released"]


def test_a_release_without_an_answer(world: Scene) -> None:
    alice, heard = listening(world)
    lease = alice.lock("x").acquire()
    faults = Faults(alice)
    faults.fail("leave", times=None)
    with pytest.raises(BackendUnavailable):
        lease.release()
    assert heard.wait(Released).end == "unconfirmed"
    faults.heal()
    lease.release()
    world.wait_until_free("x")
    assert heard.words() == ["asked", "granted", "released"]


def test_a_lease_that_was_dropped(world: Scene) -> None:
    alice, heard = listening(world)

    def work() -> None:
        alice.client.real.lock("x", ttl=world.ttl(0.3)).acquire()

    async def async_work() -> None:
        await alice.client.real.lock("x", ttl=world.ttl(0.3)).acquire()

    with pytest.warns(match="dropped without release"):
        alice.do(work if world.flavour == "sync" else async_work)
    assert heard.wait(Lost).cause == "dropped"
    assert heard.open == 0


def test_semaphores_readers_and_writers_too(world: Scene) -> None:
    alice, heard = listening(world)
    alice.semaphore("s", limit=2).acquire().release()
    alice.read("r").acquire().release()
    alice.write("r").acquire().release()
    heard.wait(Released, 3)
    assert [event.kind for event in heard.all(Granted)] == ["permit", "read", "write"]
    assert heard.holders == 0
