"""What a contract test is given: one backend in one flavour, and the parties that meet there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from lockline import Line
from lockline.runtime.clock import now

from .. import renewed
from ..calm import calm
from ..servers.process import freeze
from .nursery import fork_elsewhere
from .parties import STUCK, Face, Party, Pending, TaskParty, ThreadParty, connect
from .worlds import World

KEPT = 5.0
"""The ttl of a lease that has to be renewed in time: a machine that does nothing of ours for three seconds does not end it."""
A_MINUTE = 60.0
"""What has not come true by then never will; less than `STUCK`, and than the ttl of what must not expire."""
KINDS = ("lock", "rlock", *(pytest.param(kind, marks=pytest.mark.needs("read_write")) for kind in ("read", "write")))
"""Each kind of lock of which one claim excludes others."""
LOOK_EVERY = 0.05
NAMES = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi")


CLOCKS = (time.monotonic, time.time, now)


class Passed:
    """Seconds since it was made, by the clock that says most: servers go by the machine's wall clock, which may step forward meanwhile."""

    def __init__(self) -> None:
        self._began = [clock() for clock in CLOCKS]

    def __call__(self) -> float:
        return max(clock() - began for clock, began in zip(CLOCKS, self._began, strict=True))


def a_seed() -> int:
    """A seed for random choices, which a failing test has to tell; in CI always the same."""
    return 7 if os.environ.get("CI") else random.randrange(1 << 32)


