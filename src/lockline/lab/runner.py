"""Runs cells, many at a time."""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from queue import SimpleQueue
from typing import Any

from . import failures, locks
from .failures.face import Failure
from .families import a_folder
from .judge import expectation, judge
from .locks.face import PublishedLock
from .nursery import Nursery
from .servers.process import NotInstalled
from .stage import a_stage
from .verdicts import Outcome, Verdict
from .world import World, turn_for

SIDE_BY_SIDE = 20
"""Cells, or queues of them, at a time: most of their time they wait for a ttl to pass."""
CROWDS = 2
"""Cells of fifty clients at a time: these do burn processors."""


class Laboratory:
    """The servers, and the cells that run on them."""

    def __init__(self, pace: float = 1.0) -> None:
        """`pace` makes every ttl so many times longer, for a machine that is busy with other things."""
        self.pace = pace
        self.nursery = Nursery()
        self.world = World()
        self.locks = locks.catalogue()
        self.failures = failures.catalogue()
        self._numbers = count(1)
        self._stopping = False

    def run(self, lock_id: str, failure_id: str) -> Outcome:
        """One cell."""
        lock, failure = self.locks[lock_id], self.failures[failure_id]
        expected = expectation(lock.expected, failure.id)
        why_not = failure.applies(lock)
        if why_not:
            return Outcome(
                lock.id, failure.id, Verdict.NOT_APPLICABLE, why_not[0].upper() + why_not[1:] + ".", expected=expected
            )
        if self._stopping:
            return Outcome(lock.id, failure.id, Verdict.FAILED, "Stopped.", expected=expected)
        try:
            return self._play(lock, failure)
        except NotInstalled as problem:
            return Outcome(
                lock.id, failure.id, Verdict.MISSING, f"{problem.what} is missing: {problem.cure}", expected=expected
            )
        except Exception as problem:
            told = "".join(traceback.format_exception(problem))
            reason = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
            return Outcome(lock.id, failure.id, Verdict.FAILED, reason, expected=expected, facts={"traceback": told})

    def _play(self, lock: type[PublishedLock], failure: Failure) -> Outcome:
        number = next(self._numbers)
        with self.world.servers(lock.family, failure.wants, disturbs=failure.disturbs) as servers:
            folder = a_folder(self.world.folder, "cell")
            began = time.monotonic()
            try:
                with a_stage(lock, servers, self.nursery, folder, f"lab-{number}", failure.ttl * self.pace) as stage:
                    failure.run(stage)
                return judge(stage, lock, failure, time.monotonic() - began)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def matrix(
        self, cells: Iterable[tuple[str, str]], told: Callable[[str, str], None] = lambda lock, failure: None
    ) -> Iterator[Outcome]:
        """Each cell as it is done; `told` hears of each that begins."""
        # Before there are threads: two that compile at once can fail in each other's name, on Python 3.11.
        from . import preload  # noqa: F401

        quiet: list[tuple[str, str]] = []
        crowded: list[tuple[str, str]] = []
        for cell in cells:
            (crowded if self.failures[cell[1]].crowded else quiet).append(cell)
        yield from self._side_by_side(SIDE_BY_SIDE, self.queues(quiet), told)
        yield from self._side_by_side(CROWDS, self.queues(crowded), told)

    def queues(self, cells: Iterable[tuple[str, str]]) -> list[list[tuple[str, str]]]:
        """Cells that disturb the same servers one after the other, the longest queues first; whoever is alone fills the gaps."""
        found: dict[Any, list[tuple[str, str]]] = {}
        for lock_id, failure_id in cells:
            lock, failure = self.locks[lock_id], self.failures[failure_id]
            waits_for = (
                None if failure.applies(lock) else turn_for(lock.family, failure.wants, disturbs=failure.disturbs)
            )
            found.setdefault(waits_for or (lock_id, failure_id), []).append((lock_id, failure_id))
        order = list(self.failures)
        # Failure by failure, so that every family's servers start while others are at work.
        return sorted(found.values(), key=lambda queue: (-len(queue), order.index(queue[0][1])))

    def _side_by_side(
        self, many: int, queues: Sequence[Sequence[tuple[str, str]]], told: Callable[[str, str], None]
    ) -> Iterator[Outcome]:
        pool = ThreadPoolExecutor(many, thread_name_prefix="cell")
        outcomes: SimpleQueue[Outcome | BaseException] = SimpleQueue()

        def run(queue: Sequence[tuple[str, str]]) -> None:
            for lock, failure in queue:
                try:
                    told(lock, failure)
                    outcomes.put(self.run(lock, failure))
                except BaseException as problem:
                    outcomes.put(problem)

        for queue in queues:
            pool.submit(run, queue)
        try:
            for _ in range(sum(map(len, queues))):
                outcome = outcomes.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        except BaseException:
            # Whoever still plays has no clients and no servers any more, and ends by that.
            self._stopping = True
            pool.shutdown(wait=False, cancel_futures=True)
            self.close()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            if self._stopping:
                self.world.close()  # what a cell was about to start in that moment

    def close(self) -> None:
        """Stop everything."""
        self._stopping = True
        self.nursery.close()
        self.world.close()
