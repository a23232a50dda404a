"""Listeners that misbehave, and callers that are cut: the lock notices nothing, and every story has an end."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
import warnings
from typing import Any

import pytest

import lockline
from lockline import AcquireTimeout, aio
from lockline.core import telling
from lockline.core.claim import Claim, Grant
from lockline.observe import Asked, Event, Granted, Lost, Released, RenewalLate, Renewed, Waiting, Withdrawn

from ..contract.parties import LONG
from ..contract.scene import A_MINUTE, Scene, a_seed
from ..cutting import Cut, CutAt, Misread
from ..servers.process import wait_for
from ..tier import sample
from .heard import Heard


@pytest.fixture
def room() -> str:
    return f"memory:{random.randrange(1 << 40)}"


def test_a_listener_that_raises_hurts_nobody_and_is_told_of_once(
    world: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    def bad(event: Event) -> None:
        raise ValueError("no")

    def worse(event: Event) -> None:
        raise SystemExit(1)

    alice = world.party(on_event=[bad, worse, heard])
    for _ in range(3):
        alice.lock("x").acquire().release()
    heard.wait(Released, 3)
    failures = [record for record in caplog.records if "listener failed" in record.message]
    assert len(failures) == 2
    assert all(record.levelno == logging.ERROR for record in failures)


def test_a_listener_that_blocks_makes_no_lease_late(world: Scene) -> None:
    stop = threading.Event()
    alice = world.party(on_event=lambda event: stop.wait())
    try:
        lease = alice.lock("x").acquire()
        world.wait_for_renewal(lease)
        lease.check()
        lease.release()
        alice.lock("x").acquire().release()
        # It comes back though the listener does not.
        alice.client.close()
    finally:
        stop.set()


def test_what_a_slow_listener_cannot_take_is_bounded_and_no_story_stays_open(
    room: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telling, "MOST", 50)
    stop, heard = threading.Event(), Heard()

    def slow(event: Event) -> None:
        stop.wait()
        heard(event)

    with lockline.connect(room, on_event=slow) as client:
        held = [client.lock(f"held{number}").acquire() for number in range(5)]
        for _ in range(200):
            client.lock("x").acquire().release()
        for lease in held:
            lease.release()
        delivery = client._engine.stream._delivery  # type: ignore[union-attr]
        assert len(delivery) < 50 + 2 * 5 + 3
        stop.set()
        heard.wait_for(lambda: delivery.idle, "the rest")
        assert heard.open == 0
        assert heard.holders == 0
        assert 0 < len(heard.all(Asked)) < 205
        client.lock("x").acquire().release()
        heard.wait_for(lambda: heard.all(Released)[-1].name == "x", "life goes on")
    assert any("too slow" in record.message for record in caplog.records)


def test_a_listener_may_use_the_client(room: str) -> None:
    heard = Heard()

    def nosy(event: Event) -> None:
        heard(event)
        if isinstance(event, Granted) and event.name == "x":
            assert [claim.token for claim in client.inspect("x").holders] in ([event.token], [])
            client.lock("y").acquire(timeout=A_MINUTE).release()

    client = lockline.connect(room, on_event=nosy)
    client.lock("x").acquire().release()
    heard.wait(Released, 2)
    assert sorted(event.name for event in heard.all(Granted)) == ["x", "y"]
    client.close()


def test_a_listener_may_close_the_client(room: str) -> None:
    heard = Heard()

    def ends(event: Event) -> None:
        heard(event)
        if isinstance(event, Granted):
            client.close()

    client = lockline.connect(room, on_event=ends)
    lease = client.lock("x").acquire()
    assert lease.lost.wait(A_MINUTE)
    assert heard.wait(Lost).reason == "closed"


def test_a_crowd_of_threads(room: str) -> None:
    many = sample(100, 300)
    heard = Heard()
    with lockline.connect(room, on_event=heard) as client:

        def work(number: int) -> None:
            try:
                with client.lock(f"x{number % 5}", timeout=0.01 if number % 7 == 0 else None):
                    pass
            except AcquireTimeout:
                pass

        threads = [threading.Thread(target=work, args=(number,)) for number in range(many)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(A_MINUTE)
        heard.wait_for(lambda: heard.open == 0 and len(heard.all(Asked)) >= many, "the end of all")
    assert (heard.waiters, heard.holders) == (0, 0)
    for story in heard.stories():
        assert story in (
            ["asked", "granted", "released"],
            ["asked", "waiting", "granted", "released"],
            ["asked", "waiting", "withdrawn"],
            ["asked", "withdrawn"],
        )


@pytest.mark.parametrize(
    ("keeper", "many"), [("loop", sample(100, 300)), ("thread", sample(20, 40))], ids=["loop", "thread"]
)
def test_many_tasks_cancelled_at_every_moment(room: str, keeper: Any, many: int) -> None:
    heard = Heard()
    seed = a_seed()
    luck = random.Random(seed)

    async def main() -> None:
        async with aio.connect(room, on_event=heard, keeper=keeper) as client:

            async def one(number: int) -> None:
                async with client.lock(f"x{number % 3}"):
                    await asyncio.sleep(0)

            tasks = [asyncio.create_task(one(number)) for number in range(many)]
            while not all(task.done() for task in tasks):
                luck.choice(tasks).cancel()
                await asyncio.sleep(0)
            await asyncio.gather(*tasks, return_exceptions=True)
            delivery = client._engine.stream._delivery  # type: ignore[union-attr]
            await asyncio.to_thread(heard.wait_for, lambda: delivery.idle and heard.open == 0, "the end of all")

    asyncio.run(asyncio.wait_for(main(), 2 * A_MINUTE))
    assert (heard.waiters, heard.holders, heard.open) == (0, 0, 0), seed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("story", ["block", "timed_out"])
def test_wherever_a_caller_is_cut_every_story_has_an_end(room: str, story: str) -> None:
    heard = Heard()
    client, other = lockline.connect(room, on_event=heard), lockline.connect(room)
    taken = other.lock("taken", ttl=600).acquire()

    def block(name: str) -> None:
        with client.lock(name, ttl=LONG):
            pass

    def timed_out(name: str) -> None:
        try:
            client.lock("taken", ttl=LONG).acquire(timeout=0.001)
        except AcquireTimeout:
            pass

    work = {"block": block, "timed_out": timed_out}[story]
    whole = CutAt(-1)
    whole.elsewhere(lambda: work("whole"))
    assert whole.seen > 300
    seed = a_seed()
    cuts = sample(100, 250) if story == "block" else sample(40, 100)
    for nth in sorted(random.Random(seed).sample(range(1, whole.seen + 1), cuts)):
        cut = CutAt(nth)
        try:
            cut.elsewhere(lambda: work(f"x{nth}"))  # noqa: B023 - it is done before the next
        except (Cut, Misread):
            pass
        try:
            wait_for(lambda: heard.open == 0, A_MINUTE, "the end")
        except AssertionError as problem:
            problem.add_note(f"after a cut at {cut.where} (instruction {nth}, seed {seed}): {heard.events[-4:]}")
            raise
    delivery = client._engine.stream._delivery  # type: ignore[union-attr]
    heard.wait_for(lambda: delivery.idle and heard.open == 0, "the end of all")
    assert (heard.waiters, heard.holders) == (0, 0)
    for told in heard.stories():
        assert told[0] == "asked"
        assert told[-1] in ("released", "withdrawn", "lost")
        assert len(told) == len(set(told))
    taken.release()
    client.close()
    other.close()


def in_child(work: Any) -> str:
    """What the work gives in a forked child; an error ends up in here too."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            said = str(work())
        except BaseException as problem:
            said = repr(problem)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def test_in_a_forked_child_nothing_is_held_and_nobody_waits(room: str) -> None:
    heard = Heard()
    client = lockline.connect(room, on_event=heard)
    held = client.lock("x").acquire()
    waiting = threading.Thread(target=lambda: client.lock("x").acquire().release())
    waiting.start()
    heard.wait(Waiting)
    assert (heard.holders, heard.waiters) == (1, 1)

    def child() -> object:
        wait_for(lambda: heard.open == 0, A_MINUTE, "the end of both, in the child")
        ends = [heard.all(Released)[0].end, heard.all(Withdrawn)[0].why]
        client.lock("mine").acquire().release()
        heard.wait(Released, 2)
        return [ends, heard.holders, heard.waiters, heard.all(Asked)[-1].name]

    assert in_child(child) == "[['forked', 'forked'], 0, 0, 'mine']"
    assert (heard.holders, heard.waiters) == (1, 1), "the parent notices nothing"
    held.release()
    waiting.join(A_MINUTE)
    heard.wait_for(lambda: heard.open == 0, "the end of both")
    client.close()


