"""A loss is told to everybody who listens, and to each of them once, whichever threads tell it and begin to listen at the same moment."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

import lockline
from lockline.runtime.blocking import run

from ..servers.process import wait_for
from ..standstill import EachInstruction

LIVE = "/lockline/core/live.py"


@pytest.fixture
def client() -> Iterator[lockline.Client]:
    with lockline.connect("memory:telling-of-a-loss") as client:
        yield client


def test_a_loss_that_two_threads_tell_is_told_once(client: lockline.Client) -> None:
    """The keeper, and a release that finds it."""
    each = EachInstruction(LIVE, least=20)
    for nth in each:
        lease, told = client.lock(f"x{nth}", ttl=60).acquire(), Counter[str]()
        for name in "abc":
            lease.on_lost(partial(told.update, [name]))
        lease._live.note_loss("evicted")
        first = each.stand_still(lease._live.tell, nth)
        lease._live.tell()
        first.go_on()
        assert told == Counter("abc"), f"it stood before its instruction {nth}"


def test_whoever_begins_to_listen_while_the_loss_is_told_hears_of_it_as_those_who_did_before(
    client: lockline.Client,
) -> None:
    each = EachInstruction(LIVE, least=20)
    for nth in each:
        lease, told = client.lock(f"x{nth}", ttl=60).acquire(), Counter[str]()
        lease.on_lost(partial(told.update, ["before"]))
        first = each.stand_still(partial(lease.on_lost, partial(told.update, ["meanwhile"])), nth)
        lease._live.lose("evicted")
        first.go_on()
        assert told == Counter(["before", "meanwhile"]), f"it stood before its instruction {nth}"


def test_two_who_begin_to_listen_at_once_both_hear(client: lockline.Client) -> None:
    each = EachInstruction(LIVE, least=20)
    for nth in each:
        lease, told = client.lock(f"x{nth}", ttl=60).acquire(), Counter[str]()
        first = each.stand_still(partial(lease.on_lost, partial(told.update, ["one"])), nth)
        lease.on_lost(partial(told.update, ["other"]))
        first.go_on()
        lease._live.lose("evicted")
        assert told == Counter(["one", "other"]), f"it stood before its instruction {nth}"


def test_two_who_begin_to_wait_for_it_at_once_both_wake(client: lockline.Client) -> None:
    """Long before the ttl is over, by when they would look by themselves."""
    each = EachInstruction(LIVE, least=20)
    for nth in each:
        lease = client.lock(f"x{nth}", ttl=600).acquire()
        live, woken = lease._live, threading.Event()

        def look(live: object = live) -> None:
            run(live.ended(live.runtime.now()))  # type: ignore[attr-defined]

        def wait(lease: lockline.Lease = lease, woken: threading.Event = woken) -> None:
            lease.lost.wait()
            woken.set()

        first = each.stand_still(look, nth)
        threading.Thread(target=wait, daemon=True).start()
        wait_for(lambda live=live: live._signal is not None and live._signal._sleeping, 60, "one who sleeps")  # type: ignore[misc]
        first.go_on()
        live.lose("evicted")
        assert woken.wait(60), f"it stood before its instruction {nth}"


def test_an_eviction_wakes_a_thread_that_waits_for_the_loss(client: lockline.Client) -> None:
    """Its renewer finds the loss and has no callback to call; by itself the thread would look when the ttl is over."""
    lease = client.lock("woken", ttl=3600).acquire()
    woken = threading.Event()

    def wait() -> None:
        lease.lost.wait()
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    wait_for(lambda: lease._live._signal is not None and lease._live._signal._sleeping, 60, "a thread that sleeps")  # type: ignore[attr-defined]
    assert client.evict("woken") == 1
    assert woken.wait(60)
