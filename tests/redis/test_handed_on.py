"""The server knows of turns that are handed on inside a client: it neither tells those who know nor takes them for dead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockline import AcquireTimeout, BackendUnavailable, LeaseLost, LocklineError
from tests.contract.faults import Faults
from tests.contract.parties import Party
from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer

from .conftest import Town

pytestmark = pytest.mark.server


@pytest.fixture
def scene(server: RedisServer, flavour: str) -> Iterator[Scene]:
    with Scene(Place(server.url), flavour) as scene:
        yield scene


def deafen(party: Party, server: RedisServer) -> None:
    """From now on nobody listens on this client's channel, though it goes on to ask."""
    subscriptions = party.client.real._engine.backend._subscriptions

    async def listen(address: Any, until: float) -> str:
        raise BackendUnavailable("injected: no subscription to be had")

    def _listen(address: Any, until: float) -> Any:
        raise BackendUnavailable("injected: no subscription to be had")

    subscriptions.listen = listen
    subscriptions._listen = _listen
    channel = subscriptions.open[next(iter(subscriptions.open))].channel
    server.command("CLIENT", "KILL", "TYPE", "pubsub")
    wait_for(lambda: server.command("PUBSUB NUMSUB", channel)[0][1] == 0, 60, "the end of the subscription")


def listening(server: RedisServer, party: Party) -> None:
    """Wait until the server reaches this client, and knows of each of its claims that waits where that is to be told."""
    engine = party.client.real._engine
    subscriptions = engine.backend._subscriptions

    def reached(channel: str) -> bool:
        key = f"{{{channel.partition(':')[0]}:x}}"
        waiting = [server.command("HGET", key, f"~{claim_id}") for claim_id in list(engine._keeper.books)]
        known = all(record.split(" ")[6] == channel for record in waiting if record is not None)
        return known and bool(server.command("PUBSUB NUMSUB", channel)[0][1])

    wait_for(lambda: any(reached(one.channel) for one in list(subscriptions.open.values())), 60, "a subscription")


def know_where_they_stand(party: Party) -> None:
    """Wait until everybody of this client who waits has been told behind whom."""
    books = party.client.real._engine._keeper.books
    wait_for(lambda: all(one.behind or one.token for one in list(books.values())), 60, "where each stands")


def line_of_three(server: RedisServer, scene: Scene, ttl: float) -> tuple[Any, Any, Any, Party]:
    """Alice holds for that long unless renewed, a sibling of hers is next, a stranger waits behind; all can be told."""
    alice, xavier = scene.party(), scene.party("xavier")
    bob = scene.sibling(alice)
    lease = alice.lock("x", ttl=ttl).acquire()
    waits, stranger = scene.queue_up("x", bob.lock("x", ttl=300).acquire.start, xavier.lock("x", ttl=300).acquire.start)
    listening(server, alice)
    listening(server, xavier)
    know_where_they_stand(alice)
    return lease, waits, stranger, alice


def test_one_that_is_at_work_is_not_skipped_for_want_of_a_listener_when_the_leave_is_lost(town: Town) -> None:
    """The ttl of the one that let go clears the way, and it is the stranger's look that finds it so.

    Five seconds: its lease has to stay until all are there, and then to run out.
    """
    alice, xavier = town.far(), town.near()
    bob = town.through.sibling(alice)
    lease = alice.lock("x", ttl=5).acquire()
    waits, stranger = town.direct.queue_up(
        "x", bob.lock("x", ttl=300).acquire.start, xavier.lock("x", ttl=300).acquire.start
    )
    listening(town.server, alice)
    listening(town.server, xavier)
    know_where_they_stand(alice)
    town.proxy.black_hole()
    town.server.command("CLIENT", "KILL", "TYPE", "pubsub")
    released = lease.release.start()
    granted = waits.result(60)
    wait_for(lambda: len(town.direct.line("x").claims) == 2, 60, "the end of the ghost")
    assert [claim.id for claim in town.direct.line("x").holders] == [granted.id]
    assert not stranger.done
    town.proxy.heal()
    town.proxy.cut()
    try:
        released.result(60)
    except LocklineError:
        pass  # its time was over before anybody answered
    granted.release()
    stranger.result(60).release()


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
def test_one_that_is_at_work_is_not_skipped_when_the_subscription_breaks_before_the_leave(
    server: RedisServer, scene: Scene, named: bool
) -> None:
    lease, waits, stranger, alice = line_of_three(server, scene, ttl=300)
    faults = Faults(alice)
    let_through = faults.hold("leave")
    backend = faults._inner
    real_leave = backend.leave
    if not named:
        # As a removal in the background does it.
        backend.leave = lambda claim, until, heir="": real_leave(claim, until)
    released = lease.release.start()
    granted = waits.result(60)
    deafen(alice, server)
    let_through.set()
    released.result(60)
    assert [claim.id for claim in scene.line("x").holders] == [granted.id]
    assert not stranger.done
    granted.release()
    stranger.result(60).release()


