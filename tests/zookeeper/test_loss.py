"""Session expiry, not disconnection, is loss, and the holder knows before the next one begins."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import lockline
from lockline import LeaseLost, aio
from lockline.core import keeper
from lockline.runtime.clock import now

from ..renewed import renewal_of
from ..servers.process import wait_for
from ..servers.proxy import Proxy
from .conftest import Trust, chroot, end_session

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


def test_a_session_that_is_ended_loses_every_lease_of_the_client_at_once(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    # A client that did not hear of it would trust a session of 60 s for 20 s or more.
    client = client_of(url, session=60)
    leases = [client.lock(f"x{n}", ttl=300, renew=n % 2 == 0).acquire() for n in range(6)]
    end_session(kazoo, client)
    wait_for(lambda: not any(lease.valid for lease in leases), 15, "the loss of all")
    wait_for(lambda: all(lease.lost.is_set() for lease in leases), 60, "the word to all")
    for lease in leases:
        with pytest.raises(LeaseLost):
            lease.release()


def test_the_same_client_has_a_new_session_at_its_next_acquire(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    client = client_of(url)
    for _ in range(3):
        lease = client.lock("x").acquire(timeout=60)
        end_session(kazoo, client)
        wait_for(partial(lambda lease: not lease.valid, lease), 60, "the loss")
        again = client.lock("x").acquire(timeout=60)
        assert again.token > lease.token
        assert again.valid
        again.release()


def test_a_lease_of_the_old_session_does_not_come_back_with_the_new_one(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    client = client_of(url)
    old = client.lock("old", ttl=600, renew=False).acquire()
    session = client._engine.backend._channel.session  # type: ignore[attr-defined]
    end_session(kazoo, client)
    wait_for(lambda: session.ended, 60)
    # Nobody has looked at the old lease meanwhile.
    new = client.lock("new").acquire(timeout=60)
    assert new.valid
    assert not old.valid
    new.release()


def test_a_release_after_the_session_ended_leaves_the_next_holder_and_its_new_parent_alone(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    client, other = client_of(url), client_of(url)
    late = client.lock("x").acquire()
    end_session(kazoo, client)
    wait_for(lambda: not other.inspect("x").claims, 60)
    with contextlib.suppress(NoNodeError):  # the server may have been faster
        kazoo.delete(f"{chroot(url)}/x")
    taken = other.lock("x").acquire(timeout=60)
    with pytest.raises(LeaseLost):
        late.release()
    assert taken.valid
    assert [held.id for held in other.inspect("x").claims] == [taken.id]
    taken.release()


def test_a_waiter_whose_session_ended_stands_in_the_line_again(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    client, other = client_of(url), client_of(url)
    held = other.lock("x").acquire()
    got: list[lockline.Lease] = []
    waiter = threading.Thread(target=lambda: got.append(client.lock("x").acquire(timeout=60)))
    waiter.start()
    wait_for(lambda: len(other.inspect("x").waiters) == 1)
    (before,) = other.inspect("x").waiters
    end_session(kazoo, client)
    wait_for(lambda: [w.id for w in other.inspect("x").waiters] not in ([], [before.id]), 60, "a new place in the line")
    held.release()
    waiter.join(60)
    assert got[0].valid
    assert got[0].token > before.token
    got[0].release()


def test_a_waiter_that_was_removed_by_hand_is_not_told_that_it_holds_for_long(
    client_of: Clients, url: str, kazoo: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nor does it take until the keeper next comes by.
    monkeypatch.setattr(keeper, "TICK", 3600.0)
    client, other = client_of(url), client_of(url)
    held = other.lock("x").acquire()
    seen: list[bool] = []

    def wait() -> None:
        lease = client.lock("x", ttl=600).acquire(timeout=60)
        # A renewal, after a third of the ttl, would find it too: only later than that.
        seen.append(lease.lost.wait(60) if lease.id == waiting.id else True)
        if lease.valid:
            lease.release()

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_for(lambda: len(other.inspect("x").waiters) == 1)
    (waiting,) = other.inspect("x").waiters
    parent = f"{chroot(url)}/x"
    (node,) = [node for node in kazoo.get_children(parent) if waiting.id in node]
    kazoo.delete(f"{parent}/{node}")
    held.release()
    waiter.join(150)
    assert seen == [True]


def test_where_all_of_a_line_is_taken_away_none_of_it_takes_its_turn_on_the_end_of_the_one_ahead(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    client, other = client_of(url), client_of(url)
    held = client.lock("x", ttl=60).acquire()
    got: list[str] = []

    def wait() -> None:
        with client.lock("x", ttl=60) as lease:
            got.append(lease.id)

    waiters = [threading.Thread(target=wait) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    wait_for(lambda: len(watches(client)) == 4, what="a watch of each")
    line = [claim.id for claim in other.inspect("x").claims]
    parent = f"{chroot(url)}/x"
    nodes = kazoo.get_children(parent)
    # Whoever is at work goes last: its end would be the turn of the next one, which is gone by then.
    taken = kazoo.transaction()
    for claim_id in reversed(line):
        (node,) = [node for node in nodes if claim_id in node]
        taken.delete(f"{parent}/{node}")
    assert all(answer is True for answer in taken.commit())
    for waiter in waiters:
        waiter.join(60)
    assert len(got) == 4
    assert not set(got) & set(line)
    with pytest.raises(LeaseLost):
        held.release()


def watches(client: lockline.Client) -> list[str]:
    """Whose end this client waits for."""
    waiters = client._engine.backend._subscription._waiters  # type: ignore[attr-defined]
    return [path for path, those in list(waiters.items()) if those]


def test_a_holder_in_a_black_hole_knows_before_the_next_one_holds(proxy: Proxy, url: str, client_of: Clients) -> None:
    """Longer than 5 s: a lease of 5 s is renewed once, and then ends."""
    holder = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}")
    other, ttl = client_of(url), 5.0
    lease = holder.lock("x", ttl=ttl).acquire(timeout=60)
    wait_for(renewal_of(lease), 60, "a renewal")
    told = threading.Event()
    lease.on_lost(told.set)
    assert lease.valid
    trust = Trust(lease)
    proxy.black_hole()
    began = now()
    taken = other.lock("x", ttl=60).acquire(timeout=60)
    granted = now()
    assert not lease.valid
    assert trust.last() < granted
    assert trust.last() - began <= ttl
    wait_for(told.is_set, 60, "the word to whoever listens")
    taken.release()
    proxy.heal()


def test_a_long_ttl_does_not_outlive_the_session_that_carries_it(proxy: Proxy, url: str, client_of: Clients) -> None:
    """A ttl of a day, a session of five seconds: cut off, the holder trusts it no longer than the session.

    Longer than 5 s: the session ends.
    """
    session = 5.0
    holder = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}", session=session)
    other = client_of(url)
    lease = holder.lock("x", ttl=86400, renew=False, max_hold=86400).acquire(timeout=60)
    # The session is confirmed at least once after its beginning.
    ceiling = holder._engine.backend._channel.session.ceiling  # type: ignore[attr-defined]
    first = ceiling.until
    wait_for(lambda: ceiling.until > first, 60, "a confirmation")
    trust = Trust(lease)
    proxy.black_hole()
    began = now()
    taken = other.lock("x").acquire(timeout=60)
    granted = now()
    assert trust.last() < granted
    assert trust.last() - began <= session
    wait_for(lease.lost.is_set, 60, "the word to whoever waits for it")
    taken.release()
    proxy.heal()


def test_a_connection_that_breaks_for_a_moment_loses_nothing(proxy: Proxy, url: str, client_of: Clients) -> None:
    client = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}")
    lease = client.lock("x", ttl=30).acquire()
    proxy.refuse()
    proxy.cut()
    time.sleep(0.7)
    assert lease.valid
    proxy.heal()
    wait_for(lambda: client._engine.backend._channel.client.connected, 60)  # type: ignore[attr-defined]
    lease.extend(30)
    lease.release()


def test_a_blocked_loop_does_not_keep_others_from_the_lock(url: str, client_of: Clients) -> None:
    """kazoo's thread keeps the session alive while the loop is stuck; the claim ends with its ttl all the same.

    Longer than 5 s: so is the ttl, within which the first answer has to come.
    """
    other = client_of(url)
    got: list[float] = []

    async def story() -> bool:
        async with aio.connect(url) as client:
            began = time.monotonic()
            lease = await client.lock("x", ttl=5.0).acquire()

            def take() -> None:
                with other.lock("x").acquire(timeout=60):
                    got.append(time.monotonic() - began)

            taker = threading.Thread(target=take)
            taker.start()
            taker.join(60)  # the loop is blocked until somebody else has the lock, that is the story
            return lease.valid

    assert asyncio.run(story()) is False
    assert got[0] >= 4.9


FROZEN = """
import sys, lockline
client = lockline.connect(sys.argv[1])
lease = client.lock("x", ttl=float(sys.argv[2])).acquire()
print("held", lease.token, flush=True)
for line in sys.stdin:
    print(lease.valid, flush=True)
