"""Hints only shorten a wait; whatever strikes the thread that listens, the others hear as before and nobody hangs."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import lockline
from lockline.backends.redlock import backend
from lockline.backends.redlock.claims import OwnLines
from lockline.backends.redlock.scripts import FREED
from lockline.backends.redlock.subscription import HeardReleases
from lockline.backends.redlock.subscription_blocking import BlockingHints
from lockline.runtime.blocking import BlockingRuntime, run
from lockline.runtime.clock import now
from tests.servers.process import wait_for

from ..calm import calm
from ..cutting import Cut, CutAt
from ..tier import sample
from .servers import Servers, servers
from .test_late_requests import both, client_of

pytestmark = pytest.mark.server

CUTS = sample(12, 100)


@pytest.fixture(scope="module")
def three() -> Iterator[Servers]:
    with servers(3) as made:
        yield made


def wait_once(client: lockline.Client, other: lockline.Client, name: str, cut: CutAt | None) -> float:
    """Wait for a lock that another gives back; how long after that it came."""
    held = other.lock(name, ttl=60).acquire()
    given_back: list[float] = []
    came: list[float] = []

    def give_back() -> None:
        # An exception that strikes before anybody is seen to wait makes the waiter go: then nobody will.
        end = time.monotonic() + 0.5
        while not other.inspect(name).waiters and time.monotonic() < end and thread.is_alive():
            time.sleep(0.002)
        given_back.append(calm())
        held.release()

    def wait() -> None:
        with client.lock(name, ttl=60).acquire(timeout=60):
            came.append(calm())

    def cut_wait() -> None:
        try:
            wait() if cut is None else cut(wait)
        except Cut:
            pass

    thread = threading.Thread(target=cut_wait, daemon=True)
    thread.start()
    give_back()
    thread.join(60)
    assert not thread.is_alive(), f"hangs, cut at {'' if cut is None else cut.where}"
    return came[0] - given_back[0] if came else 0.0


@pytest.mark.slow
def test_others_still_hear_wherever_the_listening_thread_was_cut(
    three: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty seconds where a hint falls into the moment in which a subscription is made anew: the waiter then looks by itself."""
    # The net under the hints, so far below that a busy machine does not reach it.
    monkeypatch.setattr(backend, "LOOK_EVERY", 20.0)
    with lockline.connect(three.url) as client, lockline.connect(three.url) as other:
        wait_once(client, other, "whole", None)
        whole = CutAt(-1, inside="/redlock/subscription_blocking.py")
        wait_once(client, other, "whole", whole)
        assert whole.seen > 100
        seed = sample(7, random.randrange(1 << 32))
        for nth in sorted(random.Random(seed).sample(range(1, whole.seen), min(CUTS, whole.seen - 1))):
            cut = CutAt(nth, inside="/redlock/subscription_blocking.py")
            wait_once(client, other, f"cut-{nth}", cut)
            # A word may come in the very moment in which an ear is made anew, but not each time.
            heard = (wait_once(client, other, f"after-{nth}-{again}", None) < 10 for again in range(3))
            assert any(heard), f"nobody hears any more after a cut at {cut.where} (seed {seed})"


@pytest.mark.slow
def test_closing_a_client_while_threads_listen_gives_them_a_typed_error_alone(three: Servers) -> None:
    strange: list[BaseException] = []

    def wait(client: lockline.Client, name: str) -> None:
        try:
            client.lock(name).acquire(timeout=60)
        except lockline.LocklineError:
            pass
        except BaseException as problem:
            strange.append(problem)

    with lockline.connect(three.url) as other:
        for turn in range(sample(5, 15)):
            held = [other.lock(f"{turn}-{number}", ttl=60).acquire() for number in range(3)]
            client = lockline.connect(three.url)
            threads = [threading.Thread(target=wait, args=(client, lease.name), daemon=True) for lease in held]
            for thread in threads:
                thread.start()
            wait_for(partial(lambda held: all(other.inspect(one.name).waiters for one in held), held), 60, "waiters")
            client.close()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            for lease in held:
                lease.release()
    assert strange == []


