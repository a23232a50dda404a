"""What people type without thinking, from other locks and other libraries, gets an answer that helps."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest
import redis.asyncio

import lockline
from lockline import AcquireTimeout, ConfigError, LeaseLost, WouldDeadlock, aio, drop_in


@pytest.mark.parametrize("connect", [lockline.connect, aio.connect], ids=["sync", "asyncio"])
class TestTargets:
    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ("localhost:6379", "redis://localhost:6379"),
            ("10.0.0.7:2379", "etcd://10.0.0.7:2379"),
            ("zoo.example:2181", "zk://zoo.example:2181"),
            ("h1:26379,h2:26379/mymaster", "redis+sentinel://h1:26379,h2:26379/mymaster"),
        ],
    )
    def test_a_host_and_a_port_alone_get_the_url_that_was_meant(self, connect: Any, written: str, meant: str) -> None:
        with pytest.raises(ConfigError) as caught:
            connect(written)
        assert meant in str(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            "reddis://:s3cret@h",
            "reddis://user:s3cret@h:6379/0",
            "unix://u:s3cret@",
            "reddis:u:s3cret@h",
            "postgres://u:s3/cret@h/db",
            "nothing://h?password=s3cret",
            "redis://u:s3cret@h:port",
            "redis://u:s3cret#x@h",
            "redis+sentinel://u:s3cret/x@h/service",
            "redis+sentinel://u:s3cret@h",
            "redis+cluster://u:s3cret@h/7",
            "redlock://u:s3cret@h",
            "redlock://u:s3cret/x@h1,h2,h3",
            "etcd://u:s3cret/x@h",
            "etcd://:s3cret@h",
            "zk://u:s3cret/x@h",
            "zk://u:s3cret@h:port",
            "zk://h?tls=yes&key_password=s3cret&typo=1",
            "zk://h:99999999?tls=yes&key_password=%733cret",
            "s3cret@h:6379",
            "redis://u:s3cret@h?nonsense=1",
            "redis://u:s3cret@[::1",
        ],
    )
    def test_no_message_shows_a_secret(self, connect: Any, url: str) -> None:
        told = ""
        try:
            client = connect(url)
            told = client.url + repr(client)
        except ConfigError as problem:
            told = str(problem)
        assert told
        assert "s3" not in told
        assert "cret" not in told

    @pytest.mark.parametrize(
        "scheme", ["redis", "rediss", "redis+sentinel", "redis+cluster", "redlock", "zk", "etcd", "consul"]
    )
    def test_a_slash_in_a_password_is_told_with_its_cure(self, connect: Any, scheme: str) -> None:
        with pytest.raises(ConfigError, match="%2F"):
            connect(f"{scheme}://u:s3/cret@h1,h2,h3/0")

    def test_a_store_without_options_says_that_it_has_none(self, connect: Any) -> None:
        with pytest.raises(ConfigError, match="local: unknown ttl; it has no options"):
            connect("local:?ttl=4")

    def test_an_unknown_option_is_named_and_nothing_else(self, connect: Any) -> None:
        for options in ({"colour": 1}, {}):
            with pytest.raises(ConfigError) as caught:
                connect("redis://localhost" + ("" if options else "?colour=1"), **options)
            assert "colour" in str(caught.value)
            assert "__init__" not in str(caught.value)

    def test_a_stranger_of_an_object_is_named_in_a_line(self, connect: Any) -> None:
        with pytest.raises(ConfigError) as caught:
            connect(["x" * 10000])
        assert len(str(caught.value)) < 300


def test_a_process_that_gevent_has_patched_is_refused_loudly() -> None:
    program = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import lockline\n"
        "try: lockline.connect('memory:')\n"
        "except lockline.ConfigError as told: print(told)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "gevent has patched this process" in told.stdout, told
    program = "import gevent.monkey, lockline; lockline.connect('memory:'); print('fine')"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "fine" in told.stdout, told


@pytest.mark.parametrize("make", ["lock", "rlock", "rwlock"])
@pytest.mark.parametrize("connect", [lockline.connect, aio.connect], ids=["sync", "asyncio"])
def test_milliseconds_for_a_ttl_are_warned_of(connect: Any, make: str) -> None:
    client = connect("memory:milliseconds")
    with pytest.warns(RuntimeWarning, match="in seconds") as caught:
        getattr(client, make)("x", ttl=30000)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(client, make)("x", ttl=30000, max_hold=30000)
        getattr(client, make)("x", ttl=timedelta(days=30))
        getattr(client, make)("x", ttl=3600)


class TestDecorated:
    """A body that runs after its call has returned runs without the lock."""

    @pytest.mark.parametrize("connect", [lockline.connect, aio.connect], ids=["sync", "asyncio"])
    def test_generators_are_refused_when_they_are_decorated(self, connect: Any) -> None:
        def generator() -> Iterator[int]:
            yield 1

        async def async_generator() -> AsyncIterator[int]:
            yield 1

        class Called:
            def __call__(self) -> Iterator[int]:
                yield 1

        client = connect("memory:generators")
        functions: list[Callable[..., Any]] = [generator, async_generator, Called()]
        for function in functions:
            with pytest.raises(ConfigError, match="generator"):
                client.locked("x")(function)

    @pytest.mark.parametrize("connect", [lockline.connect, aio.connect], ids=["sync", "asyncio"])
    def test_a_decorator_without_a_name_is_told_when_it_is_called(self, connect: Any) -> None:
        def body(order: int) -> None:
            pytest.fail("nobody has named the lock")

        pay = connect("memory:bare").locked(body)  # as `@client.locked` does
        with pytest.raises(ConfigError, match=r'@client\.locked\("name"\)'):
            pay(42)  # gave a function back, and paid nothing

    def test_a_coroutine_is_refused_by_a_client_that_blocks(self) -> None:
        async def coroutine() -> None: ...

        class Called:
            async def __call__(self) -> None: ...

        client = lockline.connect("memory:generators")
        for function in (coroutine, Called()):
            with pytest.raises(ConfigError, match="aio"):
                client.locked("x")(function)

    @pytest.mark.parametrize("way", ["locked", "once_per", "lead"])
    @pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator", "context manager"])
    def test_what_another_decorator_hides_is_refused_when_it_is_called(self, way: str, kind: str) -> None:
        ran: list[str] = []

        async def coroutine(*_: object) -> None:
            ran.append(kind)

        def generator(*_: object) -> Iterator[int]:
            ran.append(kind)
            yield 1

        async def async_generator(*_: object) -> AsyncIterator[int]:
            ran.append(kind)
            yield 1

        bodies: dict[str, Callable[..., Any]] = {
            "coroutine": coroutine,
            "generator": generator,
            "async generator": async_generator,
            "context manager": contextlib.contextmanager(generator),
        }

        def wrapped(*args: object) -> Any:
            return bodies[kind](*args)

        client = lockline.connect(f"memory:hidden-{way}-{kind.replace(' ', '-')}")
        call: Callable[[], Any] = {
            "locked": lambda: client.locked("x")(wrapped)(),
            "once_per": lambda: client.once_per("1h", name="x")(wrapped)(),
            "lead": lambda: client.lead("x", wrapped),
        }[way]
        with pytest.raises(ConfigError, match="before the body runs"):
            call()
        assert not ran
        assert client.list() == []
        bodies[kind] = lambda *_: (number for number in [1, 2])
        assert call() is not None, "an expression over what was made under the lock is a value"

    def test_the_same_of_what_a_coroutine_gives(self) -> None:
        async def rows() -> AsyncIterator[int]:
            yield 1

        async def wrapped() -> Any:
            return rows()

        async def story() -> None:
            client = aio.connect("memory:hidden")
            with pytest.raises(ConfigError, match="before the body runs"):
                await client.locked("x")(wrapped)()
            with pytest.raises(ConfigError, match="before the body runs"):
                await client.once_per("1h", name="y")(wrapped)()
            assert await client.list() == []
            await client.close()

        asyncio.run(story())


class TestAwaited:
    """`acquire` in asyncio may be awaited, entered, or made a task."""

    def test_async_with_needs_no_await_in_between(self) -> None:
        async def story() -> None:
            client, other = aio.connect("memory:awaited"), aio.connect("memory:awaited")
            async with client.lock("x").acquire(timeout=5) as lease:
                assert lease.valid
                with pytest.raises(AcquireTimeout):
                    await self.taken(other)
            assert not (await client.inspect("x")).claims
            async with await client.lock("x").acquire(timeout=5) as lease:
                assert lease.valid
            await client.close()

        asyncio.run(story())

    @staticmethod
    async def taken(client: aio.Client) -> None:
        async with client.lock("x").acquire(timeout=0.05):
            raise AssertionError("the body ran without the lock")

    def test_the_body_is_cancelled_on_loss_as_ever(self) -> None:
        async def body(client: aio.Client) -> None:
            async with client.lock("x").acquire(timeout=5) as lease:
                lease._live.lose("evicted")
                await asyncio.sleep(30)

        async def story() -> None:
            client = aio.connect("memory:awaited")
            with pytest.raises(LeaseLost):
                await body(client)
            await client.close()

        asyncio.run(story())

    def test_tasks_and_gather_take_it(self) -> None:
        async def story() -> None:
            client = aio.connect("memory:awaited")
            one = await asyncio.create_task(client.lock("a").acquire())
            (two,) = await asyncio.gather(client.lock("b").acquire(timeout=1))
            three = await asyncio.wait_for(client.lock("c").acquire(), 60)
            async with asyncio.TaskGroup() as group:
                four = group.create_task(client.lock("d").acquire())
            for lease in (one, two, three, await four):
                assert lease.valid
                await lease.release()
            await client.close()

        asyncio.run(story())

    def test_wrong_arguments_are_told_before_anything_is_awaited(self) -> None:
        with pytest.raises(ConfigError):
            aio.connect("memory:awaited").lock("x").acquire(timeout=-1)

    @pytest.mark.parametrize("ask", ["acquire", "try_acquire", "locked"])
    def test_an_acquire_that_nobody_awaits_says_so(self, ask: str) -> None:
        with pytest.warns(RuntimeWarning, match="never awaited"):
            getattr(aio.connect("memory:awaited").lock("x"), ask)()

    @pytest.mark.parametrize("ask", ["acquire", "try_acquire", "locked"])
    def test_an_if_without_its_await_runs_no_body(self, ask: str) -> None:
        lock = aio.connect("memory:awaited").lock("x")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the error says it all
            with pytest.raises(ConfigError, match=f"`await lock.{ask}"):
                print("the body ran without the lock" if getattr(lock, ask)() else "")

    def test_so_does_one_that_asks_for_a_loss(self) -> None:
        async def story() -> None:
            async with aio.connect("memory:awaited") as client, client.lock("x") as lease:
                with pytest.raises(ConfigError, match=r"`await lost\.wait"):
                    print("the body ran although nothing was lost" if lease.lost.wait(0) else "")
                assert await lease.lost.wait(0) is False

        asyncio.run(story())

    @pytest.mark.parametrize("ask", ["acquire", "locked", "owned"])
    def test_so_does_one_of_a_lock_as_redis_py_makes_it(self, ask: str) -> None:
        lock = drop_in.AsyncLock(redis.asyncio.Redis(), "x")
        with pytest.raises(ConfigError, match=f"`await lock.{ask}"):
            print("the body ran without the lock" if getattr(lock, ask)() else "")

    @pytest.mark.filterwarnings("ignore::lockline.errors.LeaseDropped")
    @pytest.mark.parametrize("how", ["gather", "task"])
    def test_a_lease_that_is_the_result_of_a_task_and_dropped_with_it_is_not_renewed(self, how: str) -> None:
        async def fail() -> None:
            raise ValueError("this one fails")

        async def story() -> None:
            client = aio.connect("memory:dropped")
            if how == "gather":
                with pytest.raises(ValueError, match="this one"):
                    await asyncio.gather(client.lock("x", ttl=1).acquire(), fail())
            else:
                task = asyncio.create_task(client.lock("x", ttl=1).acquire())
                await asyncio.wait([task])
                del task
            await (await client.lock("x").acquire(timeout=60)).release()
            await client.close()

        asyncio.run(story())

    def test_tasks_and_gather_take_a_try_as_well(self) -> None:
        async def story() -> None:
            client = aio.connect("memory:awaited")
            one = await asyncio.create_task(client.lock("a").try_acquire())
            two, taken = await asyncio.gather(client.lock("b").try_acquire(), client.lock("a").locked())
            assert one is not None
            assert two is not None
            assert taken is True
            assert await asyncio.create_task(aio.connect("memory:awaited").lock("b").try_acquire()) is None
            await one.release()
            await two.release()
            await client.close()

        asyncio.run(story())


class TestAnotherLoop:
    """A client belongs to the loop that it was first used on: what that opened cannot be awaited on another, and never ends there."""

    CALLS: ClassVar[dict[str, Callable[[Any, Any], Any]]] = {
        "acquire": lambda client, lease: client.lock("y").acquire(timeout=1),
        "try_acquire": lambda client, lease: client.lock("y").try_acquire(),
        "locked": lambda client, lease: client.lock("y").locked(),
        "inspect": lambda client, lease: client.inspect("y"),
        "list": lambda client, lease: client.list(),
        "evict": lambda client, lease: client.evict("y"),
        "examine": lambda client, lease: client.examine(),
        "once": lambda client, lease: client.once("value", lambda: 1, fresh=5),
        "once_per": lambda client, lease: client.once_per("1h", name="job")(_job)(),
        "lead": lambda client, lease: client.lead("leader", _main),
        "leader": lambda client, lease: client.leader("leader"),
        "watch": lambda client, lease: anext(aiter(client.watch("leader"))),
        "extend": lambda client, lease: lease.extend(20),
        "validate": lambda client, lease: lease.validate(),
        "release": lambda client, lease: lease.release(),
        "close": lambda client, lease: client.close(),
    }

    @pytest.mark.parametrize("call", CALLS)
    def test_every_call_there_says_so(self, call: str) -> None:
        client = aio.connect("memory:loops")

        async def first() -> aio.Lease:
            return await client.lock("x", ttl=60).acquire()

        async def second() -> None:
            await asyncio.wait_for(self.CALLS[call](client, lease), 60)

        with contextlib.closing(asyncio.new_event_loop()) as home:
            lease = home.run_until_complete(first())
            with pytest.raises(ConfigError, match="another event loop"):
                asyncio.run(second())
            home.run_until_complete(lease.release())
            home.run_until_complete(client.close())

    def test_to_close_there_what_is_closed_is_harmless(self) -> None:
        client = aio.connect("memory:loops")

        async def first() -> None:
            async with client, client.lock("x").acquire():
                pass

        asyncio.run(first())
        asyncio.run(client.close())


async def _job() -> None: ...


async def _main(term: aio.Lease) -> None: ...


class TestWaitingForOneself:
    """What runs as a task of its own asks as somebody else: it would wait for the one that waits for it."""

    async def ask_again(self, how: str, kind: str) -> None:
        client = aio.connect("memory:oneself")
        lock = getattr(client, kind)("x")
        async with lock:
            if how == "wait_for":
                await asyncio.wait_for(lock.acquire(), 60)
            elif how == "gather":
                await asyncio.gather(asyncio.sleep(0.01), lock.acquire())
            elif how == "task":
                await asyncio.create_task(lock.acquire())
            elif how == "task of a task":
                await asyncio.create_task(self.wait_for_a_task(lock))
            else:
                async with asyncio.TaskGroup() as group:
                    group.create_task(lock.acquire())

    @staticmethod
    async def wait_for_a_task(lock: aio.Lock) -> None:
        await asyncio.create_task(lock.acquire())

    @pytest.mark.parametrize("kind", ["lock", "rlock"])
    @pytest.mark.parametrize("how", ["wait_for", "gather", "task", "task of a task", "group"])
    def test_it_is_told(self, how: str, kind: str) -> None:
        if how == "wait_for" and sys.version_info >= (3, 12) and kind == "rlock":
            pytest.skip("asyncio.wait_for runs it in the same task here: it simply enters again")
        with pytest.raises((WouldDeadlock, ExceptionGroup)) as caught:
            asyncio.run(self.ask_again(how, kind))
        told = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
        assert isinstance(told, WouldDeadlock)
        if how != "wait_for":
            assert "another task" in str(told)

    def test_a_task_that_the_holder_does_not_wait_for_waits_its_turn(self) -> None:
        async def story() -> None:
            client = aio.connect("memory:oneself")
            async with client.rlock("x"):
                waits = asyncio.create_task(client.rlock("x").acquire())
                await asyncio.sleep(0.05)
                assert not waits.done()
            await (await asyncio.wait_for(waits, 60)).release()
            await client.close()

        asyncio.run(story())

    def test_nothing_is_left_of_it_in_the_line(self) -> None:
        async def story() -> None:
            client = aio.connect("memory:oneself")
            async with client.rlock("x") as lease:
                with pytest.raises(WouldDeadlock):
                    await asyncio.gather(client.rlock("x").acquire())
                assert [claim.id for claim in (await client.inspect("x")).claims] == [lease.id]
            await client.close()

        asyncio.run(story())


def test_another_clients_owner_cannot_steer_a_terminal() -> None:
    one = lockline.connect("memory:owners", owner="evil\x1b[2J\nroot@db since 00:00, token 1")
    two = lockline.connect("memory:owners")
    held = one.lock("x").acquire()
    with pytest.raises(AcquireTimeout) as caught:
        two.lock("x").acquire(timeout=0.01)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "evil\\x1b[2J\\nroot" in str(caught.value)
    held.release()


def test_the_pages_show_the_timeout_in_the_with_line() -> None:
    from pathlib import Path

    start = (Path(__file__).parents[2] / "docs/start.md").read_text()
    assert 'with client.lock("orders/42").acquire(timeout=5) as lease' in start
