"""Who waits is told; who died waiting holds up nobody; and the server keeps little."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

import lockline
from lockline.backends.redis.scripts import ENTER, LEAVE, NO_CHANNEL
from lockline.core import engine
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer, a_redis
from tests.tier import sample

from .conftest import Town
from .crowd import ROOT

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]

DEAD = sample(2, 4)
WAITER = """
import sys, lockline
client = lockline.connect(sys.argv[1])
client.lock("x", ttl=300).acquire()
"""


def test_all_dead_waiters_are_skipped_in_one_step(server: RedisServer, connect: Connect) -> None:
    client, last = connect(server.url), connect(server.url)
    # Longer than anybody here waits: nobody is skipped because it has expired.
    lease = client.lock("x", ttl=300).acquire()
    crowd = [subprocess.Popen([sys.executable, "-c", WAITER, server.url], cwd=ROOT) for _ in range(DEAD)]
    wait_for(lambda: len(client.inspect("x").waiters) == DEAD, 60, "all in the line")

    def channels() -> set[str]:
        """Where they listen; a new client's claim stands for a moment before it does."""
        waiting = [field for field in server.command("HKEYS", "{ll:x}") if field[0] == "~"]
        return {server.command("HGET", "{ll:x}", field).split(" ")[6] for field in waiting} - {NO_CHANNEL}

    wait_for(lambda: len(channels()) == DEAD, 60, "all of them listen")
    theirs = channels()
    got: list[lockline.Lease] = []

    def wait() -> None:
        with last.lock("x", ttl=300) as mine:
            got.append(mine)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_for(lambda: len(client.inspect("x").waiters) == DEAD + 1, 60, "the last one")
    for process in crowd:
        process.kill()
        process.wait()
    # The server has to see the connections end, nothing more.
    wait_for(
        lambda: not any(count for _, count in server.command("PUBSUB NUMSUB", *theirs)),
        60,
        "the ends of their connections",
    )
    lease.release()
    thread.join(60)
    assert got


def test_a_waiter_that_was_taken_for_dead_comes_back(server: RedisServer, connect: Connect) -> None:
    """Its subscription was just being renewed when its turn came."""
    holder, waiter = connect(server.url), connect(server.url)
    lease = holder.lock("x").acquire()
    got: list[lockline.Lease] = []

    def wait() -> None:
        with waiter.lock("x") as mine:
            got.append(mine)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_for(lambda: len(holder.inspect("x").waiters) == 1, 60, "the waiter")
    server.command("CLIENT", "KILL", "TYPE", "pubsub")
    lease.release()
    thread.join(60)
    assert got
    assert not holder.inspect("x").claims


def test_one_subscription_whatever_the_number_of_locks(server: RedisServer, connect: Connect) -> None:
    holder, waiter = connect(server.url), connect(server.url)
    leases = [holder.lock(f"x{n}").acquire() for n in range(50)]

    def wait(n: int) -> None:
        with waiter.lock(f"x{n}"):
            pass

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(50)]
    for thread in threads:
        thread.start()
    for n in range(50):
        wait_for(partial(lambda n: len(holder.inspect(f"x{n}").waiters) == 1, n), 60, "a waiter")
    clients = server.client().client_list()
    assert len(clients) <= 12
    assert len([each for each in clients if int(each["sub"]) > 0]) <= 2
    for lease in leases:
        lease.release()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_every_key_has_a_ttl_that_nobody_prolongs(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "GRACE", 10.0)
    client, other = connect(server.url), connect(server.url)
    for n in range(2):
        lease = client.lock(f"x{n}", ttl=60).acquire()
        assert other.lock(f"x{n}").try_acquire() is None
        with pytest.raises(lockline.AcquireTimeout):
            other.lock(f"x{n}").acquire(timeout=0.01)
        assert client.inspect(f"x{n}").waiters == ()
        lease.release()
    left = {key: server.command("PTTL", key) for key in server.command("KEYS", "*")}
    assert left
    for key in left:
        assert 0 < left[key] <= 70_000, "ten seconds after the last lease would have ended"
        assert server.command("HKEYS", key) == ["last"]
    # To drop them then is Redis' own part.
    wait_for(lambda: all(server.command("PTTL", key) <= left[key] - 500 for key in left), 60, "less to live")