@both
def test_what_strangers_publish_hurts_nobody(three: Servers, flavour: str) -> None:
    with client_of(flavour, three.url) as one, lockline.connect(three.url) as other:
        held = other.lock("x", ttl=60).acquire()
        mine = one.do(lambda: one.client.lock("mine", ttl=60).acquire())
        got: list[Any] = []
        waiter = threading.Thread(target=lambda: got.append(one.do(lambda: one.client.lock("x").acquire(timeout=60))))
        waiter.start()

        def channels() -> set[str]:
            return {name.split(":")[2] for name in three[0].command("PUBSUB", "CHANNELS", "lockline:*")}

        # Those of whoever waits, and of whoever holds.
        wait_for(lambda: channels() == {"freed", "victim"}, 60, "both kinds of channels")
        for node in three.nodes:
            for channel in node.command("PUBSUB", "CHANNELS", "lockline:*"):
                for junk in (b"\xff\xfe", b"", b"x" * 100_000):
                    node.command("PUBLISH", channel, junk)
        held.release()
        waiter.join(60)
        (lease,) = got
        one.do(lambda: lease.release())
        one.do(lambda: mine.release())


# -- the pieces by themselves ----------------------------------------------------------------------


def test_a_thousand_names_that_are_freed_at_once_are_all_told() -> None:
    """Each server tells of all of them in one go, before the next one has its say."""
    freed: list[str] = []
    releases = HeardReleases(5, freed.append, lambda attempt: None)
    for _ in range(5):
        for number in range(1000):
            releases.take(f"{FREED}{number}", b"attempt", 5)
    assert sorted(freed, key=int) == [str(number) for number in range(1000)]


def test_a_client_that_is_closed_while_a_thread_begins_to_listen_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = BlockingHints([], 1.0, lambda name: None, lambda attempt: None)
    pair = socket.socketpair()

    def closed_meanwhile() -> tuple[socket.socket, socket.socket]:
        run(source.close())
        return pair

    monkeypatch.setattr(socket, "socketpair", closed_meanwhile)
    run(source.subscribe("x", now()))
    assert [end.fileno() for end in pair] == [-1, -1]


def test_threads_that_come_and_go_stand_in_one_line() -> None:
    lines = OwnLines(BlockingRuntime())
    problems: list[BaseException] = []

    def come_and_go(mine: str) -> None:
        try:
            for _ in range(sample(1000, 5000)):
                lines.stand("x", mine)
                assert lines.ahead("x", mine) is not None, "it stands in a line that is none"
                lines.step_out("x", mine)
                assert lines.ahead("x", mine) is None
        except BaseException as problem:
            problems.append(problem)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=come_and_go, args=(str(number),)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(interval)
    assert problems == []


def test_the_next_of_a_client_tries_although_nobody_told_it_that_it_is_the_first(three: Servers) -> None:
    """An exception may strike the first one after it has stepped out of the line and before it has told the next.

    Five seconds: the first one has to stand there until the next one has come, and then to give up.
    """
    with lockline.connect(three.url) as client, lockline.connect(three.url) as other:
        held = other.lock("x", ttl=60).acquire()
        backend = client._engine.backend
        came = threading.Event()

        def wait(timeout: float) -> None:
            try:
                client.lock("x", ttl=10).acquire(timeout=timeout).release()
            except lockline.AcquireTimeout:
                return
            came.set()

        threads = []
        for number, timeout in enumerate((5.0, 60.0), 1):
            threads.append(threading.Thread(target=wait, args=(timeout,)))
            threads[-1].start()
            wait_for(partial(lambda n: len(backend.lines._lines.get("x", ())) == n, number), 60, "its place")  # type: ignore[attr-defined]
        step_out = backend.lines.step_out  # type: ignore[attr-defined]
        backend.lines.step_out = lambda name, claim_id: step_out(name, claim_id) and None  # type: ignore[attr-defined]
        threads[0].join(60)
        held.release()
        for thread in threads:
            thread.join(60)
        assert came.is_set()
