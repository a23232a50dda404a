"""Promise 7, to the end: an exception may strike the calling thread between any two instructions of Lockline's code.

Ctrl-C, a soft time limit, an alarm that raises. Whatever was cut, and wherever: soon after, long before any ttl, the lock is
free, no thread hangs, and the same client goes on as if nothing had been; also in the very thread that was cut.
"""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockline
from lockline import AcquireTimeout, BackendUnavailable, LocklineError
from lockline.core import keeper
from lockline.runtime.clock import now

from ..cutting import Cut, CutAt, Misread, Overtime, SoftLimit
from ..servers.process import wait_for
from ..tier import sample
from .scene import A_MINUTE, Scene, a_seed

pytestmark = [
    pytest.mark.flavour("sync"),
    # A coroutine that was made and not yet begun is dropped, and a finaliser may be cut as well: Python says so.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def _what_a_cut_left_is_garbage_here() -> Iterator[None]:
    """A socket that was cut off before anybody had it is found by the collector: now, and not in the story of another test."""
    yield
    gc.collect()


TTL = 600.0
"""Nothing here is freed by its ttl: what a cut leaves behind goes because the client gives it back, or not at all."""
ROUNDS = 2
"""A claim that is in nobody's hands is given back within a second: that is so many rounds of the keeper."""
SAMPLES = int(os.environ.get("LOCKLINE_TEST_CUTS", sample("20", "40")))
"""Cuts per story where each one costs a round trip; on `memory:`, where it does not, many more, and in the full run every single one."""
CHEAP = {"memory": sample(5, 1_000_000), "local": sample(2, 5)}

IN_THE_CALLERS_HANDS = ("sync.py acquire RETURN_VALUE", "sync.py try_acquire RETURN_VALUE", "block.py __get__")
"""After its last instruction what `acquire()` gave is the caller's, up to the block that it is bound to: cut off there, it was
dropped by the caller, and its ttl frees it unless the same thread asks again."""


class Rounds:
    """Counts the rounds of a client's keeper, and knows the claims that it has to give back."""

    def __init__(self, client: lockline.Client) -> None:
        assert ROUNDS * keeper.TICK <= 1.0
        self._keeper = client._engine._keeper
        self._begun = self._ended = 0
        look_round = self._keeper._worker._look_round

        async def counted() -> float:
            self._begun += 1
            try:
                return await look_round()
            finally:
                self._ended += 1

        self._keeper._worker._look_round = counted

    def _left(self) -> list[Any]:
        """Claims whose call is over, that are in nobody's hands, and that the keeper has not yet taken over."""
        return [live for live in list(self._keeper.books.values()) if not live.answered_for()]

    def show_that_nothing_is_left(self) -> None:
        """Fail if the keeper has not taken over each claim that is in nobody's hands after so many rounds."""
        if self._left():
            assert self._keeper._worker.planned <= now() + keeper.TICK, "the next round is more than half a second away"
        enough = self._begun + ROUNDS
        wait_for(lambda: not self._left() or self._ended >= enough, A_MINUTE, "rounds of the keeper")
        assert not self._left(), f"after {ROUNDS} rounds of the keeper"


class Stories:
    """What is cut: each makes the work for one lock of one client, and may have others stand in its way."""

    def __init__(self, client: lockline.Client, other: lockline.Client, turn: float) -> None:
        self.client = client
        self.turn = turn
        """How long to wait for a turn that does not come: long enough to ask the store."""
        self.other = other
        self.held: lockline.Lease | None = None
        self.keeps: object = None
        """What a program keeps while it goes on."""

    def make_way(self) -> None:
        """Nobody is in the way any more."""
        if self.held is not None:
            self.held.release()
        self.held = None

    def free(self, name: str) -> Callable[[], Any]:
        return lambda: self.client.lock(name, ttl=TTL).acquire()

    def tried(self, name: str) -> Callable[[], Any]:
        return lambda: self.client.lock(name, ttl=TTL).try_acquire()

    def block(self, name: str) -> Callable[[], Any]:
        def work() -> None:
            with self.client.lock(name, ttl=TTL):
                pass

        return work

    def kept(self, name: str) -> Callable[[], Any]:
        lock = self.client.lock(name, ttl=TTL)
        self.keeps = lock

        def work() -> None:
            with lock:
                pass

        return work

    def leased(self, name: str) -> Callable[[], Any]:
        def work() -> None:
            with self.client.lock(name, ttl=TTL).acquire(timeout=A_MINUTE) as lease:
                self.keeps = lease

        return work

    def nested(self, name: str) -> Callable[[], Any]:
        def work() -> None:
            with self.client.rlock(name, ttl=TTL), self.client.rlock(name, ttl=TTL):
                pass

        return work

    def timed_out(self, name: str) -> Callable[[], Any]:
        self.held = self.other.lock(name, ttl=TTL).acquire()

        def work() -> None:
            try:
                self.client.lock(name, ttl=TTL).acquire(timeout=self.turn)
            except (AcquireTimeout, BackendUnavailable):
                # Traced as it is, and on a busy machine, its time may be over before the store has answered.
                pass

        return work

    def released(self, name: str) -> Callable[[], Any]:
        lease = self.client.lock(name, ttl=TTL).acquire()

        def work() -> None:
            try:
                lease.release()
            except Cut:
                # Cut before it began, it is still rightly owned; cut later, it is released whatever happens.
                if lease.valid:
                    lease.release()
                raise

        return work


@pytest.mark.slow
@pytest.mark.parametrize("unit", sample(["opcode"], ["line", "opcode"]))
@pytest.mark.parametrize("story", ["free", "tried", "block", "kept", "leased", "nested", "timed_out", "released"])
def test_the_lock_is_free_and_the_client_works_wherever_it_was_cut(world: Scene, story: str, unit: str) -> None:
    client, other = world.party().client.real, world.party().client.real
    rounds = Rounds(client)
    stories = Stories(client, other, 0.001 if world.world.name == "memory" else 0.05)
    make = getattr(stories, story)
    whole = CutAt(-1, unit)
    got = whole.elsewhere(make("whole"))
    stories.make_way()
    if got is not None:
        got.release()
    steps = list(range(1, whole.seen + 1))
    seed = a_seed()
    samples = SAMPLES * CHEAP.get(world.world.name, 1)
    if len(steps) > samples:
        steps = sorted(random.Random(seed).sample(steps, samples))
    wheres: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for nth in steps:
            name = f"x{nth}"
            cut = CutAt(nth, unit)
            work = make(name)
            again = nth % 2 == 0

            def run(cut: CutAt = cut, work: Callable[[], Any] = work, name: str = name, again: bool = again) -> Any:
                try:
                    return cut(work)
                except Misread:
                    return Misread
                except Cut:
                    pass
                finally:
                    stories.make_way()
                if again:
                    # What a program does that was interrupted: in the same thread, the same again.
                    client.lock(name, ttl=TTL).acquire(timeout=A_MINUTE).release()
                return None

            try:
                lease = CutAt(-1).elsewhere(run)
            except (AssertionError, LocklineError) as problem:
                problem.add_note(f"after a cut at {cut.where} (instruction {nth}, seed {seed})")
                raise
            if lease is Misread:
                other.evict(name)
                continue
            if lease is not None:
                lease.release()
                del lease
            where = re.sub(r"^.*/|:\d+", "", cut.where)
            if where.startswith(IN_THE_CALLERS_HANDS):
                other.evict(name)
            wheres[name] = cut.where
            del work, run
        assert len(wheres) > 10

        def left() -> list[str]:
            return [name for name in other.list() if name in wheres]

        try:
            rounds.show_that_nothing_is_left()
            world.wait_for(lambda: not left(), what="the end of every claim")
        except AssertionError as problem:
            for name in left():
                line = other.inspect(name)
                problem.add_note(
                    f"left by a cut at {wheres[name]} (seed {seed}): {len(line.holders)} hold, {len(line.waiters)} wait"
                )
            raise
    CutAt(-1).elsewhere(lambda: client.lock("x", ttl=TTL).acquire(timeout=A_MINUTE).release())


@pytest.mark.slow
@pytest.mark.parametrize("limit", [SoftLimit, Overtime])
def test_a_limit_that_is_an_ordinary_error_comes_out_as_what_it_is(world: Scene, limit: type[Exception]) -> None:
    """Taken for the silence of the store it would be lost, and the request asked again; or leave behind what was done."""
    client, other = world.party().client.real, world.party().client.real
    rounds = Rounds(client)
    stories = Stories(client, other, 0.0)
    whole = CutAt(-1)
    whole.elsewhere(stories.block("whole"))
    seed = a_seed()
    samples = SAMPLES // 2 * (5 if world.world.name in CHEAP else 1)
    steps = sorted(random.Random(seed).sample(range(1, whole.seen + 1), min(samples, whole.seen)))
    wheres: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for nth in steps:
            name, cut = f"x{nth}", CutAt(nth, raising=limit)

            def run(name: str = name, cut: CutAt = cut) -> None:
                try:
                    cut(stories.block(name))
                    assert cut.unheard or not cut.where, "the limit is lost"
                except Misread:
                    other.evict(name)
                except limit:
                    pass
                client.lock(name, ttl=TTL).acquire(timeout=A_MINUTE).release()

            try:
                CutAt(-1).elsewhere(run)
            except (AssertionError, LocklineError) as problem:
                problem.add_note(f"after a cut at {cut.where} (instruction {nth}, seed {seed})")
                raise
            wheres[name] = cut.where
        rounds.show_that_nothing_is_left()
        world.wait_for(
            lambda: not [name for name in other.list() if name in wheres], what=f"the end of all (seed {seed})"
        )


def test_a_tight_loop_outlives_many_alarms_that_raise(world: Scene) -> None:
    """Real signals, in the main thread, where Python delivers them."""
    other = world.party().client.real
    client = lockline.connect(world.place, **world.world.options())
    rounds = Rounds(client)
    kept = [client.lock(f"kept{number}", ttl=TTL) for number in range(5)]
    seed = a_seed()
    luck = random.Random(seed)
    cuts = 0

    def alarm(number: int, frame: object) -> None:
        raise Cut

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        client.lock("x", ttl=TTL).acquire().release()
        until = time.monotonic() + A_MINUTE
        while cuts < sample(100, 300) and time.monotonic() < until:
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, luck.uniform(0.00003, 0.0015))
                    for turn in range(60):
                        with kept[turn % 5] if turn % 2 else client.lock(f"x{turn}", ttl=TTL):
                            pass
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Cut:
                cuts += 1
        assert cuts > 20, f"seed {seed}"
        rounds.show_that_nothing_is_left()
        world.wait_for(lambda: not other.list(), what=f"the end of every claim (seed {seed})")
        for lock in kept:
            lock.acquire(timeout=A_MINUTE).release()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        client.close()
