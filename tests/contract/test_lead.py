"""One leader: main runs while this process leads, is told of the loss, stands again, and resigns when it is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import lockline
from lockline import ConfigError, LeaseLost, aio
from lockline.core import watching
from lockline.core.shells import engine_of

from .faults import Faults
from .parties import LONG, Pending
from .scene import Scene
from .watcher import Watcher


class OwnError(Exception):
    """What goes wrong in a main."""


class Leading:
    """A main that leads until it is told to stop, and notes its terms."""

    def __init__(self, flavour: str) -> None:
        self.flavour = flavour
        self.terms: list[Any] = []
        self.lost: list[int] = []
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()

    @property
    def main(self) -> Callable[[Any], Any]:
        return self._blocking if self.flavour == "sync" else self._looping

    def _blocking(self, term: Any) -> int:
        self.terms.append(term)
        while not self._over.is_set():
            if term.lost.wait(0.005):
                self.lost.append(term.token)
                break
        return int(term.token)

    async def _looping(self, term: Any) -> int:
        self.terms.append(term)
        try:
            while not self._over.is_set():  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.lost.append(term.token)
            raise
        return int(term.token)


def lead(world: Scene, party: Any, **options: Any) -> tuple[Leading, Pending]:
    leading = Leading(world.flavour)
    return leading, party.client.lead.start("boss", leading.main, **options)


def test_one_leads_and_the_next_one_takes_over_when_it_is_done(world: Scene) -> None:
    alice, bob = world.party("alice"), world.party("bob")
    first, alices = lead(world, alice)
    world.wait_for(lambda: first.terms)
    second, bobs = lead(world, bob)
    world.wait_for(lambda: world.line("boss").claims, what="the line")
    first.stop()
    assert alices.result() == first.terms[0].token
    world.wait_for(lambda: second.terms)
    assert not first.terms[0].valid
    assert second.terms[0].token > first.terms[0].token
    second.stop()
    assert bobs.result() == second.terms[0].token
    assert world.names() == []


def test_a_leader_that_lost_stands_again_and_leads_under_a_higher_term(world: Scene) -> None:
    alice = world.party()
    leading, pending = lead(world, alice, ttl=LONG)
    world.wait_for(lambda: leading.terms)
    assert world.evict("boss") == 1
    world.wait_for(lambda: len(leading.terms) == 2)
    first, second = (term.token for term in leading.terms)
    assert leading.lost == [first]
    assert second > first
    leading.stop()
    assert pending.result() == second


@pytest.mark.core
def test_others_see_who_leads(world: Scene) -> None:
    alice, bob = world.party("alice"), world.party("bob")
    assert bob.client.leader("boss") is None
    leading, pending = lead(world, alice, meta={"port": 8080})
    world.wait_for(lambda: leading.terms)
    leader = bob.client.leader("boss")
    assert (leader.owner, leader.token, leader.meta) == ("alice", leading.terms[0].token, {"port": 8080})
    leading.stop()
    pending.result()
    assert bob.client.leader("boss") is None


def test_who_watches_hears_of_each_leader(world: Scene) -> None:
    alice, bob = world.party("alice"), world.party("bob")
    changes = bob.client.real.watch("boss", every=0.01)

    def next_change() -> Any:
        leader = bob.do(lambda: next(changes) if world.flavour == "sync" else anext(changes))
        return leader and leader.owner

    assert next_change() is None
    leading, pending = lead(world, alice)
    assert next_change() == "alice"
    leading.stop()
    pending.result()
    assert next_change() is None


@pytest.mark.needs("watches")
def test_who_watches_is_told_and_does_not_look_all_the_time(world: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    # No look beneath the pushes: one that is missed would be waited for in vain.
    monkeypatch.setattr(watching, "NET", 3600)
    alice, bob = world.party("alice"), world.party("bob")
    # So seldom that only a push can bring a change within the time of this story.
    watcher = Watcher(bob)
    assert watcher.next().result() is None
    looks = Faults(bob)
    for _ in range(3):
        told = watcher.next()
        lease = alice.lock("boss").acquire()
        assert told.result().token == lease.token
        told = watcher.next()
        lease.release()
        assert told.result() is None
    # One for each change and some for renewals; not as often as the time allows.
    assert looks.count("look") <= 40


@pytest.mark.needs("watches")
def test_who_watches_is_told_of_the_change_after_one_that_came_with_the_word_that_it_will_be(
    world: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "NET", 3600)
    alice, bob = world.party("alice"), world.party("bob")
    watcher = Watcher(bob)
    assert watcher.next().result() is None
    backend: Any = engine_of(bob.client.real).backend
    watch, looks = backend.watch, Faults(bob)

    async def watch_a_line_in_use(*args: Any) -> bool:
        monkeypatch.setattr(backend, "watch", watch)
        told: bool = await watch(*args)
        with lockline.connect(world.place) as passer_by, passer_by.lock("boss"):
            pass
        return told

    monkeypatch.setattr(backend, "watch", watch_a_line_in_use)
    told = watcher.next()
    world.wait_for(lambda: looks.count("look"))
    lease = alice.lock("boss").acquire()
    assert told.result().token == lease.token
    lease.release()


@pytest.mark.needs("watches")
def test_who_watches_is_told_of_an_eviction_and_of_who_comes_next(
    world: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "NET", 3600)
    alice, bob, carol = world.party("alice"), world.party("bob"), world.party("carol")
    watcher = Watcher(bob)
    assert watcher.next().result() is None
    told = watcher.next()
    victim = alice.lock("boss").acquire()
    assert told.result().owner == "alice"
    (waiting,) = world.queue_up("boss", lambda: carol.lock("boss").acquire.start())
    told = watcher.next()
    assert world.evict("boss") == 1
    leader = told.result()
    # Between the two there may be a moment in which nobody leads.
    leader = leader or watcher.next().result()
    next_one = waiting.result()
    assert (leader.owner, leader.token) == ("carol", next_one.token)
    next_one.release()
    with pytest.raises(LeaseLost):
        victim.release()


@pytest.mark.core
def test_close_ends_the_watch(world: Scene) -> None:
    bob = world.party("bob")
    watcher = Watcher(bob)
    assert watcher.next().result() is None
    told = watcher.next()
    bob.client.given_to(world.sibling(bob)).close()
    with pytest.raises(lockline.ClientClosed):
        told.result()


@pytest.mark.flavour("asyncio")
def test_a_cancelled_watch_ends_and_another_one_is_told(world: Scene) -> None:
    alice, bob = world.party("alice"), world.party("bob")
    watcher, looks = Watcher(bob), Faults(bob)
    assert watcher.next().result() is None
    told = watcher.next()
    world.wait_for(lambda: looks.count("look") >= 2)
    told.cancel()
    with pytest.raises(asyncio.CancelledError):
        told.result()
    again = Watcher(bob, every=0.01)
    assert again.next().result() is None
    told = again.next()
    lease = alice.lock("boss").acquire()
    assert told.result().token == lease.token
    lease.release()


@pytest.mark.core
def test_an_error_of_main_comes_out_and_it_has_resigned(world: Scene) -> None:
    alice = world.party()

    def fail(term: Any) -> None:
        raise OwnError(term.token)

    async def fail_later(term: Any) -> None:
        raise OwnError(term.token)

    with pytest.raises(OwnError):
        alice.client.lead("boss", fail if world.flavour == "sync" else fail_later)
    assert world.names() == []


@pytest.mark.core
def test_the_loss_of_another_lease_is_an_error_of_main(world: Scene) -> None:
    alice = world.party()
    other = LeaseLost("other", token=1, reason="expired")

    def fail(term: Any) -> None:
        raise other

    async def fail_later(term: Any) -> None:
        raise other

    with pytest.raises(LeaseLost, match="'other'"):
        alice.client.lead("boss", fail if world.flavour == "sync" else fail_later)
    assert world.names() == []


@pytest.mark.core
def test_a_store_that_is_away_for_longer_than_a_ttl_is_waited_for(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    faults.fail("enter", times=None)
    leading, pending = lead(world, alice, ttl=0.1)
    # With a ttl of 0.1 s one acquire gives up after two or three of these.
    world.wait_for(lambda: faults.count("enter") > 6)
    faults.heal()
    world.wait_for(lambda: leading.terms)
    leading.stop()
    pending.result()


@pytest.mark.core
def test_what_main_gave_is_not_lost_with_an_unanswered_resignation(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    leading, pending = lead(world, alice)
    world.wait_for(lambda: leading.terms)
    faults.fail("leave")
    leading.stop()
    assert pending.result() == leading.terms[0].token
    world.wait_until_free("boss")


@pytest.mark.core
@pytest.mark.flavour("asyncio")
def test_a_cancelled_leader_has_resigned(world: Scene) -> None:
    alice = world.party()
    leading, pending = lead(world, alice)
    world.wait_for(lambda: leading.terms)
    pending.cancel()
    world.wait_until_free("boss")
    assert leading.lost == [leading.terms[0].token]


@pytest.mark.core
def test_close_ends_the_standing(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("boss").acquire()
    _, pending = lead(world, bob)
    world.wait_for(lambda: pending.done or len(world.line("boss").claims) == 2)
    bob.client.given_to(world.sibling(bob)).close()
    with pytest.raises(lockline.ClientClosed):
        pending.result()
    lease.release()


def test_what_is_wrong_is_said_before_any_request() -> None:
    blocking, looping = lockline.connect("memory:lead"), aio.connect("memory:lead")

    async def coroutine(term: aio.Lease) -> None: ...

    def generator(term: Any) -> Any:
        yield

    async def async_generator(term: Any) -> Any:
        yield

    for name, main in (("", print), ("x", 5), ("x", coroutine), ("x", generator), ("x", async_generator)):
        with pytest.raises(ConfigError):
            blocking.lead(name, main)  # type: ignore[arg-type]
    for client in (blocking, looping):
        for every in (0, -1, True, "1"):
            with pytest.raises(ConfigError):
                client.watch("x", every=every)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            client.watch("")

    async def wrong(main: Any) -> None:
        with pytest.raises(ConfigError):
            await looping.lead("x", main)
        assert (await looping.inspect("x")).claims == ()

    for main in (5, generator, async_generator):
        asyncio.run(wrong(main))
        looping = aio.connect("memory:lead")
    asyncio.run(wrong(lambda term: None))