@pytest.mark.parametrize("arrived", [False, True], ids=["the request", "its answer"])
def test_a_leave_that_names_an_heir_and_is_lost_is_made_up_for_long_before_the_ttl(
    server: RedisServer, scene: Scene, arrived: bool
) -> None:
    lease, waits, stranger, alice = line_of_three(server, scene, ttl=300)
    faults = Faults(alice)
    faults.fail("leave", after=arrived)
    with pytest.raises(BackendUnavailable):
        lease.release()
    granted = waits.result(60)
    # The keeper takes the one that let go out of the line; the heir stays at work under its own token, and nobody passes it.
    wait_for(lambda: len(scene.line("x").claims) == 2, 60, "the end of the one that let go")
    assert [(claim.id, claim.token) for claim in scene.line("x").holders] == [(granted.id, granted.token)]
    assert granted.valid
    assert not stranger.done
    granted.release()
    late = stranger.result(60)
    assert late.token > granted.token
    late.release()


def test_one_that_is_at_work_is_not_skipped_when_an_operator_evicts_the_one_before_it(
    server: RedisServer, scene: Scene
) -> None:
    lease, waits, stranger, alice = line_of_three(server, scene, ttl=300)
    let_through = Faults(alice).hold("leave")
    released = lease.release.start()
    granted = waits.result(60)
    deafen(alice, server)
    assert scene.evict("x") == 1
    assert [claim.id for claim in scene.line("x").holders] == [granted.id]
    assert not stranger.done
    let_through.set()
    with pytest.raises(Exception, match="evicted"):
        released.result(60)
    granted.release()
    stranger.result(60).release()


def test_one_whose_time_ran_out_unnoticed_hands_nothing_on(server: RedisServer, scene: Scene) -> None:
    """Its own clock decides, in the moment of the release, whatever the keeper has found out by then."""
    lease, waits, stranger, alice = line_of_three(server, scene, ttl=300)
    faults = Faults(alice)
    let_through = faults.hold("leave")
    books = alice.client.real._engine._keeper.books
    live = lease.real._live
    live.ends = live.runtime.now()
    released = lease.release.start()
    wait_for(lambda: live.lost is not None and faults.count("leave"), 60, "a release after the deadline")
    turns = [one.turn for one in list(books.values())]
    let_through.set()
    assert not any(turns)
    with pytest.raises(LeaseLost):
        released.result(60)
    waits.result(60).release()
    stranger.result(60).release()


def test_a_dead_client_with_several_in_the_line_makes_way_at_once(server: RedisServer, scene: Scene) -> None:
    """None of them held, so none can have handed anything on."""
    holder, dead, xavier = scene.party(), scene.party("dead"), scene.party("xavier")
    lease = holder.lock("x", ttl=300).acquire()
    some = [world.lock("x", ttl=300).acquire.start for world in (dead, scene.sibling(dead), scene.sibling(dead))]
    waiting = scene.queue_up("x", *some, xavier.lock("x", ttl=300).acquire.start)
    for party in (dead, xavier):
        listening(server, party)
    deafen(dead, server)
    listening(server, xavier)
    lease.release()
    waiting[-1].result(60).release()


def test_one_behind_a_stranger_that_is_dead_is_dead_too_if_nobody_listens(server: RedisServer, scene: Scene) -> None:
    """It did not stand directly behind the one of its own client, so that cannot have handed it anything."""
    dead, stranger, late = scene.party("dead"), scene.party("stranger"), scene.party("late")
    lease = dead.lock("x", ttl=300).acquire()
    others = (stranger, scene.sibling(dead), late)
    waiting = scene.queue_up("x", *(one.lock("x", ttl=300).acquire.start for one in others))
    for party in (dead, stranger, late):
        listening(server, party)
    deafen(dead, server)
    listening(server, stranger)
    deafen(stranger, server)
    listening(server, late)
    assert [claim.id for claim in scene.line("x").holders] == [lease.id]
    assert scene.evict("x") == 1
    waiting[-1].result(60).release()
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_turn_on_a_line_that_was_wiped_away_is_found_out_at_once(server: RedisServer, scene: Scene) -> None:
    lease, waits, _, _ = line_of_three(server, scene, ttl=300)
    server.command("FLUSHALL")
    with pytest.raises(LeaseLost):
        lease.release()
    granted = waits.result(60)
    wait_for(lambda: not granted.valid, 60, "the loss, long before a renewal is due")


