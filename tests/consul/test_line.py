"""What stands in Consul, who is told of what, and how a ttl is kept on a store that has no clock for it."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

import lockline
from lockline import LeaseLost, NotHeld
from lockline.backends.consul import claims
from lockline.runtime.blocking import run

from ..servers.consul import ConsulCluster
from ..servers.process import freeze, wait_for
from ..tier import sample
from .conftest import Clients, backend_of, keys_under, put

pytestmark = pytest.mark.server

TTL = 5.0
"""Of claims that end in a test, which is longer than 5 s for that: an acquire needs its answer within its ttl, also of a busy server."""
HOLD = """
import sys, time, lockline
client = lockline.connect(sys.argv[1])
lease = client.lock("x", ttl=float(sys.argv[2])).acquire()
print(lease.token, flush=True)
lease.lost.wait()
print("lost", flush=True)
time.sleep(600)
"""


def start_holder(url: str, ttl: float) -> tuple[subprocess.Popen[str], int]:
    """Another process that holds `x`, and its token."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, url, str(ttl)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    return holder, int(holder.stdout.readline())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_long_session_does_not_keep_a_killed_holders_short_lock(
    consul: ConsulCluster, prefix: str, client_of: Clients
) -> None:
    """The session lasts for ten minutes or more; whoever waits sees that the claim stands still, and removes it."""
    url = f"{consul.url}/{prefix}?session_ttl=600"
    ttl = TTL
    holder, token = start_holder(url, ttl)
    end(holder)
    began = time.monotonic()
    with client_of(url).lock("x").acquire(timeout=60) as lease:
        # Not before it has seen it stand still for all of the dead one's time.
        assert time.monotonic() - began >= ttl
        assert lease.token > token


def test_a_try_after_a_killed_holder_succeeds_once_its_claim_has_been_seen_to_stand_still(
    consul: ConsulCluster, prefix: str, client_of: Clients
) -> None:
    url = f"{consul.url}/{prefix}?session_ttl=600"
    holder, _ = start_holder(url, TTL)
    end(holder)
    client = client_of(url)
    tries = 0
    until = time.monotonic() + 60.0  # its session lives for ten minutes
    while (lease := client.lock("x").try_acquire()) is None:
        assert time.monotonic() < until
        tries += 1
        time.sleep(0.2)
    assert tries
    lease.release()


def test_a_holder_that_was_frozen_past_its_ttl_finds_its_claim_gone_and_the_next_one_untouched(
    url: str, client_of: Clients
) -> None:
    holder, token = start_holder(url, TTL)
    waiter = client_of(url)
    try:
        freeze(holder.pid)
        lease = waiter.lock("x", ttl=60).acquire(timeout=60)
        os.kill(holder.pid, signal.SIGCONT)
        assert lease.token > token
        assert holder.stdout is not None
        assert holder.stdout.readline() == "lost\n"
        time.sleep(0.7)  # for what it may still have to ask of the server
        assert lease.valid
        assert [claim.token for claim in waiter.inspect("x").claims] == [lease.token]
        lease.release()
    finally:
        end(holder)


def test_what_a_killed_client_leaves_behind_goes_with_its_session(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients
) -> None:
    holder, _ = start_holder(url, TTL)
    end(holder)
    # Nobody waits or looks; Consul itself removes it, after the session's time or up to twice that.
    wait_for(lambda: time.sleep(0.1) or not keys_under(consul, prefix), 60, "an empty prefix")  # type: ignore[func-returns-value]


def test_a_client_that_lives_removes_what_nobody_renews_to_the_moment(url: str, client_of: Clients) -> None:
    first, second = client_of(url), client_of(url)
    lease = first.lock("x", ttl=TTL, renew=False).acquire()
    with second.lock("x").acquire(timeout=60) as next_one:
        assert not lease.valid
        assert next_one.token > lease.token