class Scene:
    """One test's place on one backend: isolated lines, in one flavour."""

    def __init__(self, world: World, flavour: str) -> None:
        self.world = world
        self.flavour = flavour
        self.place = world.place()
        self._parties: list[Party] = []
        self._clients: list[Face] = []
        self._processes: list[OtherProcess] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._observer: Party | None = None

    # -- who takes part ----------------------------------------------------------------------------

    def party(self, name: str | None = None, **options: Any) -> Party:
        """Somebody with a client of their own."""
        party = self._new_party(name)
        options = {"owner": party.name, **self.world.options(), **options}
        party.client = Face(party, party.do(lambda: connect(self.flavour, self.place, **options)).real)
        self._clients.append(party.client)
        return party

    def sibling(self, party: Party, name: str | None = None) -> Party:
        """Another thread or task that shares that party's client."""
        other = self._new_party(name)
        other.client = party.client.given_to(other)
        return other

    def process(self, **options: Any) -> OtherProcess:
        """Somebody in another process; only where the world spans processes."""
        assert self.world.spans_processes, "mark the story with `processes`"
        process = OtherProcess(self.flavour, self.place, {**self.world.options(), **options})
        self._processes.append(process)
        return process

    def _new_party(self, name: str | None) -> Party:
        number = len(self._parties)
        name = name or (NAMES[number] if number < len(NAMES) else f"party-{number}")
        party: Party = ThreadParty(name) if self.flavour == "sync" else TaskParty(name, self.loop)
        self._parties.append(party)
        return party

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of this test, in a thread of its own."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(target=self._loop.run_forever, name="scene-loop", daemon=True)
            self._loop_thread.start()
        return self._loop

    def ttl(self, seconds: float) -> float:
        """The ttl of a claim that has to expire: longer than this, because on a busy machine a server may need a second to grant it."""
        return 2 * seconds if self.world.runtime_clock else max(1.0 + 2 * seconds, self.world.shortest_ttl)

    def outlive(self, ttl: float) -> None:
        """Let so much time pass that what nobody renewed has expired."""
        time.sleep(1.15 * ttl)

    @property
    def kept(self) -> float:
        """The ttl of a lease that is kept by its regular renewals for real: where it ends by a clock that may step, twice as long."""
        return 2 * KEPT if self.world.wall_clock else KEPT

    def wait_for_renewal(self, *leases: Any) -> None:
        """Let a renewal of each be due, and wait until the store has confirmed one that was sent after this moment."""
        renewed.wait_for_renewal(*leases)

    # -- what everybody can see --------------------------------------------------------------------

    def line(self, name: str) -> Line:
        """The line as a bystander sees it."""
        if self._observer is None:
            self._observer = self.party("observer")
        return self._observer.client.inspect(name)  # type: ignore[no-any-return]

    def names(self) -> list[str]:
        """Every name that is held or waited for."""
        if self._observer is None:
            self._observer = self.party("observer")
        return self._observer.client.list()  # type: ignore[no-any-return]

    def evict(self, name: str) -> int:
        """The operator steps in."""
        if self._observer is None:
            self._observer = self.party("observer")
        return self._observer.client.evict(name)  # type: ignore[no-any-return]

    def wait_for_line(self, name: str, *, holders: int | None = None, waiters: int | None = None) -> Line:
        """Wait until that many hold and that many wait."""

        def there() -> bool:
            line = self.line(name)
            return (holders is None or len(line.holders) == holders) and (
                waiters is None or len(line.waiters) == waiters
            )

        self.wait_for(there, what=f"{holders} holders and {waiters} waiters of {name!r}")
        return self.line(name)

    def wait_until_free(self, name: str) -> None:
        """Wait until no claim is left."""
        self.wait_for(lambda: not self.line(name).claims, what=f"an empty line of {name!r}")

    def wait_for(self, condition: Callable[[], object], seconds: float = A_MINUTE, what: str = "it") -> None:
        """Wait until the condition is true; fail when it is not by then. What takes long is looked at less and less often."""
        until, pause = calm() + seconds, 0.002
        while not condition():
            if calm() > until:
                raise AssertionError(f"{what} did not come true within {seconds} s")
            time.sleep(pause)
            pause = min(1.2 * pause, LOOK_EVERY)

    def queue_up(self, name: str, *waiting: Callable[[], Pending]) -> list[Pending]:
        """Begin these waits one after the other, each in the line before the next begins."""
        begun = []
        before = len(self.line(name).claims)
        for number, begin in enumerate(waiting, 1):
            begun.append(begin())
            self.wait_for(
                partial(lambda n: len(self.line(name).claims) >= n, before + number), what="a place in the line"
            )
        return begun

    def in_turn(self, waiting: list[Pending]) -> Iterator[Any]:
        """The leases of those who wait, in whatever order they get them; release each before asking for the next."""
        left = list(waiting)
        while left:
            self.wait_for(lambda: any(pending.done for pending in left), what="the next grant")
            (next_one,) = [pending for pending in left if pending.done]
            left.remove(next_one)
            yield next_one.result()

    # -- the end -----------------------------------------------------------------------------------

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Everybody goes home, whatever happened."""
        for process in self._processes:
            process.kill()
        problems = []
        for number, client in enumerate(self._clients):
            # Its own party may be stuck in what the test was about; anybody can close a client.
            closer = self._new_party(f"closer-{number}")
            try:
                client.given_to(closer).close.start().result()
            except Exception as problem:
                problems.append(problem)
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(STUCK)
            self._loop.call_soon_threadsafe(self._loop.stop)
            assert self._loop_thread is not None
            self._loop_thread.join(STUCK)
            self._loop.close()
        else:
            from .parties import End

            for party in self._parties:
                party.tell(End(lambda: None))
        if problems:
            raise problems[0]


async def _cancel_all() -> None:
    tasks = left = asyncio.all_tasks() - {asyncio.current_task()}
    while left:
        # Again and again: a party that is in the middle of a call takes the first for the end of that call, and waits for the next.
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.05)
    await asyncio.gather(*tasks, return_exceptions=True)


class OtherProcess:
    """A party in a process of its own, that can be killed, stopped and continued.

    It obeys one order at a time (`tests/contract/other_process.py` lists them): `process.ask("acquire", name="x", ttl=1)`.
    """

    def __init__(self, flavour: str, target: str, options: dict[str, Any]) -> None:
        self.pid, ours = fork_elsewhere(flavour, target, options)
        self._end = os.pidfd_open(self.pid)
        """It can be read when the process has ended."""
        with ours:
            self._orders, self._answers = ours.makefile("w"), ours.makefile("r")
        self.ask("hello")

    def send(self, order: str, **details: Any) -> None:
        """Give an order without waiting for the answer."""
        self._orders.write(json.dumps({"order": order, **details}) + "\n")
        self._orders.flush()

    def answer(self) -> dict[str, Any]:
        """The answer to the oldest order that has none yet."""
        line = self._answers.readline()
        if not line:
            raise AssertionError("the other process ended")
        return json.loads(line)  # type: ignore[no-any-return]

    def ask(self, order: str, **details: Any) -> dict[str, Any]:
        """Give an order and wait for the answer."""
        self.send(order, **details)
        return self.answer()

    def kill(self) -> None:
        """SIGKILL: it says goodbye to nobody."""
        if self._end < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._end, signal.SIGKILL)
        assert select.select([self._end], [], [], A_MINUTE)[0], "it does not die"
        os.close(self._end)
        self._end = -1
        for pipe in (self._orders, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()

    def stop(self) -> None:
        """SIGSTOP, and every thread stands still."""
        freeze(self.pid)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
