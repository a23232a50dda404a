"""The machine: workers on the user's store, faults from outside, a witness beside them, and everything cleaned up after."""

from __future__ import annotations

import contextlib
import math
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ...errors import ConfigError, LocklineError
from ...guarantees import Guarantees
from ...runtime.clock import now
from . import history as told
from . import registers
from .crew import Crew
from .faults import Hooks, Striker, schedule
from .history import Fault, History
from .judge import Rules, judge
from .plan import Names, Settings
from .stalls import Stalls
from .systems import DIRECT, Way, gone_after, life_after_death, way_to
from .verdict import Verdict
from .witness import Witness
from .worker import a_client

PREFIX: Final = "lockline-verify/"
"""What every name of a run begins with, before what is its own."""
BEGINS_WITHIN: Final = 30.0
"""So long the workers are waited for until each has done something."""
TICK: Final = 0.25
CLEANED_WITHIN: Final = 30.0


@dataclass(frozen=True, slots=True)
class Wish:
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
    """Somebody wanted the run to end before its time; nothing of it is left."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    elapsed: float
    seconds: float
    grants: int
    faults: int
    doing: str


@dataclass(slots=True)
class Outcome:
    """What a run was, and what came of it."""

    wish: Wish
    verdict: Verdict
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

    def __init__(self, wish: Wish, tell: Callable[[Progress], None] | None = None) -> None:
        self._wish = wish
        self._tell = tell
        self._over = threading.Event()
        self._prefix = f"{PREFIX}{secrets.token_hex(4)}/"
        self._folder = Path(tempfile.mkdtemp(prefix="lockline-verify-"))
        self._extra: list[Fault] = []
        self._grants = 0
        self.working = threading.Event()
        """Set while the workers are at it and anything may be done to the store."""
        self.started = False
        """Whether there is anything that has to be ended."""
        self._read: dict[Path, int] = {}

    def note(self, fault: Fault) -> None:
        """Something was done to the run from elsewhere."""
        self._extra.append(fault)

    def begin(self, kind: str) -> Fault:
        """Something is being done to the run from elsewhere, and nobody knows for how long."""
        fault = Fault(kind, now(), now(), felt=math.inf)
        self.note(fault)
        return fault

    def end(self, fault: Fault, felt: float) -> None:
        """It is over, and may be felt so much longer."""
        at = now()
        self._extra[self._extra.index(fault)] = replace(fault, ended=at, felt=at + felt)

    def stop(self) -> None:
        """End now, without a verdict: `run` raises Interrupted."""
        self._over.set()

    def run(self) -> Outcome:
        """From the first contact to the verdict; whatever happens, no worker, file or claim is left."""
        wish = self._wish
        try:
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
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _make_contact(self, client: Any, settings: Settings) -> Names:
        """Take and give back one lock: what is wrong with the store is told here, before anything is started."""
        probe = f"{self._prefix}probe"
        client.lock(probe, ttl=settings.ttl).acquire(timeout=10).release()
        try:
            client.semaphore(probe, limit=2, ttl=settings.ttl).acquire(timeout=10).release()
        except ConfigError:
            return Names(self._prefix, shares=False)
        return Names(self._prefix)

    def _with(self, client: Any, settings: Settings, names: Names, way: Way) -> Outcome:
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
                began = now()
                hooks = Hooks(wish.hooks, wish.every, self.note)
                striker = Striker(crew, way.proxies, wish.seed, life, self._pause(began))

                def history(debris: list[str] | None = None) -> History:
                    faults = [*striker.faults, *self._extra]
                    return self._history(names, faults, stalls.samples, began, debris)

                self.working.set()
                found_out = self._strike(striker, life, began, lambda: bool(judge(history(), rules).broken))
                self.working.clear()
                hooks.stop()
                striker.calm()
                if self._over.is_set():
                    raise Interrupted
                if found_out:
                    crew.kill()
                late = crew.stop(within=settings.timeout + 15)
                ended = now()
                notes += [f"worker {number} did not come to its end and was killed" for number in late]
                notes += [
                    f"worker {number} ended with {code}: {self._error_of(number)}"
                    for number, code in crew.failures().items()
                ]
                notes += hooks.failed
                debris = None if found_out else self._debris(client, gone_after(wish.url, wish.ttl))
                whole = history(debris)
                whole.ended = ended
            return Outcome(
                wish, judge(whole, rules), whole, guarantees, client.url, way.why_none if wish.strikes else "no faults were wanted",
                notes, self._prefix, life,
            )  # fmt: skip
        finally:
            if hooks is not None:
                hooks.stop()
            crew.kill()
            self._clean(client)

    def _wait_for_all(self, crew: Crew) -> None:
        until = now() + BEGINS_WITHIN
        while now() < until and not self._over.is_set():
            begun = list(self._folder.glob("history-[0-9]*.log"))
            if sum(1 for path in begun if path.stat().st_size) >= len(crew.workers) or not crew.well():
                return
            time.sleep(0.02)

    def _pause(self, began: float) -> Callable[[float], bool]:
        """Waits so long, but not beyond the end of the run, and says how far it is; True when the run is over."""
        ends = began + self._wish.seconds
        self._show: Callable[[], None] = lambda: None

        def pause(seconds: float) -> bool:
            until = min(now() + seconds, ends)
            while (left := until - now()) > 0 and not self._over.is_set():
                self._show()
                self._over.wait(min(left, TICK))
            return self._over.is_set() or now() >= ends

        return pause

    def _strike(self, striker: Striker, life: float, began: float, broken: Callable[[], bool]) -> bool:
        """Blow after blow to the end of the time; whether it ended before, because a promise was found broken."""
        wish = self._wish

        def show() -> None:
            if self._tell is not None:
                faults = len(striker.faults) + len(self._extra)
                self._tell(Progress(now() - began, wish.seconds, self._count(), faults, striker.doing))

        self._show = show
        pause = striker._pause
        plan: Iterator[Any] = schedule(wish.seed, wish.ttl, life, bool(striker._proxies)) if wish.strikes else iter(())
        over = pause(min(3.0, wish.seconds / 5))
        looked = now()
        while not over:
            blow = next(plan, None)
            if blow is None:
                over = pause(2.0)
            # What cannot come to its end any more is not begun.
            elif now() + blow.seconds + 0.3 > began + wish.seconds:
                over = pause(0.5)
            else:
                striker.strike(blow)
                over = pause(blow.quiet)
            if wish.until_broken and now() - looked > 3.0:
                if broken():
                    return True
                looked = now()
        return False

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
        faults: Sequence[Fault],
        stalls: Sequence[tuple[float, float]],
        began: float,
        debris: list[str] | None,
    ) -> History:
        return History(
            told.read(self._folder),
            sorted(faults, key=lambda fault: fault.begun),
            {name: registers.fenced(self._folder, name) for name in names.written},
            {name: registers.unfenced(self._folder, name) for name in names.written},
            debris,
            list(stalls),
            began,
            now(),
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
            if left == [] or now() > until:
                return left
            time.sleep(0.1)

    def _clean(self, client: Any) -> None:
        """Remove what workers that were killed left in the lines, instead of leaving it to its ttl."""
        until = now() + CLEANED_WITHIN
        with contextlib.suppress(LocklineError):
            while (left := client.list(self._prefix)) and now() < until:
                for name in left:
                    client.evict(name)