def test_only_the_next_one_is_called_and_nobody_has_to_look(
    url: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five clients wait, and would look by themselves after an hour only; each release calls the next one."""
    for look in ("A_GLANCE", "NET"):
        monkeypatch.setattr(claims, look, 3600.0)
    clients = [client_of(url) for _ in range(5)]
    lease = client_of(url).lock("x", ttl=600).acquire()
    order: list[int] = []

    def wait(number: int) -> None:
        with clients[number].lock("x", ttl=600).acquire(timeout=120):
            order.append(number)

    threads = []
    for number, client in enumerate(clients):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        wait_for(lambda n=number, c=client: len(c.inspect("x").waiters) == n + 1)  # type: ignore[misc]
    lease.release()
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2, 3, 4]


def test_the_token_is_the_index_of_the_log_and_outlives_a_restored_snapshot(
    spare: ConsulCluster, client_of: Clients
) -> None:
    url = f"{spare.url}/snapshot?session_ttl=1"
    address = f"http://127.0.0.1:{spare.servers[0].port}/v1/snapshot"
    client = client_of(url)
    client.lock("x").acquire().release()
    with urllib.request.urlopen(address, timeout=60) as saved:
        backup = saved.read()
    tokens = []
    for _ in range(20):
        with client.lock("x") as lease:
            tokens.append(lease.token)
    client.close()
    with urllib.request.urlopen(urllib.request.Request(address, backup, method="PUT"), timeout=60) as restored:
        assert restored.status == 200
    with client_of(url).lock("x").acquire(timeout=60) as after:
        assert after.token > tokens[-1]


def test_a_key_that_somebody_else_put_among_the_claims_holds_nothing_and_stays(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients
) -> None:
    assert put(consul, f"kv/{prefix}/claims/x/stranger", {"hello": 1})[0] == 200
    client = client_of(url)
    with client.lock("x").acquire(timeout=60):
        assert len(client.inspect("x").claims) == 1
    assert keys_under(consul, f"{prefix}/claims/") == [f"{prefix}/claims/x/stranger"]


def test_a_guard_refuses_the_users_own_transaction_once_the_lease_is_gone(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients
) -> None:
    client = client_of(url)
    lease = client.lock("x", ttl=60).acquire()
    guard = lease.guard()
    value = base64.b64encode(b"done").decode()
    change = [guard, {"KV": {"Verb": "set", "Key": f"{prefix}-data", "Value": value}}]
    assert put(consul, "txn", change)[0] == 200
    client_of(url).evict("x")
    code, text = put(consul, "txn", change)
    assert code == 409, text
    with pytest.raises(lockline.LeaseLost):
        lease.release()


def test_a_guard_refuses_one_that_ran_out_and_was_followed_and_lets_the_next_one_write(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients
) -> None:
    """Longer than 5 s: so is the ttl, which ends; a shorter one could be over before there is a guard."""
    late = client_of(url).lock("x", ttl=5, renew=False).acquire()
    old = late.guard()
    change = {"KV": {"Verb": "set", "Key": f"{prefix}-data", "Value": ""}}
    with client_of(url).lock("x", ttl=10).acquire(timeout=60) as lease:
        assert put(consul, "txn", [old, change])[0] == 409
        with pytest.raises(LeaseLost):
            late.guard()
        assert put(consul, "txn", [lease.guard(), change])[0] == 200
        lease.extend(30)  # which may hang the claim on another session
        held = lease.guard()
        assert put(consul, "txn", [held, change])[0] == 200
    assert put(consul, "txn", [held, change])[0] == 409
    with pytest.raises(NotHeld):
        lease.guard()


def test_an_extension_beyond_the_sessions_length_moves_the_claim_to_a_longer_one_in_its_place(
    url: str, client_of: Clients
) -> None:
    client = client_of(url)
    with client.lock("x", ttl=10).acquire() as lease:
        (short,) = backend_of(client)._sessions.all()
        lease.extend(30)
        assert lease.remaining() > 20
        assert {session.seconds > 30 for session in backend_of(client)._sessions.all()} == {True, False}
        (held,) = client.inspect("x").holders
        assert held.token == lease.token
        backend_of(client)._sessions.lose(short)  # whatever becomes of the short one
        assert lease.valid


def test_very_many_waiters_of_one_client_need_few_connections_and_threads(url: str) -> None:
    """On twenty names, some on each."""
    count = sample(60, 100)
    client = lockline.connect(url)
    holder = lockline.connect(url)
    try:
        leases = [holder.lock(f"n{number}", ttl=60).acquire() for number in range(20)]
        done: list[int] = []

        def wait(number: int) -> None:
            with client.lock(f"n{number % 20}", ttl=60).acquire(timeout=120):
                done.append(number)

        before = threading.active_count()
        threads = [threading.Thread(target=wait, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(backend_of(client)._claims.standing()) == count, 120, "all who wait")
        assert threading.active_count() - before - len(threads) <= 4
        port = backend_of(client)._target.endpoints[0].port
        with open("/proc/self/net/tcp") as table:
            mine = [line for line in table if line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "01"]
        assert len(mine) <= 2 * (4 + 1)  # two clients here
        for lease in leases:
            lease.release()
        for thread in threads:
            thread.join(120)
        assert len(done) == count
    finally:
        client.close()
        holder.close()


def test_nobody_leaves_word_for_a_claim_that_has_left(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients
) -> None:
    """Whoever saw it in the line may be late: what is said to nobody would lie there as long as that client lives."""
    holder, waiter = client_of(url), client_of(url)
    lease = holder.lock("x", ttl=60).acquire()
    backend = backend_of(holder)
    until = backend._runtime.now() + 60
    pending = threading.Thread(target=lambda: waiter.lock("x").acquire(timeout=60).release())
    pending.start()
    wait_for(lambda: holder.inspect("x").waiters)
    before = run(backend._claims.sightings.line("x", until))
    lease.release()
    pending.join(60)
    run(backend._claims.pushes.tell_new_holders(before[:1], before[1:], until))
    assert len(before) == 2
    assert not [key for key in keys_under(consul, f"{prefix}/clients/") if key.endswith("bell")]


def test_a_claim_that_was_renewed_after_the_look_is_not_taken_for_dead(
    url: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other = client_of(url), client_of(url)
    lease = holder.lock("x", ttl=600, renew=False).acquire()
    sightings, until = backend_of(other)._claims.sightings, holder._engine.runtime.now() + 60
    seen = run(sightings.line("x", until))
    lease.extend(600)
    # As if the ttl of what was seen were over by now.
    monkeypatch.setattr(sightings, "overdue", lambda claim, now: True)
    assert run(sightings.bury(seen, until))
    assert [claim.token for claim in holder.inspect("x").holders] == [lease.token]
    lease.release()
