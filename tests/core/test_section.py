"""What threads share survives an exception between any two instructions of any of them."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from lockline.runtime.blocking import BlockingMailbox, BlockingRuntime, BlockingSignal, run
from lockline.runtime.clock import now
from lockline.runtime.section import Inside, Section
from tests.servers.process import wait_for

from ..cutting import Cut, CutAt

pytestmark = pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")


def every_cut(work: Callable[[], Any]) -> Iterator[str]:
    """Cut this work at its first instruction, then at its second, and so on; where it was, each time."""
    for nth in range(1, 5000):
        cut = CutAt(nth)
        try:
            cut.elsewhere(work)
        except Cut:
            yield cut.where
        else:
            return
    raise AssertionError("it does not end")


def in_a_thread(work: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What another thread gets out of this; an error if it hangs."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "hangs"
    return got[0]


def test_a_section_that_was_cut_anywhere_lets_the_next_one_in() -> None:
    section = Section()
    done: list[int] = []
    wheres = []
    for where in every_cut(lambda: section(done.append, 1)):
        wheres.append(where)
        assert in_a_thread(lambda: section(lambda: "in")) == "in", where
        assert section(lambda: "in") == "in", where
    assert len(wheres) > 5


@pytest.mark.slow
def test_one_who_is_cut_while_it_waits_outside_keeps_nobody_out() -> None:
    section = Section()
    for nth in range(1, 500):
        cut = CutAt(nth)
        entered, leave = threading.Event(), threading.Event()

        def stay(entered: threading.Event = entered, leave: threading.Event = leave) -> None:
            entered.set()
            # Until somebody waits outside, and a moment longer, so that he sleeps.
            until = time.monotonic() + 60
            while not section._waiting and not leave.wait(0.002) and time.monotonic() < until:
                pass
            leave.wait(0.05)

        holder = threading.Thread(target=section, args=(stay,), daemon=True)
        holder.start()
        assert entered.wait(60)
        try:
            cut.elsewhere(lambda: section(lambda: None))
        except Cut:
            pass
        leave.set()
        assert in_a_thread(lambda: section(lambda: "in")) == "in", cut.where
        holder.join(60)
        if not cut.where:
            break
    assert nth > 50
    assert not section._waiting or in_a_thread(lambda: section(lambda: True))


def test_a_section_lets_one_in_at_a_time() -> None:
    section, inside, most = Section(), [], []
    together = 8

    def work() -> None:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0)
        inside.pop()

    def busy() -> None:
        for _ in range(300):
            section(work)

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(most) == 300 * together
    assert max(most) == 1
    assert not section._waiting


def test_a_signal_handler_inside_is_told_so_instead_of_waiting_for_itself() -> None:
    section = Section()
    told: list[str] = []

    def handler(number: int, frame: object) -> None:
        try:
            section(lambda: told.append("in"))
        except Inside:
            told.append("inside" if section.entered() else "?")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        section(lambda: signal.raise_signal(signal.SIGUSR1))
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert told == ["inside", "in"]
    assert not section.entered()


def test_the_work_keeps_its_own_errors() -> None:
    section = Section()

    def fail() -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        section(fail)
    assert section(lambda: 1) == 1


@pytest.mark.parametrize("what", ["set", "wait", "clear"])
def test_a_signal_survives_a_cut_anywhere(what: str) -> None:
    runtime = BlockingRuntime()
    shared = runtime.signal()

    def work() -> None:
        if what == "wait":
            run(shared.wait(now() + 0.001))
        else:
            getattr(shared, what)()

    for where in every_cut(work):
        shared.clear()
        assert in_a_thread(lambda: run(shared.wait(now() + 0.001))) is False, where
        in_a_thread(shared.set)
        assert in_a_thread(lambda: run(shared.wait(now() + 60))) is True, where
        shared.clear()
    assert len(shared._sleeping) < 5


def test_a_sleeper_is_woken_though_the_first_setter_was_cut() -> None:
    for nth in range(1, 100):
        shared, cut = BlockingSignal(), CutAt(nth)
        woken: list[bool] = []
        sleeper = threading.Thread(target=lambda s=shared, w=woken: w.append(run(s.wait(now() + 600))), daemon=True)
        sleeper.start()
        while not shared._sleeping:
            time.sleep(0)
        try:
            cut.elsewhere(shared.set)
        except Cut:
            shared.set()
        sleeper.join(60)
        assert woken == [True], cut.where
        if not cut.where:
            break


def test_a_leader_that_was_cut_anywhere_leaves_the_reading_to_another() -> None:
    for nth in range(1, 2000):
        post: queue.SimpleQueue[str] = queue.SimpleQueue()

        def receive(seconds: float, post: queue.SimpleQueue[str] = post) -> list[str]:
            try:
                return [told] if (told := post.get(timeout=min(seconds, 0.002))) else []
            except queue.Empty:
                return []

        box = BlockingMailbox(lambda _: None, receive, partial(post.put, ""))
        box.open("cut")
        box.open("other")
        cut = CutAt(nth)
        try:
            cut.elsewhere(partial(lambda box: run(box.wait("cut", now() + 0.005)), box))
        except Cut:
            pass
        # What every way out of a wait does in the end: its claim is withdrawn, by whoever finds it.
        box.close("cut")
        waits = threading.Thread(target=lambda b=box: run(b.wait("other", now() + 600)), daemon=True)
        waits.start()
        post.put("other")
        waits.join(60)
        assert not waits.is_alive(), cut.where
        if not cut.where:
            break
    assert nth > 100


class Waiters:
    """Threads that wait at one mailbox whose reader hears nothing, in order of arrival."""

    def __init__(self, *names: str) -> None:
        self.nudged: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.nudges = 0
        self.box = BlockingMailbox(lambda _: None, self._receive, self._nudge)
        self._threads: dict[str, threading.Thread] = {}
        for n, name in enumerate(names, 1):
            self.box.open(name)
            self._threads[name] = threading.Thread(target=self._wait, args=(name,))
            self._threads[name].start()
            wait_for(partial(self._waits, n), 60, f"{name} to wait")

    def _wait(self, name: str) -> None:
        run(self.box.wait(name, now() + 600))

    def _waits(self, number: int) -> bool:
        return len(self.box._waiting) == number and self.box._leader is not None

    def _receive(self, seconds: float) -> list[str]:
        try:
            self.nudged.get(timeout=seconds)
        except queue.Empty:
            pass
        return []

    def _nudge(self) -> None:
        self.nudges += 1
        self.nudged.put("")

    def leads(self, name: str) -> bool:
        return self.box._leader is self.box._slots[name]

    def wake(self, name: str) -> None:
        self.box.deliver(name)
        self._threads[name].join(60)
        assert not self._threads[name].is_alive()


def test_a_hint_for_one_who_follows_leaves_the_leader_where_it_is() -> None:
    waiters = Waiters("a", "b", "c")
    assert waiters.leads("a")
    waiters.wake("b")
    assert (waiters.nudges, waiters.leads("a")) == (0, True)
    waiters.wake("a")
    waiters.wake("c")


def test_who_came_last_leads_next_because_its_turn_comes_last() -> None:
    waiters = Waiters("a", "b", "c", "d")
    waiters.wake("a")
    wait_for(lambda: waiters.leads("d"), 60, "the last one to lead")
    # Now each turn that is handed on wakes one thread, and no other.
    waiters.wake("b")
    waiters.wake("c")
    assert (waiters.nudges, waiters.leads("d")) == (1, True)
    waiters.wake("d")


def test_a_worker_runs_though_its_starter_was_cut() -> None:
    runtime = BlockingRuntime()
    runs: list[int] = []

    async def work() -> None:
        runs.append(1)

    for nth in range(1, 500):
        cut, before = CutAt(nth), len(runs)
        try:
            cut.elsewhere(lambda: runtime.spawn(work, "lockline-test"))
        except Cut:
            worker = runtime.spawn(work, "lockline-test")
            run(worker.join(now() + 60))
            assert not worker.alive(), cut.where
            assert len(runs) > before
        if not cut.where:
            break
    assert nth > 20
