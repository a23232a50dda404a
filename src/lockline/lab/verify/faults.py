"""What is done to a run, from outside: the schedule by a seed, and the hand that does it."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...runtime.clock import now
from .crew import Crew, CrewWorker
from .history import Fault
from .ledger import Ledger
from .proxy import FaultProxy

GRACE: Final = 1.0
"""So long after a fault has ended its traces may be felt: connections are made again, requests repeated."""


@dataclass(frozen=True, slots=True)
class Blow:
    """One entry of the schedule: what, for how long, and the quiet after it."""

    kind: str
    seconds: float
    quiet: float


NETWORK: Final = (
    "cut",
    "delay",
    "lose replies",
    "lose requests",
    "late replies",
    "black hole",
    "long black hole",
    "refuse",
)
WORKERS: Final = ("freeze a holder", "freeze", "kill", "step a clock")


def schedule(seed: int, ttl: float, life: float, network: bool) -> Iterator[Blow]:
    """Blow after blow, for ever; each kind comes once before any comes again.

    A holder is killed first, and then one who waits, each with quiet after it: whether the next one holds in time can be said of
    a quiet time only.
    """
    dice = random.Random(seed)
    lengths = {
        "long black hole": 1.3 * ttl,
        "freeze a holder": 1.3 * ttl,
        "black hole": 0.5 * ttl,
        "late replies": 0.5 * ttl,
    }
    while True:
        yield Blow("kill a holder", 0.0, life + 2.5)
        yield Blow("kill a waiter", 0.0, life + 2.5)
        kinds = [*WORKERS, *(NETWORK if network else ())]
        dice.shuffle(kinds)
        for number, kind in enumerate(kinds, 1):
            length = lengths.get(kind, 0.0 if kind in ("cut", "kill", "step a clock") else dice.uniform(0.3, 0.8) * ttl)
            quiet = dice.uniform(0.2, 0.8)
            yield Blow(kind, length, quiet if number < len(kinds) else life + GRACE + 0.2)


class Striker:
    """Does what the schedule says, and notes it."""

    def __init__(
        self,
        crew: Crew,
        proxies: Sequence[FaultProxy],
        ledger: Ledger,
        *,
        seed: int,
        life: float,
        pause: Callable[[float], bool],
    ) -> None:
        self._crew = crew
        self._proxies = proxies
        self._ledger = ledger
        self._dice = random.Random(f"{seed}/whom")
        self._life = life
        """How long what a dead client claimed may still stand in the store."""
        self._pause = pause
        """Waits so long; True if the run ends meanwhile."""

    def strike(self, blow: Blow) -> None:
        """Do it, to whom the dice say, and wait until it is over."""
        if blow.kind in NETWORK:
            self._network(blow)
        else:
            self._worker(blow)

    def _note(self, kind: str, felt: float, worker: int, detail: str = "") -> None:
        """It took no time, and may be felt so long."""
        at = now()
        self._ledger.note(Fault(kind, at, at, worker, detail, at + felt))

    def _network(self, blow: Blow) -> None:
        # All servers at once, or one of several.
        struck = list(self._proxies) if self._dice.random() < 0.4 else [self._dice.choice(self._proxies)]
        fault = self._ledger.begin(blow.kind, detail=f"{len(struck)} of {len(self._proxies)}, {blow.seconds:.1f} s")
        try:
            for proxy in struck:
                match blow.kind:
                    case "cut":
                        proxy.cut()
                    case "delay":
                        proxy.delay(blow.seconds / 4)
                    case "lose replies":
                        proxy.lose_replies()
                    case "lose requests":
                        proxy.lose_requests()
                    case "late replies":
                        proxy.hold_replies()
                    case "refuse":
                        proxy.refuse()
                    case _:
                        proxy.hold()
            self._pause(blow.seconds)
        finally:
            for proxy in struck:
                proxy.heal()
            self._ledger.end(fault, self._life + GRACE)

    def _worker(self, blow: Blow) -> None:
        well = self._crew.well()
        if not well:
            return
        worker = self._dice.choice(well)
        match blow.kind:
            case "kill a holder" | "kill a waiter" | "kill":
                order = {"kill a holder": "die", "kill a waiter": "die waiting"}.get(blow.kind)
                itself = order is not None and self._let_strike(worker, order)
                worker.send(signal.SIGKILL)
                worker.process.wait()
                self._killed(blow.kind if itself else "kill", worker)
            case "step a clock":
                # One is behind from now on, another ahead.
                for sign, one in zip((-1, 1), self._dice.sample(well, min(2, len(well))), strict=False):
                    offset = sign * self._dice.uniform(10, 86400)
                    one.tell(f"clock {offset:.3f}")
                    self._note(blow.kind, 0.0, one.number, f"{offset:+.0f} s")
            case _:
                itself = blow.kind == "freeze a holder" and self._let_strike(worker, "freeze")
                kind = "freeze a holder" if itself else "freeze"
                fault = self._ledger.begin(kind, worker.number, f"{blow.seconds:.1f} s")
                worker.send(signal.SIGSTOP)
                self._pause(blow.seconds)
                worker.send(signal.SIGCONT)
                self._ledger.end(fault, GRACE)

    def _let_strike(self, worker: CrewWorker, order: str) -> bool:
        """Have the worker do it itself, in the middle of a hold; whether it did. One that holds nothing for long is told to forget it."""
        worker.tell(order)
        if self._crew.wait_stopped(worker):
            return True
        worker.tell("")
        return False

    def _killed(self, kind: str, worker: CrewWorker) -> None:
        self._note(kind, self._life, worker.number)
        self._crew.replace(worker)

    def calm(self) -> None:
        """Whatever goes on, end it."""
        for proxy in self._proxies:
            proxy.heal()