def test_on_a_line_that_was_wiped_away_no_turn_goes_on_once_the_first_of_them_has_heard(
    server: RedisServer, scene: Scene
) -> None:
    """The turn has gone on by then: not whom the first one named, but whoever has it now is asked for and hands nothing on."""
    alice, xavier = scene.party(), scene.party("xavier")
    siblings = [scene.sibling(alice) for _ in range(3)]
    lease = alice.lock("x", ttl=300).acquire()
    seconds, thirds, fourths = scene.queue_up("x", *(one.lock("x", ttl=300).acquire.start for one in siblings))
    know_where_they_stand(alice)
    faults = Faults(alice)
    first_leave, second_leave = faults.hold("leave", times=1), faults.hold("leave", times=1)
    first_release = lease.release.start()
    second = seconds.result(60)
    second_release = second.release.start()
    third = thirds.result(60)
    server.command("FLUSHALL")
    stranger = xavier.lock("x", ttl=300).acquire()
    first_leave.set()
    with pytest.raises(LeaseLost):
        first_release.result(60)
    wait_for(lambda: not third.valid, 60, "the loss of the one that is at work")
    with pytest.raises(LeaseLost):
        third.release()
    # Nor has the one behind it to wait for its next renewal: it stands in the line again, behind the stranger.
    scene.wait_for_line("x", holders=1, waiters=1)
    assert not fourths.done
    second_leave.set()
    with pytest.raises(LeaseLost):
        second_release.result(60)
    stranger.release()
    fourths.result(60).release()


def test_one_that_gives_up_where_it_does_not_stand_any_more_lets_nobody_close_up(
    server: RedisServer, scene: Scene
) -> None:
    """Who was gone before it left tells nothing of those around it.

    Five seconds: the first one has to wait until the other has come, and then to give up.
    """
    alice = scene.party()
    bob, carol = scene.sibling(alice), scene.sibling(alice)
    lease = alice.lock("x", ttl=300).acquire()
    impatient, waits = scene.queue_up(
        "x",
        lambda: bob.lock("x", ttl=300).acquire.start(timeout=5),
        carol.lock("x", ttl=300).acquire.start,
    )
    know_where_they_stand(alice)
    engine = alice.client.real._engine
    last = next(one for one in engine._keeper.books.values() if one.heir is None)
    # The keeper is not to find out before.
    renewed = Faults(alice).hold("renew")
    server.command("FLUSHALL")
    with pytest.raises(AcquireTimeout):
        impatient.result(60)
    with pytest.raises(LeaseLost):
        lease.release()
    assert last.turn is None
    renewed.set()
    engine._hints.heard(last.claim.id)
    waits.result(60).release()


def test_nothing_is_handed_to_one_that_has_been_told_that_it_is_gone(server: RedisServer, scene: Scene) -> None:
    alice = scene.party()
    bob = scene.sibling(alice)
    lease = alice.lock("x", ttl=300).acquire()
    (waits,) = scene.queue_up("x", bob.lock("x", ttl=300).acquire.start)
    know_where_they_stand(alice)
    engine = alice.client.real._engine
    (gone,) = [one for one in engine._keeper.books.values() if one.token is None]
    faults = Faults(alice)
    let_through = faults.hold("leave")
    server.command("FLUSHALL")
    engine._hints.heard(gone.claim.id)
    wait_for(lambda: faults.count("leave") == 1, 60, "its withdrawal")
    released = lease.release.start()
    wait_for(lambda: faults.count("leave") == 2, 60, "the release")
    assert gone.turn is None
    let_through.set()
    with pytest.raises(LeaseLost):
        released.result(60)
    waits.result(60).release()


def test_who_knows_that_it_holds_is_sent_nothing_and_asks_for_nothing(server: RedisServer, scene: Scene) -> None:
    alice = scene.party()
    faults = Faults(alice)
    siblings = [scene.sibling(alice) for _ in range(8)]
    lease = alice.lock("x", ttl=300).acquire()
    waiting = scene.queue_up("x", *(one.lock("x", ttl=300).acquire.start for one in siblings))
    know_where_they_stand(alice)
    asked = faults.count("place"), faults.count("renew")
    before = server.command("INFO", "commandstats")
    for pending in waiting:
        lease.release()
        lease = pending.result(60)
    after = server.command("INFO", "commandstats")
    sent = [stats.get("cmdstat_publish", {"calls": 0})["calls"] for stats in (before, after)]
    assert sent[0] == sent[1]
    assert (faults.count("place"), faults.count("renew")) == asked
    lease.release()


def test_a_grant_that_has_to_be_on_replicas_is_not_handed_on(scene: Scene, server: RedisServer) -> None:
    alice = scene.party()
    alice.client.real._engine.backend.wait_replicas = 1
    bob = scene.sibling(alice)
    # Nothing waits for replicas here; it is what the client is told that counts.
    lease = scene.party().lock("x", ttl=300).acquire()
    waiting = scene.queue_up("x", *(one.lock("x", ttl=300).acquire.start for one in (alice, bob)))
    books = alice.client.real._engine._keeper.books
    assert [one.behind for one in books.values()] == ["", ""]
    alice.client.real._engine.backend.wait_replicas = 0
    lease.release()
    for pending in waiting:
        pending.result(60).release()