"""


@pytest.mark.slow
def test_a_frozen_holder_is_removed_with_its_session_and_says_lost_when_it_wakes(url: str, client_of: Clients) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FROZEN, url, "5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        token = int(process.stdout.readline().split()[1])
        os.kill(process.pid, signal.SIGSTOP)
        lease = client_of(url).lock("x").acquire(timeout=60)
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == "False"
        process.kill()
    assert lease.token > token
    lease.release()


@pytest.mark.slow
def test_a_killed_holder_frees_the_lock_with_its_session(url: str, client_of: Clients) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FROZEN, url, "5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    # Its session is as long as its ttl: see test_a_smaller_ttl_makes_the_session_shorter_and_keeps_what_it_carries.
    client_of(url).lock("x").acquire(timeout=60).release()


def test_a_smaller_ttl_makes_the_session_shorter_and_keeps_what_it_carries(
    client_of: Clients, url: str, kazoo: KazooClient
) -> None:
    client = client_of(url)
    first = client.lock("x", ttl=20).acquire()
    session = client._engine.backend._channel.session  # type: ignore[attr-defined]
    assert session.timeout == pytest.approx(20, abs=0.01)
    second = client.lock("y", ttl=5).acquire(timeout=60)
    assert client._engine.backend._channel.session is session  # type: ignore[attr-defined]
    assert session.timeout == pytest.approx(5, abs=0.01)
    assert first.valid
    assert second.valid
    ceiling = session.ceiling.until
    wait_for(lambda: session.ceiling.until > ceiling, 60, "a confirmation of the shorter session")
    assert first.valid
    first.release()
    second.release()


def test_a_client_that_is_closed_ends_its_session_at_once(client_of: Clients, url: str, kazoo: KazooClient) -> None:
    # Left to itself the session would last for a minute.
    client = client_of(url, session=60)
    leases = [client.lock(name, ttl=60).acquire() for name in ("x", "y")]
    client.close()
    other = client_of(url)
    wait_for(lambda: not other.list(), 30, "an empty place")
    assert not any(lease.valid for lease in leases)