def test_a_hash_of_another_program_is_left_as_it_is(town: Town) -> None:
    town.server.command("HSET", town.key("x"), "a", "1", "state", "fine")
    alice = town.near()
    with pytest.raises(lockline.BackendUnavailable, match="WRONGTYPE"):
        alice.lock("x").acquire(timeout=60)
    with pytest.raises(lockline.BackendUnavailable, match="WRONGTYPE"):
        town.direct.line("x")
    assert town.direct.evict("x") == 0
    assert town.fields("x") == {"a": "1", "state": "fine"}
    assert town.server.command("PTTL", town.key("x")) == -1


def test_values_of_other_programs_do_not_spoil_the_list(server: RedisServer, connect: Connect) -> None:
    client = connect(server.url)
    lease = client.lock("x").acquire()
    server.command("SET", "{ll:text}", "theirs")
    server.command("HSET", "{ll:hash}", "state", "fine")
    assert client.list() == ["x"]
    server.command("CLIENT", "KILL", "TYPE", "normal")
    assert client.list() == ["x"]
    lease.release()


def test_a_float_ttl_is_kept_to_the_millisecond(server: RedisServer, connect: Connect) -> None:
    client = connect(server.url)
    for ttl in (35.25, 67.5, 60):
        began, wall = time.monotonic(), time.time()
        lease = client.lock("x", ttl=ttl, renew=False).acquire()
        (holder,) = client.inspect("x").holders
        # By whichever clock more has passed: the server goes by the wall clock, which may be set meanwhile.
        passed = max(time.monotonic() - began, time.time() - wall)
        assert ttl - 0.02 - passed < holder.remaining <= ttl + 0.002
        assert holder.ttl == ttl
        lease.release()


def test_an_evicted_holder_is_told_soon(town: Town) -> None:
    alice = town.near()
    lease = alice.lock("x", ttl=300).acquire()

    def listens() -> bool:
        record = town.server.command("HGET", town.key("x"), f"+{lease.id}")
        return bool(record.split(" ")[6] != NO_CHANNEL)

    wait_for(listens, 60, "a holder that listens, although it never waited")
    assert town.direct.evict("x") == 1
    # Its next renewal is more than a minute away.
    wait_for(lambda: not lease.valid, 60, "the loss of the lease")
    with pytest.raises(lockline.LeaseLost):
        lease.release()


def test_the_next_one_knows_when_a_short_claim_ahead_runs_out(town: Town) -> None:
    """Carol planned to look when Alice would expire, in five minutes; but Bob, who came in between, was stopped.

    Five seconds: Bob's claim has to stay until he is stopped, and then to run out.
    """
    alice, carol = town.near(), town.near()
    lease = alice.lock("x", ttl=300).acquire()
    bob = town.direct.process()
    bob.send("acquire", name="x", ttl=5)
    town.direct.wait_for_line("x", holders=1, waiters=1)
    waiting = carol.lock("x", ttl=300).acquire.start()
    town.direct.wait_for_line("x", holders=1, waiters=2)
    bob.stop()
    lease.release()
    waiting.result(60).release()


def test_a_token_survives_a_clock_that_steps_back(server: RedisServer, connect: Connect) -> None:
    """The last ticket is remembered while the clock may be behind it."""
    client = connect(server.url)
    lease = client.lock("x").acquire()
    lease.release()
    ahead = lease.token + 8_000_000
    server.command("HSET", "{ll:x}", "last", ahead)
    again = client.lock("x").acquire()
    assert again.token == ahead + 1
    again.release()


def test_who_listens_elsewhere_is_told_to_look_and_never_that_it_holds(server: RedisServer) -> None:
    """Messages reach replicas too: a waiter whose subscription is there was not counted, and must not believe it holds."""
    server.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    with a_redis("--replicaof", "127.0.0.1", str(server.port)) as replica, server.client() as primary:
        wait_for(lambda: primary.info("replication").get("slave0", {}).get("state") == "online", 60, "the replica")
        for script in (ENTER, LEAVE):
            primary.script_load(script.body)
        with replica.client() as far, far.pubsub(ignore_subscribe_messages=True) as elsewhere:
            elsewhere.subscribe("ll:elsewhere")
            elsewhere.get_message(timeout=60)
            for claim, channel in (("holder", "-"), ("waiter", "ll:elsewhere")):
                primary.evalsha(ENTER.sha, 1, "{ll:x}", claim, 60000, f'1 1 {channel} 60 lock 0 "me"', "1", 70000)
            assert primary.evalsha(LEAVE.sha, 1, "{ll:x}", "holder", "0") == 1
            told = elsewhere.get_message(timeout=60)
            assert told is not None
            assert told["data"] == "waiter"
        assert primary.hkeys("{ll:x}") == ["last"]
