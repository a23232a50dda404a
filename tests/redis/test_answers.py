"""Every answer of a server as what it is: some pass by themselves, some are repaired, some come out typed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import redis

import lockline
from lockline import BackendUnavailable
from lockline.backends.redis.doctor import RULE
from lockline.backends.resp.errors import Refused
from tests.redis.renewed import TTL, wait_for_renewal
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer, a_redis

from .conftest import Town

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]


def test_forgotten_scripts_are_brought_back_in_every_call(town: Town) -> None:
    alice, bob = town.near(), town.near()

    def flush() -> None:
        town.server.command("SCRIPT", "FLUSH")

    flush()
    lease = alice.lock("x", ttl=10).acquire()
    flush()
    waiting = bob.lock("x").acquire.start()
    town.direct.wait_for_line("x", holders=1, waiters=1)
    flush()
    lease.extend(5)
    flush()
    assert town.direct.line("x").holders
    flush()
    assert town.direct.names() == ["x"]
    flush()
    lease.release()
    held = waiting.result(60)
    flush()
    assert town.direct.evict("x") == 1
    with pytest.raises(lockline.LeaseLost):
        held.release()


def test_a_foreign_value_is_never_overwritten(town: Town) -> None:
    alice = town.near()
    town.server.command("SET", town.key("x"), "theirs")
    for attempt in (alice.lock("x").acquire, alice.lock("x").try_acquire):
        with pytest.raises(Refused, match="never overwrites") as caught:
            attempt()
        assert caught.value.code == "WRONGTYPE"
    assert town.server.command("GET", town.key("x")) == "theirs"


def test_a_full_server_says_so(connect: Connect) -> None:
    with a_redis("--maxmemory-policy", "noeviction") as server:
        client = connect(server.url)
        held = client.lock("before").acquire()
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Refused, match="memory") as caught:
            client.lock("x").acquire()
        assert caught.value.code == "OOM"
        server.command("CONFIG", "SET", "maxmemory", "0")
        held.release()


def test_missing_login_and_missing_permission_are_told_apart(connect: Connect) -> None:
    with a_redis("--requirepass", "secret") as server:
        for protocol in (2, 3):
            with pytest.raises(Refused) as caught:
                connect(f"{server.url}?protocol={protocol}").lock("x").acquire()
            assert caught.value.code == "NOAUTH"
        admin = server.client(password="secret")
        admin.execute_command("ACL", "SETUSER", "poor", "on", ">p", "~*", "&*", "+info", "+hello", "+auth")
        with pytest.raises(Refused) as caught:
            connect(f"redis://poor:p@127.0.0.1:{server.port}").lock("x").acquire()
        assert caught.value.code == "NOPERM"
        admin.close()


def test_the_documented_rule_is_enough_for_everything(server: RedisServer, connect: Connect) -> None:
    server.command(*RULE.replace(">password", ">p").split(" "))
    url = f"redis://lockline:p@127.0.0.1:{server.port}"
    client, other = connect(url), connect(url)
    with client.lock("x", ttl=TTL) as lease:
        got: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: got.append(other.lock("x").acquire(timeout=60)))
        thread.start()
        wait_for_renewal(lease)
    thread.join(60)
    assert client.list() == ["x"]
    assert client.evict("x") == 1
    with pytest.raises(lockline.LeaseLost):
        got[0].release()
    assert all(finding.level != "error" for finding in client.examine())
    server.command("ACL", "DELUSER", "lockline")


def refusals(server: RedisServer, code: str) -> int:
    """How often the server has answered with this error."""
    return int(server.command("INFO", "errorstats").get(f"errorstat_{code}", {"count": 0})["count"])


def test_a_replica_is_asked_again_until_it_is_a_primary(server: RedisServer, connect: Connect) -> None:
    with a_redis("--replicaof", "127.0.0.1", str(server.port)) as replica:
        client = connect(replica.url)
        thread = threading.Thread(target=lambda: client.lock("x", ttl=60).acquire().release())
        thread.start()
        wait_for(lambda: refusals(replica, "READONLY"), 60, "a refusal")
        replica.command("REPLICAOF", "NO", "ONE")
        thread.join(60)
        assert not thread.is_alive()
        assert replica.command("HKEYS", "{ll:x}") == ["last"], "granted and released"


def test_a_replica_that_stays_one_is_a_typed_error_in_time(server: RedisServer, connect: Connect) -> None:
    with (
        a_redis("--replicaof", "127.0.0.1", str(server.port)) as replica,
        pytest.raises(BackendUnavailable, match="READONLY"),
    ):
        connect(replica.url).lock("x", ttl=0.5).acquire()


@pytest.mark.parametrize("waiters", [1, 2])
def test_a_server_that_may_not_write_lets_nobody_in(own_server: RedisServer, connect: Connect, waiters: int) -> None:
    """The step of the release fails at its first write: until then nobody may have been told that he holds."""
    holder = connect(own_server.url)
    permits = holder.semaphore("x", limit=waiters, ttl=60)
    leases = [permits.acquire() for _ in range(waiters)]
    got: list[lockline.Lease] = []

    def wait() -> None:
        got.append(connect(own_server.url).semaphore("x", limit=waiters, ttl=60).acquire(timeout=60))

    threads = [threading.Thread(target=wait) for _ in range(waiters)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(holder.inspect("x").waiters) == waiters, 60, "the waiters")
    own_server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    release = threading.Thread(target=leases[0].release)
    release.start()
    wait_for(lambda: refusals(own_server, "NOREPLICAS"), 60, "a release that was refused")
    assert "cmdstat_publish" not in own_server.command("INFO", "commandstats"), "nobody was told anything"
    assert not got
    own_server.command("CONFIG", "SET", "min-replicas-to-write", "0")
    release.join(60)
    for lease in leases[1:]:
        lease.release()
    for thread in threads:
        thread.join(60)
    assert len(got) == waiters
    for lease in got:
        lease.release()


def test_a_busy_server_is_waited_for(own_server: RedisServer, connect: Connect) -> None:
    """A script of somebody else runs for too long: the server answers BUSY until it is killed."""
    own_server.command("CONFIG", "SET", "lua-time-limit", "50")  # the name that every release knows
    client = connect(own_server.url)
    client.lock("x").acquire().release()

    def run() -> None:
        try:
            own_server.command("EVAL", "while true do end", 0)
        except Exception:
            pass  # killed below

    def is_busy() -> bool:
        try:
            own_server.command("GET", "x")
        except redis.ResponseError as answer:
            return str(answer).startswith("BUSY") or "busy" in str(answer)
        return False

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(is_busy, 60, "a server that is busy")
    threading.Timer(0.3, lambda: own_server.command("SCRIPT", "KILL")).start()
    client.lock("x").acquire(timeout=60).release()
    thread.join(60)
