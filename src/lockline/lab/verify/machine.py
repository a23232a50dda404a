"""The machine: workers on the user's store, faults from outside, a witness beside them, and everything cleaned up after."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ...errors import AcquireTimeout, ConfigError, LeaseLost, LocklineError
from ...guarantees import Guarantees
from ...runtime.clock import now
from . import history as told
from . import registers
from .course import Course
from .crew import Crew
from .faults import Blow, Striker, schedule
from .history import Fault, History
from .hooks import Hooks
from .judge import Rules, judge
from .ledger import Ledger
from .plan import Names, Settings
from .scratch import a_folder
from .stalls import Stalls
from .systems import DIRECT, WayToStore, gone_after, life_after_death, way_to
from .verdict import RunVerdict
from .witness import Witness
from .worker import a_client

PREFIX: Final = "lockline-verify/"
"""What every name of a run begins with, before what is its own."""
BEGINS_WITHIN: Final = 30.0
"""So long the workers are waited for until each has done something."""
CONTACT_WITHIN: Final = 5.0
"""So long the store has to answer at all."""
IN_VAIN: Final = 0.3
"""So long a permit is waited for that nobody will give back."""
CLEANED_WITHIN: Final = 30.0


@dataclass(frozen=True, slots=True)
class RunWish:
    """What is to be done."""

    url: str
    seconds: float = 60.0
    workers: int = 8
    seed: int = 1
    ttl: float = 2.0
    hooks: tuple[str, ...] = ()
    every: float = 30.0
    strikes: bool = True
    """Whether the machine's own faults happen."""
    pace: float = 0.02
    subject: str = ""
    mutation: str = ""
    ports: Mapping[str, int] = field(default_factory=lambda: DIRECT)
    firm: bool = True
    """Whether the store promises exclusion under all that is done to it here."""
    until_broken: bool = False
    """End as soon as a promise is found broken."""
    least: int = 100


class Interrupted(Exception):
    """Somebody wanted the run to end before its time."""

    cleaned = True
    """Whether nothing is left of it in the store; False if the store could not be asked."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is."""

    elapsed: float
    seconds: float
    grants: int
    faults: int
    doing: str


@dataclass(slots=True)
class RunOutcome:
    """What a run was, and what came of it."""

    wish: RunWish
    verdict: RunVerdict
    history: History
    guarantees: Guarantees
    shown_url: str
    """Without its secrets."""
    network: str
    """Why no fault of the network was tried; empty if they were."""
    notes: list[str] = field(default_factory=list)
    prefix: str = ""
    life: float = 0.0


