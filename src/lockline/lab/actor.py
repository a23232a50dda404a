"""A client of the laboratory: a process of its own that does what the schedule says, and tells what it sees.

It is stopped, killed and forked like any other process. A lock's code calls `step(...)` at its checkpoints; where the schedule
asked for it, the process waits there until it is told to go on, so that a failure hits between two steps by construction.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..errors import StaleToken
from .crowd import READY, Crowd, CrowdTask
from .locks.face import Hold, Place, PublishedLock
from .register import Register
from .trace import Kind, TraceEvent, short

PAUSE = 0.02
"""Seconds before a client repeats what got no answer."""
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG: a client that stands still would otherwise outlive a laboratory that was killed."""


@dataclass(frozen=True, slots=True)
class Part:
    """Who it is, and what with."""

    label: str
    place: Place
    make: Callable[..., PublishedLock]
    register: Path
    fenced: bool


class Hand:
    """One thread or task of the client: it has at most one hold."""

    def __init__(self, actor: Actor, label: str) -> None:
        self.actor = actor
        self.label = label
        self.hold: Hold | None = None
        self.seen = 0

    def tell(self, kind: Kind, text: str = "", token: int | None = None) -> None:
        self.actor.tell(TraceEvent(time.monotonic(), self.label, kind, text, token))

    def acquire(self, wait: float) -> bool:
        """Ask, and ask again when no answer came, until the wait is over."""
        until = time.monotonic() + wait
        self.tell("asked")
        while True:
            try:
                self.hold = self.actor.lock.acquire(until)
                break
            except Exception as problem:
                self.tell("no answer", type(problem).__name__)
                if time.monotonic() > until:
                    return False
                time.sleep(PAUSE)
        if self.hold is None:
            self.tell("refused")
            return False
        self.tell("granted", token=self.hold.token)
        return True

    def ask_once(self) -> bool:
        """One request; no answer is taken for a no, and the caller goes away."""
        self.tell("asked")
        try:
            self.hold = self.actor.lock.acquire(time.monotonic())
        except Exception as problem:
            self.tell("no answer", type(problem).__name__)
            self.tell("refused", "no answer: it goes away")
            return False
        self.tell("granted" if self.hold else "refused", token=self.hold.token if self.hold else None)
        return self.hold is not None

    def warm_up(self) -> bool:
        """Have a connection, and nothing else."""
        hold = self.actor.lock.acquire(time.monotonic() + 10)
        self.actor.lock.release(hold)
        return True

    def check(self) -> bool:
        """What the holder can know about its hold without asking anybody."""
        mine = self.hold is not None and self.actor.lock.holds(self.hold)
        self.tell("checked" if mine else "gave up", "still mine" if mine else "my time is over")
        return mine

    def read(self) -> bool:
        return self._at_the_register("read", lambda lease: self.actor.register.read(lease))

    def write(self) -> bool:
        return self._at_the_register("wrote", lambda lease: self.actor.register.write(self.label, self.seen, lease))

    def _at_the_register(self, kind: Kind, act: Callable[[Any], int]) -> bool:
        assert self.hold is not None
        try:
            self.seen = act(self.hold.lease)
        except StaleToken as refused:
            self.tell(
                "fence refused", f"{short(int(refused.offered))} after {short(int(refused.highest))}", self.hold.token
            )
            return False
        self.tell(kind, str(self.seen), self.hold.token)
        return True

    def release(self) -> bool:
        """Let go; whatever goes wrong in it is told."""
        hold, self.hold = self.hold, None
        self.tell("letting go", token=hold.token if hold else None)
        try:
            self.actor.lock.release(hold)
        except Exception as problem:
            self.tell("released", type(problem).__name__)
            return False
        self.tell("released")
        return True

    def fork_and_release(self) -> bool:
        """A child leaves the block that its parent is still in: it has inherited all, and runs what `finally` says."""
        self.actor.quiet.acquire()
        child = os.fork()
        if child == 0:
            signal.alarm(5)  # a client library that does not survive a fork may hang
            with suppress(BaseException):
                self.actor.lock.release(self.hold)
            os._exit(0)
        self.actor.quiet.release()
        self.tell("note", "a forked child runs the release")
        os.waitpid(child, 0)
        return True

    def step_clock(self, seconds: float) -> bool:
        """From now on this process reads another time of day."""
        real = self.actor.real_time
        time.time = lambda: real() + seconds
        self.tell("clock", f"{seconds:+.0f} s")
        return True


class Actor:
    """The process."""

    def __init__(self, part: Part, line: Connection) -> None:
        self.part = part
        self._line = line
        self.quiet = threading.Lock()
        self.real_time = time.time
        self.stops: set[str] = set()
        self.lock = part.make(part.place, self.step)
        self.register = Register(part.register, fenced=part.fenced)
        self.hands = {"": Hand(self, part.label)}
        self._threads: dict[str, queue.Queue[tuple[str, tuple[Any, ...]]]] = {}

    def tell(self, event: TraceEvent) -> None:
        self._send(("event", event))

    def _send(self, message: tuple[str, Any]) -> None:
        with self.quiet:
            self._line.send(message)

    def step(self, name: str) -> None:
        """A checkpoint of the lock's code."""
        if name in self.stops:
            self.stops.discard(name)
            self.tell(TraceEvent(time.monotonic(), self.part.label, "at", name))
            self._send(("at", name))
            while True:
                word, *rest = self._line.recv()
                if word == "go":
                    return
                if word == "clock":
                    self.hands[""].step_clock(rest[0])

    def work(self) -> None:
        """Do what the schedule says, until it hangs up."""
        while True:
            try:
                word, where, *rest = self._line.recv()
            except EOFError:
                return
            if word == "enough":
                continue  # of a crowd that was through by itself
            if word == "stop at":
                self.stops.add(where)
            elif word == "crowd":
                self._send(("done", self._crowd(where)))
            elif where.startswith("thread"):
                self._threads.setdefault(where, self._thread(where)).put((word, tuple(rest)))
            else:
                hand = self.hands.setdefault(where, Hand(self, f"{self.part.label} {where}"))
                self._send(("done", self._do(hand, word, tuple(rest))))

    def _crowd(self, turns: CrowdTask) -> list[list[float]]:
        """Many at once, until all have had their turns or the schedule has seen enough."""
        crowd = Crowd(self.part, turns, self.tell)
        if turns.together:
            crowd.warm_up()
            self._send(("at", READY))
            self._line.recv()
        crowd.begin()
        while not crowd.over and not self._line.poll(0.02):
            pass
        return crowd.told()

    def _do(self, hand: Hand, word: str, rest: tuple[Any, ...]) -> Any:
        try:
            return getattr(hand, word)(*rest)
        except Exception as problem:
            hand.tell("note", f"{type(problem).__name__}: {problem}"[:200])
            return False

    def _thread(self, where: str) -> queue.Queue[tuple[str, tuple[Any, ...]]]:
        orders: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue()
        hand = Hand(self, f"{self.part.label} {where}")

        def run() -> None:
            while True:
                word, rest = orders.get()
                self._send(("done", self._do(hand, word, rest)))

        threading.Thread(target=run, daemon=True).start()
        return orders


def main(part: Part, line: Connection) -> None:
    """The life of the process."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the schedule says when it ends
    try:
        actor = Actor(part, line)
        line.send(("done", True))
        actor.work()
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass
    finally:
        os._exit(0)
