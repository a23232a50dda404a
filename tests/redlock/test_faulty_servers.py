"""Servers that are dead, frozen or black-holed; late answers; what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

import lockline
from lockline import AcquireTimeout, ConfigError, LeaseLost, QuorumNotReached
from lockline.backends.redlock.channel_blocking import BUNDLES, KEPT, MOST_SPARES
from lockline.backends.redlock.scripts import COUNTERS, REMEMBERED
from lockline.runtime import clock
from tests.redis.renewed import TTL, renewal_of, run_out, wait_for_renewal
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

from .proxy import Proxy, proxies
from .servers import Servers, servers, tells_of_silence

pytestmark = pytest.mark.server

LONG = 300.0
"""Longer than anybody here waits."""
LONGEST_TIMEOUT = 10
"""The longest that a server may be given."""
NAMES = sample(100, 1000)
"""Names that each of four threads uses once."""


@pytest.fixture(scope="module")
def five() -> Iterator[Servers]:
    with servers(5, longest=LONG) as started:
        yield started


@pytest.fixture
def proxied(five: Servers) -> Iterator[list[Proxy]]:
    with proxies([node.port for node in five.nodes]) as made:
        yield made


def url(made: list[Proxy]) -> str:
    return "redlock://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in made)


class Loop:
    """An asyncio client that the tests call like a blocking one, for the few calls they make."""

    def __init__(self, target: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.client = lockline.aio.connect(target)

    def run(self, make: Callable[[], Any]) -> Any:
        async def go() -> Any:
            return await make()

        return asyncio.run_coroutine_threadsafe(go(), self._loop).result(120)

    def close(self) -> None:
        self.run(self.client.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@pytest.mark.parametrize(
    ("fault", "flavour"),
    sample(
        [("dead", "sync"), ("frozen", "asyncio"), ("black-holed", "sync")],
        [(fault, flavour) for fault in ("dead", "frozen", "black-holed") for flavour in ("sync", "asyncio")],
    ),
)
def test_two_of_five_servers_may_fail_and_no_lock_waits_for_them(
    five: Servers, proxied: list[Proxy], fault: str, flavour: str
) -> None:
    # Forty locks that each waited for a silent server would take longer than a test may.
    target = f"{url(proxied)}?timeout={LONGEST_TIMEOUT}"
    loop = Loop(target) if flavour == "asyncio" else None
    client: Any = loop.client if loop is not None else lockline.connect(target)

    def do(call: Callable[[], Any]) -> Any:
        return loop.run(call) if loop is not None else call()

    try:
        do(held_by_all(five, client, "x", do).release)
        with failing(five, proxied, fault):
            for _ in range(40):
                do(do(lambda: client.lock("x").acquire(timeout=60)).release)
    finally:
        loop.close() if loop is not None else client.close()


def held_by_all(
    five: Servers, client: Any, name: str, do: Callable[[Callable[[], Any]], Any] = lambda call: call(), **terms: Any
) -> Any:
    """A lease that every server has: an acquire is over at a majority, and one of them may still be being connected to."""
    key = f"lockline:redlock:lease:{name}"
    for _ in range(50):
        lease = do(lambda: client.lock(name, **terms).acquire(timeout=60))
        for _ in range(10):
            if all(node.command("EXISTS", key) for node in five.nodes):
                return lease
            time.sleep(0.02)
        do(lease.release)
    raise AssertionError("no lease at all servers")


@contextlib.contextmanager
def failing(five: Servers, proxied: list[Proxy], fault: str) -> Iterator[None]:
    """Two of the five are not themselves for a while."""
    for number in (0, 3):
        if fault == "dead":
            proxied[number].refuse()
        elif fault == "frozen":
            five[number].freeze()
        else:
            proxied[number].black_hole()
    try:
        yield
    finally:
        for number in (0, 3):
            if fault == "frozen":
                five[number].thaw()
            else:
                proxied[number].heal()


def test_a_first_acquire_does_not_wait_for_servers_that_do_not_answer(five: Servers, proxied: list[Proxy]) -> None:
    with failing(five, proxied, "black-holed"):
        clients = [lockline.connect(f"{url(proxied)}?timeout={LONGEST_TIMEOUT}") for _ in range(32)]
        # So many of them that each waited for a silent server would take longer than a test may.
        for client in clients:
            client.lock("x").acquire().release()
    # Each end takes a second where a connection is still being made.
    with ThreadPoolExecutor(32) as together:
        list(together.map(lockline.Client.close, clients))


def test_a_third_failing_server_is_one_too_many_and_the_error_says_why(five: Servers, proxied: list[Proxy]) -> None:
    # So that a busy machine makes no healthy server silent.
    with lockline.connect(f"{url(proxied)}?timeout=5") as client:
        # Each of the five is connected to: what is silent is then a request, and not yet a connection that is still to be made.
        held_by_all(five, client, "x").release()
        with failing(five, proxied, "dead"):
            proxied[1].black_hole()
            with pytest.raises(QuorumNotReached) as caught:
                client.lock("x").try_acquire()
            said = list(caught.value.nodes.values())
            assert sum("free" in what for what in said) == 2
            assert any(tells_of_silence(what) for what in said), said
            assert any("unreachable" in what or "broke" in what or "closed" in what for what in said)
            proxied[1].heal()
    wait_for(lambda: not any(five.left_over("lockline:redlock:lease:*")), 60, "no lease")


def test_the_holder_is_named_when_a_majority_is_not_there(five: Servers, proxied: list[Proxy]) -> None:
    with lockline.connect(five.url, owner="web-3") as holder, lockline.connect(f"{url(proxied)}?timeout=5") as client:
        held_by_all(five, client, "y").release()
        lease = held_by_all(five, holder, "x", ttl=60)
        with failing(five, proxied, "dead"):
            proxied[1].refuse()
            with pytest.raises(QuorumNotReached) as caught:
                client.lock("x").try_acquire()
            assert sum("held by web-3" in what for what in caught.value.nodes.values()) == 2
            proxied[1].heal()
        lease.release()


def test_a_renewal_that_no_majority_confirms_ends_the_lease_in_time(five: Servers, proxied: list[Proxy]) -> None:
    with lockline.connect(url(proxied)) as client, lockline.connect(five.url) as other:
        lease = client.lock("x", ttl=2.0).acquire(timeout=60)
        for proxy in proxied[:3]:
            proxy.black_hole()
        taken = other.lock("x", ttl=60).acquire(timeout=60)
        # Nobody else could have it before, and its holder knows without asking.
        assert lease._live.deadline < clock.now()
        assert not lease.valid
        assert lease.lost.wait(60)
        assert taken.token > lease.token
        taken.release()
        with pytest.raises(LeaseLost):
            lease.release()
        for proxy in proxied:
            proxy.heal()


def test_a_minority_that_goes_away_while_held_does_no_harm(five: Servers, proxied: list[Proxy]) -> None:
    with lockline.connect(url(proxied)) as client:
        lease = client.lock("x", ttl=TTL).acquire()
        with failing(five, proxied, "black-holed"):
            wait_for_renewal(lease)
            lease.release()


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_a_failed_acquire_leaves_no_key_on_any_node(five: Servers, flavour: str) -> None:
    old = {key for keys in five.left_over() for key in keys}

    def new() -> set[str]:
        return {key for keys in five.left_over() for key in keys} - old

    # So that a busy machine makes no server silent, which would be another answer than "taken".
    patient = f"{five.url}?timeout=5"
    with lockline.connect(patient) as holder:
        held = held_by_all(five, holder, "x", ttl=60)
        mine = {"lockline:redlock:lease:x"}
        if flavour == "sync":
            with lockline.connect(patient) as client:
                for _ in range(20):
                    assert client.lock("x").try_acquire() is None
                with pytest.raises(AcquireTimeout):
                    client.lock("x").acquire(timeout=0.5)
                wait_for(lambda: new() == mine, 60, "nothing but the holder's own")
        else:
            loop = Loop(patient)
            for _ in range(20):
                assert loop.run(lambda: loop.client.lock("x").try_acquire()) is None
            with pytest.raises(AcquireTimeout):
                loop.run(lambda: loop.client.lock("x").acquire(timeout=0.5))
            wait_for(lambda: new() == mine, 60, "nothing but the holder's own")
            loop.close()
        held.release()
        wait_for(lambda: not new(), 60, "nothing at all")


def test_thousands_of_names_used_once_leave_the_servers_as_they_were(five: Servers) -> None:
    # With a server that is late an acquire leaves its mark for one ttl.
    with lockline.connect(f"{five.url}?timeout=5") as client:
        # As many counters as a server keeps, as if so many names had been used.
        for node in five.nodes:
            with node.client() as server:
                floor = server.zscore(COUNTERS, "")
                server.zadd(COUNTERS, {f"before-{number}": floor + number for number in range(1, REMEMBERED + 100)})
        for number in range(50):
            client.lock(f"before-{number}").acquire().release()
        wait_for(lambda: not any(five.left_over("lockline:redlock:lease:*")), 60, "no lease")
        before = [_keys_and_bytes(node) for node in five.nodes]
        threads = [threading.Thread(target=_use_once, args=(client, part)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(lambda: not any(five.left_over("lockline:redlock:lease:*")), 60, "no lease")
        after = [_keys_and_bytes(node) for node in five.nodes]
    for (size, memory), (size_after, memory_after) in zip(before, after, strict=True):
        assert size_after <= size
        assert memory_after < memory * 1.2


def _keys_and_bytes(node: RedisServer) -> tuple[int, int]:
    # All entries are counted: a sample of five differs by a fifth from one time to the next.
    return node.command("DBSIZE"), node.command("MEMORY USAGE", COUNTERS, "SAMPLES", 0)


def _use_once(client: Any, part: int) -> None:
    for number in range(NAMES):
        client.lock(f"once-{part}-{number}").acquire().release()


def test_a_lost_reply_leaves_nothing_behind(five: Servers, proxied: list[Proxy]) -> None:
    """Requests arrive, answers do not: the acquire fails, and what it did is undone once the line is whole again."""
    with lockline.connect(url(proxied)) as client:
        client.lock("y").acquire().release()
        for proxy in proxied[:3]:
            proxy.lose_answers()
        with pytest.raises(QuorumNotReached):
            client.lock("x", ttl=LONG).acquire(timeout=1)
        for proxy in proxied:
            proxy.heal()
        wait_for(
            lambda: not any(five.left_over("lockline:redlock:lease:*")), 60, "the leases' end, long before their ttl"
        )


def test_the_scripts_may_be_flushed_at_any_time(five: Servers) -> None:
    def flush() -> None:
        for node in five.nodes:
            node.command("SCRIPT", "FLUSH")

    with lockline.connect(five.url) as client:
        for _ in range(5):
            flush()
            lease = client.lock("x").acquire(timeout=60)
            flush()
            lease.extend(60)
            flush()
            lease.release()
        # A release is over at a majority.
        wait_for(lambda: five.left_over("lockline:redlock:lease:*") == [[]] * 5, 60, "no lease")


@pytest.mark.parametrize(
    ("protocol", "decode"), sample([(2, True), (3, False)], [(2, True), (2, False), (3, True), (3, False)])
)
def test_the_users_own_clients_are_accepted(five: Servers, decode: bool, protocol: int) -> None:
    own = [redis.Redis(port=node.port, decode_responses=decode, protocol=protocol) for node in five.nodes]
    with lockline.connect(own) as client, client.lock("x") as lease:
        assert lease.token > 0
        assert client.list() == ["x"]
    for one in own:
        assert one.ping()
        one.close()


def test_the_users_own_asyncio_clients_are_accepted(five: Servers) -> None:
    async def story() -> None:
        own = [redis.asyncio.Redis(port=node.port, decode_responses=True) for node in five.nodes]
        async with lockline.aio.connect(own) as client, client.lock("x") as lease:
            assert lease.token > 0
        for one in own:
            await one.aclose()

    asyncio.run(story())


def test_what_cannot_be_given_is_refused_before_any_io() -> None:
    with lockline.connect("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3") as client:
        read_write = client.rwlock("x")
        for lock, called in (
            (client.semaphore("x", 3), "semaphores"),
            (read_write.read(), "read-write locks"),
            (read_write.write(), "read-write locks"),
        ):
            with pytest.raises(ConfigError, match=f"redlock.*not {called}"):
                lock.acquire()


@pytest.mark.parametrize(
    "target",
    [
        "redlock://a,b",
        "redlock://a,b,a",
        "redlock://a,b,c?node_timeout=0",
        "redlock://a,b,c?node_timeout=x",
        "redlock://a,b,c?drift=0.9",
        "redlock://a,b,c?drift=0",
        "redlock://a,b,c?unknown=1",
        "redlock://a,b,c/path",
        "redlock://a,,c",
        "redlock://a:x,b,c",
    ],
)
def test_wrong_addresses_and_settings_are_found_at_construction(target: str) -> None:
    with pytest.raises(ConfigError):
        lockline.connect(target)


def test_secrets_are_not_shown() -> None:
    client = lockline.connect("redlock://u:secret@a,:hidden@b,c")
    assert "secret" not in client.url
    assert "hidden" not in client.url
    client.close()


def test_each_server_has_its_own_password() -> None:
    with servers(3) as three:
        for number, node in enumerate(three.nodes):
            node.command("CONFIG", "SET", "requirepass", f"pass{number}")
        target = "redlock://" + ",".join(f":pass{n}@127.0.0.1:{node.port}" for n, node in enumerate(three.nodes))
        with lockline.connect(target) as client:
            client.lock("x").acquire().release()
        with lockline.connect(three.url) as client, pytest.raises(QuorumNotReached) as caught:
            client.lock("x").try_acquire()
        assert any("uthent" in what for what in caught.value.nodes.values())
        for number, node in enumerate(three.nodes):
            with contextlib.closing(redis.Redis(port=node.port, password=f"pass{number}")) as own:
                own.config_set("requirepass", "")


def test_one_client_serves_many_waiters_with_few_connections(five: Servers) -> None:
    with lockline.connect(five.url) as client, lockline.connect(five.url) as other:
        held = [other.lock(f"n{n}").acquire() for n in range(40)]
        before = [int(node.command("INFO", "clients")["connected_clients"]) for node in five.nodes]
        tokens: list[int] = []

        def wait(number: int) -> None:
            lease = client.lock(f"n{number}").acquire(timeout=60)
            tokens.append(lease.token)
            lease.release()

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(40)]
        for thread in threads:
            thread.start()
        queues = client._engine.backend.lines._lines  # type: ignore[attr-defined]
        wait_for(lambda: len(queues) == 40, 60, "forty waits")
        after = [int(node.command("INFO", "clients")["connected_clients"]) for node in five.nodes]
        # A busy machine makes use of all that there may be: those in use, those for renewals, spare ones, and what listens; of either client.
        most = 2 * (BUNDLES + KEPT + MOST_SPARES + 1)
        assert most < 40
        assert max(now - then for then, now in zip(before, after, strict=True)) <= most
        for lease in held:
            lease.release()
        for thread in threads:
            thread.join(60)
        assert len(tokens) == 40


def test_waiting_claims_do_not_hammer_the_servers(five: Servers) -> None:
    with lockline.connect(five.url) as holder, lockline.connect(five.url) as client:
        held = holder.lock("x", ttl=60).acquire()
        threads = [threading.Thread(target=lambda: _wait(client)) for _ in range(10)]
        for thread in threads:
            thread.start()
        queues = client._engine.backend.lines._lines  # type: ignore[attr-defined]
        wait_for(lambda: len(queues.get("x", ())) == 10, 60, "ten waits")
        time.sleep(0.2)
        before, began = int(five[0].command("INFO", "stats")["total_commands_processed"]), time.monotonic()
        time.sleep(1.5)
        # Scripts count as the commands in them: one look of the first waiter, a showing of all.
        asked = int(five[0].command("INFO", "stats")["total_commands_processed"]) - before
        assert asked < 200 * (time.monotonic() - began)
        held.release()
        for thread in threads:
            thread.join(60)


def _wait(client: Any) -> None:
    client.lock("x", ttl=60).acquire(timeout=60).release()


def test_after_a_fork_the_child_has_its_own_connections(five: Servers) -> None:
    with lockline.connect(five.url) as client:
        lease = client.lock("x", ttl=60).acquire()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                client.lock("y").acquire(timeout=60).release()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        lease.extend(60)
        lease.release()


def test_doctor_finds_what_is_dangerous(five: Servers) -> None:
    with lockline.connect(five.url, node_timeout=2.0) as client:
        said = [finding.text for finding in client.examine()]
        assert sum("keeps nothing over a restart" in text for text in said) == 5
        assert any("clocks differ" in text for text in said)
        five[0].command("CONFIG", "SET", "maxmemory", "100mb")
        five[0].command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        try:
            assert any("can evict" in finding.text and finding.level == "error" for finding in client.examine())
        finally:
            five[0].command("CONFIG", "SET", "maxmemory-policy", "noeviction")
            five[0].command("CONFIG", "SET", "maxmemory", "0")


def test_validate_proves_that_no_higher_token_was_granted(five: Servers) -> None:
    with lockline.connect(five.url) as client, lockline.connect(five.url) as operator:
        lease = client.lock("x", ttl=60).acquire()
        lease.validate()
        assert operator.evict("x") == 1
        other = operator.lock("x").acquire(timeout=60)
        assert other.token > lease.token
        with pytest.raises(LeaseLost):
            lease.validate()
        other.release()


def test_one_lease_without_a_majority_does_not_harm_the_others(five: Servers, proxied: list[Proxy]) -> None:
    """Both are renewed in one batch; one was won while two servers were away, and then loses another."""
    with lockline.connect(url(proxied)) as client:
        with failing(five, proxied, "dead"):
            client.lock("warm").acquire().release()
            lame = client.lock("lame", ttl=TTL).acquire(timeout=60)

        def all_up() -> bool:
            client.lock("warm").acquire().release()
            return bool(_all_up(client))

        wait_for(all_up, 60, "all five again")
        sound = client.lock("sound", ttl=TTL).acquire(timeout=60)
        five[1].command("DEL", "lockline:redlock:lease:lame")
        five[2].freeze()
        try:
            confirmed, renewed = renewal_of(lame), renewal_of(sound)
            wait_for(lambda: renewed() or not sound.valid, 120, "a renewal of the other")
            assert sound.valid
            assert not confirmed()
            # If nobody has said that it is gone, its time is over now.
            run_out(lame)
            assert lame.lost.wait(60)
        finally:
            five[2].thaw()
        sound.release()
        with pytest.raises(LeaseLost):
            lame.release()


def _all_up(client: Any) -> bool:
    channel = client._engine.backend.channel
    return all(one.sock is not None for bundle in channel._bundles.free for one in bundle.connections)