def test_a_fork_does_not_copy_a_listener_in_the_middle(room: str) -> None:
    mutex = threading.Lock()

    def careful(event: Event) -> None:
        with mutex:
            time.sleep(0.002)

    client = lockline.connect(room, on_event=careful)
    for _ in range(15):
        client.lock("x").acquire().release()
        assert in_child(lambda: mutex.acquire(timeout=A_MINUTE)) == "True"
    client.close()


def test_a_listener_that_forks(room: str) -> None:
    heard = Heard()
    children: list[int] = []

    def forks(event: Event) -> None:
        heard(event)
        if isinstance(event, Granted) and not children:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                os._exit(7)
            children.append(pid)

    with lockline.connect(room, on_event=forks) as client:
        for _ in range(3):
            client.lock("x").acquire().release()
        heard.wait(Released, 3)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7


def test_a_bad_listener_is_refused_before_any_io() -> None:
    async def awaits(event: Event) -> None: ...

    for bad in (5, "print", [print, None], awaits):
        with pytest.raises(lockline.ConfigError, match="on_event"):
            lockline.connect("memory:", on_event=bad)  # type: ignore[arg-type]
        with pytest.raises(lockline.ConfigError, match="on_event"):
            aio.connect("memory:", on_event=bad)  # type: ignore[arg-type]