class Machine:
    """One run."""

    def __init__(self, wish: RunWish, tell: Callable[[RunProgress], None] | None = None) -> None:
        self._wish = wish
        self._tell = tell
        self._over = threading.Event()
        self._prefix = f"{PREFIX}{secrets.token_hex(4)}/"
        self._folder = Path()
        self._ledger = Ledger()
        self._grants = 0
        self._cleaned = True
        self.working = threading.Event()
        """Set while the workers are at it and anything may be done to the store."""
        self.started = False
        """Whether there is anything that has to be ended."""
        self._read: dict[Path, int] = {}

    def begin(self, kind: str) -> Fault:
        """Something is being done to the run from elsewhere, and nobody knows for how long."""
        return self._ledger.begin(kind)

    def end(self, fault: Fault, felt: float) -> None:
        """It is over, and may be felt so much longer."""
        self._ledger.end(fault, felt)

    def stop(self) -> None:
        """End now, without a verdict: `run` raises Interrupted."""
        self._over.set()

    def run(self) -> RunOutcome:
        """From the first contact to the verdict; whatever happens, no worker, file or claim is left."""
        try:
            with a_folder() as self._folder:
                return self._run()
        except Interrupted as stopped:
            stopped.cleaned = self._cleaned
            raise

    def _run(self) -> RunOutcome:
        wish = self._wish
        settings = Settings(
            wish.url, 0, str(self._folder), self._prefix, wish.seed, 0.0, ttl=wish.ttl, timeout=3 * wish.ttl,
            pace=wish.pace, subject=wish.subject, mutation=wish.mutation,
        )  # fmt: skip
        client = a_client(replace(settings, number=-1))
        try:
            names = self._make_contact(client, settings)
            with way_to(wish.url, wish.ports) as way:
                return self._with(client, replace(settings, url=way.url, shares=names.shares), names, way)
        finally:
            with contextlib.suppress(LocklineError):
                client.close()

    def _make_contact(self, client: Any, settings: Settings) -> Names:
        """Take a lock, wait for one in vain, look at the list: what is wrong with the store is told here, before anything is started."""
        probe = f"{self._prefix}probe"
        client.lock(probe, ttl=settings.ttl).acquire(timeout=CONTACT_WITHIN).release()
        client.list(self._prefix)
        try:
            # One thread may ask for a second permit, and so waits: that takes rights of its own in some stores.
            held = client.semaphore(probe, limit=1, ttl=settings.ttl).acquire(timeout=CONTACT_WITHIN)
        except ConfigError:
            return Names(self._prefix, shares=False)
        # Whether it is in vain, and whether the first one still holds, is for the judge to say.
        with contextlib.suppress(AcquireTimeout, LeaseLost):
            client.semaphore(probe, limit=1, ttl=settings.ttl).acquire(timeout=IN_VAIN).release()
        with contextlib.suppress(LeaseLost):
            held.release()
        return Names(self._prefix)

    def _with(self, client: Any, settings: Settings, names: Names, way: WayToStore) -> RunOutcome:
        wish = self._wish
        began = now()
        settings = replace(settings, ends=began + wish.seconds + 2 * BEGINS_WITHIN)
        life = life_after_death(wish.url, wish.ttl)
        guarantees: Guarantees = client.guarantees
        rules = Rules(guarantees.fifo, guarantees.push, names.shares, wish.firm, wish.ttl, life, wish.least)
        self.started = True
        crew = Crew(settings, wish.workers)
        hooks: Hooks | None = None
        notes: list[str] = []
        try:
            with Stalls() as stalls, Witness(client, names, self._folder, guarantees.fifo):
                self._wait_for_all(crew)

                def history(debris: list[str] | None = None) -> History:
                    return self._history(names, stalls.samples, course.began, debris)

                course = Course(
                    wish.seconds,
                    self._over,
                    self._show,
                    (lambda: bool(judge(history(), rules).broken)) if wish.until_broken else None,
                )
                hooks = Hooks(wish.hooks, wish.every, self._ledger)
                striker = Striker(crew, way.proxies, self._ledger, seed=wish.seed, life=life, pause=course.pause)
                self.working.set()
                self._strike(striker, course, schedule(wish.seed, wish.ttl, life, bool(way.proxies)))
                self.working.clear()
                hooks.stop()
                striker.calm()
                self._end_if_unwanted()
                if course.found_out:
                    crew.kill()
                late = crew.stop(settings.timeout + 15, self._over)
                self._end_if_unwanted()
                ended = now()
                notes += [f"worker {number} did not come to its end and was killed" for number in late]
                notes += [
                    f"worker {number} ended with {code}: {self._error_of(number)}"
                    for number, code in crew.failures().items()
                ]
                notes += [
                    f"{text}{f' ({times} times)' if times > 1 else ''}" for text, times in Counter(hooks.failed).items()
                ]
                debris = None if course.found_out else self._debris(client, gone_after(wish.url, wish.ttl))
                self._end_if_unwanted()
                whole = history(debris)
                whole.ended = ended
            verdict = judge(whole, rules)
            verdict.failed = len(crew.failures())
            return RunOutcome(
                wish, verdict, whole, guarantees, client.url, way.why_none if wish.strikes else "no faults were wanted",
                notes, self._prefix, life,
            )  # fmt: skip
        finally:
            if hooks is not None:
                hooks.stop()
            crew.kill()
            self._cleaned = self._clean(client)

    def _wait_for_all(self, crew: Crew) -> None:
        until = now() + BEGINS_WITHIN
        while now() < until and not self._over.is_set():
            begun = list(self._folder.glob("history-[0-9]*.log"))
            if sum(1 for path in begun if path.stat().st_size) >= len(crew.workers) or not crew.well():
                return
            time.sleep(0.02)

    def _end_if_unwanted(self) -> None:
        if self._over.is_set():
            raise Interrupted

    def _show(self, elapsed: float) -> None:
        if self._tell is not None:
            ledger = self._ledger
            self._tell(RunProgress(elapsed, self._wish.seconds, self._count(), len(ledger.faults), ledger.doing))

    def _strike(self, striker: Striker, course: Course, plan: Iterator[Blow]) -> None:
        """Blow after blow to the end of the time."""
        wish = self._wish
        over = course.pause(min(3.0, wish.seconds / 5))
        if not wish.strikes:
            course.pause(wish.seconds)
            return
        while not over:
            blow = next(plan)
            # What cannot come to its end any more is not begun.
            if now() + blow.seconds + 0.3 > course.ends:
                over = course.pause(0.5)
            else:
                striker.strike(blow)
                over = course.pause(blow.quiet)

    def _count(self) -> int:
        """Grants so far, by what was written since the last look."""
        for path in self._folder.glob("history-*.log"):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            self._read[path] = self._read.get(path, 0) + len(text)
            self._grants += text.count(b'["g"')
        return self._grants

    def _history(
        self,
        names: Names,
        stalls: Sequence[tuple[float, float]],
        began: float,
        debris: list[str] | None,
    ) -> History:
        # From before the look: what happens while the files are read is not missing in it.
        ended, faults = now(), self._ledger.faults
        return History(
            told.read(self._folder),
            faults,
            {name: registers.fenced(self._folder, name) for name in names.written},
            {name: registers.unfenced(self._folder, name) for name in names.written},
            debris,
            list(stalls),
            began,
            ended,
        )

    def _error_of(self, number: int) -> str:
        text = (self._folder / f"worker-{number}.err").read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "it said nothing"

    def _debris(self, client: Any, life: float) -> list[str] | None:
        """The names that are still claimed when a claim's life has passed since the last worker ended."""
        until = now() + life + 2.0
        while True:
            try:
                left: list[str] | None = client.list(self._prefix)
            except LocklineError:
                left = None
            if left == [] or now() > until or self._over.wait(0.1):
                return left

    def _clean(self, client: Any) -> bool:
        """Remove what workers that were killed left in the lines, instead of leaving it to its ttl; whether nothing is left."""
        until = now() + CLEANED_WITHIN
        with contextlib.suppress(LocklineError):
            while left := client.list(self._prefix):
                if now() > until:
                    return False
                for name in left:
                    client.evict(name)
            return True
        return False
