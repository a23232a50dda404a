"""Keys behind a fence: the check and the access are one script."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.backoff
import redis.retry

import lockline
from lockline import BackendUnavailable, ConfigError, StaleToken
from lockline.fence import Offer, RedisFence, RedisMarks
from lockline.fence.redis.fence import mark_key

from ..servers.redis import RedisCluster, RedisServer, started
from .test_rule import BAD_TOKENS

pytestmark = pytest.mark.server


@pytest.fixture(params=[(False, 2), (True, 2), (False, 3), (True, 3)], ids=["bytes-2", "text-2", "bytes-3", "text-3"])
def client(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Any]:
    decode, protocol = request.param
    with contextlib.closing(redis.Redis(port=redis_server.port, decode_responses=decode, protocol=protocol)) as client:
        client.flushall()
        yield client


@pytest.fixture
def plain(redis_server: RedisServer) -> Iterator[Any]:
    with contextlib.closing(redis.Redis(port=redis_server.port, decode_responses=True)) as client:
        client.flushall()
        yield client


def text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def test_every_access_goes_through_the_check(client: Any) -> None:
    fence = RedisFence(client)
    fence.enter("k", 5, lock="l")
    assert text(fence.set("k", 5, "value", lock="l")) == "OK"
    assert text(fence.get("k", 5, lock="l")) == "value"
    assert fence.delete("k", 5, lock="l") == 1
    assert fence.incr("k", 5, lock="l") == 1
    assert fence.incr("k", 5, 10, lock="l") == 11
    assert fence.delete("k", 5, lock="l") == 1
    assert fence.hset("k", 5, {"a": 1, "b": "two"}, lock="l") == 2
    before = client.hgetall("k")
    fence.check("k", 6, lock="l")
    acts: list[Callable[[], Any]] = [
        lambda: fence.enter("k", 5, lock="l"),
        lambda: fence.get("k", 5, lock="l"),
        lambda: fence.set("k", 5, "late", lock="l"),
        lambda: fence.set("k", 5, "late", ttl=5, lock="l"),
        lambda: fence.hset("k", 5, {"a": 9}, lock="l"),
        lambda: fence.delete("k", 5, lock="l"),
        lambda: fence.incr("k", 5, lock="l"),
        lambda: fence.eval("k", 5, "return redis.call('DEL', KEYS[1])", lock="l"),
    ]
    for act in acts:
        with pytest.raises(StaleToken) as refused:
            act()
        assert (refused.value.resource, refused.value.offered, refused.value.highest) == ("k", 5, 6)
    assert client.hgetall("k") == before
    assert fence.look("k", "l") == (6, "")


def test_a_lease_passes_and_its_number_alone_does_not(client: Any) -> None:
    fence = RedisFence(client)
    with lockline.connect("memory:") as locks, locks.lock("fenced") as lease:
        fence.set("k", lease, 1)
        fence.set("k", lease.sequencer(), 2)
        for other in (Offer("fenced", lease.token, ""), Offer("fenced", lease.token, "someone else")):
            with pytest.raises(StaleToken, match="same one"):
                fence.set("k", other, 3)
    assert text(client.get("k")) == "2"


def test_a_value_lives_as_long_as_it_was_told_and_the_mark_longer(plain: Any) -> None:
    fence = RedisFence(plain)
    fence.set("k", 5, "v", ttl=100)
    assert 50_000 < plain.pttl("k") <= 100_000
    assert plain.pttl(mark_key("lockline:fence:", "k")) == -1
    RedisFence(plain, keep=50).set("other", 5, "v")
    assert 1_000 < plain.pttl(mark_key("lockline:fence:", "other")) <= 50_000


def test_a_script_of_the_users_own_sees_its_keys_and_arguments(client: Any) -> None:
    fence = RedisFence(client)
    script = "redis.call('SET', KEYS[1], ARGV[1]) redis.call('SET', KEYS[2], ARGV[2]) return {#KEYS, #ARGV, KEYS[2]}"
    answer = fence.eval("k", 5, script, keys=["k2"], args=["a", "b"])
    assert [text(part) for part in answer] == [2, 2, "k2"]
    assert [text(client.get(key)) for key in ("k", "k2")] == ["a", "b"]
    assert fence.eval("k", 5, "if #ARGV == 0 then return 7 end -- a comment at the end") == 7
    with pytest.raises(redis.ResponseError, match="my own"):
        fence.eval("k", 5, "return redis.error_reply('ERR my own')")


def test_tokens_beyond_the_doubles_of_lua_are_told_apart(plain: Any) -> None:
    fence = RedisFence(plain)
    for low, high in ((2**53, 2**53 + 1), (2**63 - 2, 2**63 - 1), (9, 10), (999, 1000)):
        key = f"k{low}"
        fence.set(key, low, "low")
        fence.set(key, high, "high")
        with pytest.raises(StaleToken) as refused:
            fence.set(key, low, "late")
        assert (refused.value.offered, refused.value.highest) == (low, high)
        assert plain.get(key) == "high"


def test_the_exact_rule_at_a_key(plain: Any) -> None:
    fence = RedisFence(plain, exact=True)
    with pytest.raises(StaleToken, match="not entered"):
        fence.set("k", "job-9", 1)
    fence.enter("k", "job-9")
    fence.set("k", "job-9", 1)
    fence.enter("k", "job-1")
    with pytest.raises(StaleToken) as refused:
        fence.set("k", "job-9", 2)
    assert (refused.value.offered, refused.value.highest) == ("job-9", "job-1")
    fence.check("k", "job-1")
    assert plain.get("k") == "1"


@pytest.mark.parametrize("token", BAD_TOKENS, ids=repr)
def test_a_bad_token_writes_nothing(plain: Any, token: object) -> None:
    with pytest.raises(ConfigError):
        RedisFence(plain).set("k", token, "x")
    assert plain.keys() == []


def test_other_bad_input_writes_nothing(plain: Any) -> None:
    fence = RedisFence(plain)
    for act in (
        lambda: fence.set("", 5, "x"),
        lambda: fence.set(None, 5, "x"),  # type: ignore[arg-type]
        lambda: fence.hset("k", 5, {}),
        lambda: fence.incr("k", 5, True),
        lambda: fence.eval("k", 5, ""),
        lambda: fence.eval("k", 5, "#!lua flags=no-writes\nreturn 1"),
        lambda: fence.set("k", 5, "x", ttl=0),
        lambda: RedisFence(plain, prefix="a{b}"),
        lambda: RedisFence(plain, keep=-1),
        lambda: RedisFence(object()),
    ):
        with pytest.raises(ConfigError):
            act()
    assert plain.keys() == []


def test_marks_of_another_shape_are_refused_and_left_alone(plain: Any) -> None:
    fence = RedisFence(plain)
    marks = mark_key("lockline:fence:", "k")
    plain.set(marks, "not a hash")
    with pytest.raises(ConfigError, match="another shape"):
        fence.set("k", 5, "x")
    assert plain.get(marks) == "not a hash"
    plain.delete(marks)
    plain.hset(marks, "k", "garbage")
    with pytest.raises(ConfigError, match="another shape"):
        fence.set("k", 5, "x")
    assert plain.hgetall(marks) == {"k": "garbage"}
    assert plain.get("k") is None


def test_an_error_of_the_access_itself_comes_out_as_it_is(plain: Any) -> None:
    fence = RedisFence(plain)
    fence.set("k", 5, "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        fence.hset("k", 5, {"a": 1})
    fence.set("k", 5, "still there")


def test_a_server_that_forgot_its_scripts_is_told_them_again(plain: Any) -> None:
    fence = RedisFence(plain)
    for token in (5, 6):
        plain.script_flush()
        fence.set("k", token, token)
        plain.script_flush()
        with pytest.raises(StaleToken):
            fence.set("k", 4, "late")


def test_no_connection_stays_out_of_the_pool(plain: Any) -> None:
    make: Any = redis.BlockingConnectionPool
    pool = make(port=plain.connection_pool.connection_kwargs["port"], max_connections=1, timeout=60)
    with contextlib.closing(redis.Redis(connection_pool=pool)) as client:
        fence = RedisFence(client)
        fence.set("k", 5, "x")
        for _ in range(3):
            with pytest.raises(StaleToken):
                fence.set("k", 4, "x")
        fence.set("k", 5, "x")
        assert client.ping()


def test_the_same_awaited(plain: Any) -> None:
    async def story() -> None:
        async with redis.asyncio.Redis(
            port=plain.connection_pool.connection_kwargs["port"], decode_responses=True
        ) as client:
            fence = RedisFence(client)
            await fence.enter("k", 5)
            assert await fence.set("k", 5, "v") == "OK"
            assert await fence.get("k", 5) == "v"
            assert await fence.eval("k", 6, "return ARGV[1]", args=["x"]) == "x"
            for late in (
                fence.set("k", 5, "late"),
                fence.delete("k", 5),
                fence.hset("k", 5, {"a": 1}),
                fence.incr("k", 5),
            ):
                with pytest.raises(StaleToken):
                    await late
            assert await fence.look("k") == (6, "")
            with pytest.raises(ConfigError):
                fence.set("k", 0, "x")

    asyncio.run(story())


def test_a_cancelled_access_leaves_a_connection_that_works(plain: Any) -> None:
    async def story() -> None:
        port = plain.connection_pool.connection_kwargs["port"]
        pool = redis.asyncio.BlockingConnectionPool(port=port, max_connections=1, timeout=60, decode_responses=True)
        client = redis.asyncio.Redis(connection_pool=pool)
        fence = RedisFence(client)
        for number in range(1, 60):
            task = asyncio.create_task(fence.set("k", 5, number))
            for _ in range(number % 6):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
            assert await fence.get("k", 5) in (None, *map(str, range(1, number + 1)))
        await client.aclose()
        await pool.disconnect()

    asyncio.run(story())


ODD_KEYS = ["plain", "a{tag}b", "{tag}", "a}b", "}{", "{}x", "{a", "a{b", "a{}b{c}", "{{x}}", "ü}", "a b", "{k}", "k"]


def test_a_key_and_its_marks_are_in_one_slot_and_no_two_keys_share_marks() -> None:
    from redis.crc import key_slot

    marks = [mark_key("lockline:fence:", key) for key in ODD_KEYS]
    assert [key_slot(key.encode()) for key in ODD_KEYS] == [key_slot(mark.encode()) for mark in marks]
    assert len(set(marks)) == len(ODD_KEYS)


def test_a_cluster_takes_every_key() -> None:
    with started(lambda folder: RedisCluster(folder, replicas=0), "fence-cluster") as cluster:
        port = cluster.primaries()[0].port
        with contextlib.closing(redis.RedisCluster(host="127.0.0.1", port=port, decode_responses=True)) as client:
            fence = RedisFence(client)
            for key in ODD_KEYS:
                fence.enter(key, 5)
                fence.set(key, 5, "x")
                with pytest.raises(StaleToken):
                    fence.set(key, 4, "late")
                assert fence.get(key, 6) == "x"
                assert fence.look(key) == (6, "")

        async def story() -> None:
            client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port, decode_responses=True)
            fence = RedisFence(client)
            for key in ODD_KEYS:
                await fence.set(key, 7, "y")
                with pytest.raises(StaleToken):
                    await fence.set(key, 6, "late")
            await client.aclose()

        asyncio.run(story())


def test_marks_at_a_door(plain: Any) -> None:
    marks = RedisMarks(plain)
    marks.admit("r", Offer("l", 5, "g"), writes=True, patience=1)()
    with pytest.raises(StaleToken):
        marks.admit("r", Offer("l", 4, "g"), writes=True, patience=1)
    assert marks.look("r", "l") == (5, "g")
    never = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    with contextlib.closing(redis.Redis(port=1, retry=never)) as nowhere, pytest.raises(BackendUnavailable):
        RedisMarks(nowhere).admit("r", Offer("l", 6, "g"), writes=True, patience=1)
