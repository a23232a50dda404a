"""Hints only shorten a wait; whatever strikes the thread that listens, the others hear as before and nobody hangs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

import lockline
from lockline.backends.redlock.backend import LOOK_EVERY
from tests.servers.process import wait_for

from ..cutting import Cut, CutAt
from .servers import Servers, servers

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def three() -> Iterator[Servers]:
    with servers(3) as made:
        yield made


def wait_once(client: lockline.Client, other: lockline.Client, name: str, cut: CutAt | None) -> float:
    """Wait for a lock that another gives back; how long after that it came."""
    held = other.lock(name, ttl=30).acquire()
    given_back: list[float] = []
    came: list[float] = []

    def give_back() -> None:
        # An exception that strikes before anybody is seen to wait makes the waiter go: then nobody will.
        end = time.monotonic() + 0.5
        while not other.inspect(name).waiters and time.monotonic() < end and thread.is_alive():
            time.sleep(0.002)
        given_back.append(time.monotonic())
        held.release()

    def wait() -> None:
        with client.lock(name, ttl=30).acquire(timeout=20):
            came.append(time.monotonic())

    def cut_wait() -> None:
        try:
            wait() if cut is None else cut(wait)
        except Cut:
            pass

    thread = threading.Thread(target=cut_wait, daemon=True)
    thread.start()
    give_back()
    thread.join(15)
    assert not thread.is_alive(), f"hangs, cut at {'' if cut is None else cut.where}"
    return came[0] - given_back[0] if came else 0.0


@pytest.mark.slow
def test_others_still_hear_wherever_the_listening_thread_was_cut(three: Servers) -> None:
    with lockline.connect(three.url) as client, lockline.connect(three.url) as other:
        wait_once(client, other, "whole", None)
        whole = CutAt(-1, inside="/redlock/subscription_blocking.py")
        wait_once(client, other, "whole", whole)
        assert whole.seen > 100
        seed = random.randrange(1 << 32)
        for nth in sorted(random.Random(seed).sample(range(1, whole.seen), min(100, whole.seen - 1))):
            cut = CutAt(nth, inside="/redlock/subscription_blocking.py")
            wait_once(client, other, f"cut-{nth}", cut)
            # A word may come in the very moment in which an ear is made anew, but not each time.
            heard = (wait_once(client, other, f"after-{nth}-{again}", None) < LOOK_EVERY / 4 for again in range(3))
            assert any(heard), f"nobody hears any more after a cut at {cut.where} (seed {seed})"


@pytest.mark.slow
def test_closing_a_client_while_threads_listen_gives_them_a_typed_error_alone(three: Servers) -> None:
    strange: list[BaseException] = []

    def wait(client: lockline.Client, name: str) -> None:
        try:
            client.lock(name).acquire(timeout=20)
        except lockline.LocklineError:
            pass
        except BaseException as problem:
            strange.append(problem)

    with lockline.connect(three.url) as other:
        for turn in range(15):
            held = [other.lock(f"{turn}-{number}", ttl=30).acquire() for number in range(3)]
            client = lockline.connect(three.url)
            threads = [threading.Thread(target=wait, args=(client, lease.name), daemon=True) for lease in held]
            for thread in threads:
                thread.start()
            wait_for(partial(lambda held: all(other.inspect(one.name).waiters for one in held), held), 10, "waiters")
            client.close()
            for thread in threads:
                thread.join(10)
                assert not thread.is_alive()
            for lease in held:
                lease.release()
    assert strange == []