def test_a_client_that_nobody_listens_to_starts_no_thread_and_notes_nothing(room: str) -> None:
    with lockline.connect(room) as client:
        client.lock("x").acquire().release()
        assert not isinstance(client._engine._keeper, telling.TellingKeeper)
        delivery = client._engine.stream._delivery  # type: ignore[union-attr]
        assert not len(delivery)
        assert not delivery._seat.locked()


def test_a_grant_that_came_too_late_to_be_had_is_no_loss(room: str, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()

    async def wait_too_long(client: aio.Client) -> None:
        backend: Any = client._engine.backend
        place = backend.place

        async def place_and_block(claim: Claim, until: float) -> object:
            answer = await place(claim, until)
            if isinstance(answer, Grant):
                backend.place = place
                # As if the loop had been blocked for longer than the ttl.
                now = client._engine.runtime.now
                client._engine.runtime.now = lambda: now() + 20  # type: ignore[method-assign]
            return answer

        backend.place = place_and_block
        waits = asyncio.create_task(client.lock("x").acquire())
        while not (await client.inspect("x")).waiters:  # noqa: ASYNC110 - the store says it
            await asyncio.sleep(0.01)
        taken.release()
        await (await waits).release()

    async def main(*listeners: Any) -> None:
        async with aio.connect(room, on_event=listeners) as client:
            await wait_too_long(client)

    with lockline.connect(room) as other:
        taken = other.lock("x").acquire()
        asyncio.run(main(heard))
        taken = other.lock("x").acquire()
        asyncio.run(main())
    heard.wait_for_the_end(of=2)
    assert heard.stories() == [["asked", "waiting", "withdrawn"], ["asked", "granted", "released"]]
    assert heard.wait(Withdrawn).why == "place lost"
    assert not [record for record in caplog.records if "lost" in record.message], "nobody had it, so nobody lost it"


def test_a_log_that_raises_keeps_nobody_from_hearing(room: str) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("no room on the disk")

    heard, broken = Heard(), Broken()
    log = logging.getLogger("lockline")
    log.addHandler(broken)
    try:
        with lockline.connect(room, on_event=heard) as client, lockline.connect(room) as operator:
            lease = client.lock("x").acquire()
            operator.evict("x")
            assert lease.lost.wait(A_MINUTE)
            assert heard.wait(Lost).reason == "evicted"
            client.lock("y").acquire().release()
            heard.wait(Released)
    finally:
        log.removeHandler(broken)
    assert heard.words() == ["asked", "granted", "lost", "asked", "granted", "released"]


def test_a_lease_that_nears_its_max_hold_is_not_renewed_late(room: str) -> None:
    heard = Heard()
    with lockline.connect(room, on_event=heard) as client:
        lease = client.lock("x", ttl=600, max_hold=60).acquire()
        lease.extend(600)
        assert heard.wait(Renewed).margin < 60
        lease.release()
        heard.wait(Released)
    assert not heard.all(RenewalLate), "that was all that there could be"
