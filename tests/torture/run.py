"""The machine on one ground, with deeds to its servers beside its own faults."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from lockline.lab.verify.machine import Machine, RunOutcome, RunWish
from lockline.lab.verify.systems import life_after_death
from lockline.lab.verify.verdict import PromiseFinding
from lockline.runtime.clock import now

from .ground import Ground

PAUSES = (1.0, 4.0)
"""Between two deeds, in seconds."""
QUIET = 12.0
"""The same when each kind has been done: only of a quiet time can it be said who was late, and who was overtaken."""
WELL_WITHIN = 60.0
AFTER = 3.0
"""So long after a deed, beyond a claim's life, elections and reconnects may go on."""
TTL = 2.0


@dataclass(frozen=True)
class Tortured:
    """What came of it."""

    ground: Ground
    outcome: RunOutcome
    problems: list[str]
    """Deeds that did not come to their end."""

    @property
    def wrong(self) -> list[PromiseFinding]:
        """Promises that were broken and are made."""
        return [finding for finding in self.outcome.verdict.broken if finding.promise not in self.ground.forgiven]


def settled(ground: Ground, over: threading.Event) -> bool:
    """Wait until all has been well for a while; False if it does not come to that."""
    began = since = now()
    while not over.is_set():
        if not ground.well():
            since = now()
        if now() - since >= ground.stays_well:
            return True
        if now() - began > WELL_WITHIN:
            return False
        over.wait(0.1)
    return True


def torture(
    ground: Ground,
    seconds: float,
    seed: int,
    workers: int = 8,
    tell: Callable[[str], None] = print,
    *,
    least: int = 100,
) -> Tortured:
    """Do to this ground what can be done, for so long."""
    machine = Machine(
        RunWish(
            ground.url,
            seconds=seconds,
            workers=workers,
            seed=seed,
            ttl=TTL,
            strikes=ground.strikes,
            firm=not ground.forgiven,
            least=least,
        )
    )
    dice, over, problems = random.Random(f"{seed}/{ground.name}"), threading.Event(), list[str]()
    life = life_after_death(ground.url, TTL)

    def work() -> None:
        machine.working.wait(120)
        queue: list[str] = []
        ends = now() + seconds - 6.0
        pause = dice.uniform(*PAUSES)
        while not over.wait(pause) and now() < ends and machine.working.is_set():
            if not queue:
                queue = sorted(ground.deeds)
                dice.shuffle(queue)
            kind = queue.pop()
            fault = machine.begin(f"server: {kind}")
            try:
                ground.deeds[kind](dice)
            except Exception as problem:
                problems.append(f"{kind}: {type(problem).__name__}: {problem}")
                tell(f"  {ground.name}: {problems[-1]}")
            if not settled(ground, over):
                problems.append(f"{kind}: its servers have not come to terms within {WELL_WITHIN:.0f} s")
            machine.end(fault, life + AFTER)
            pause = dice.uniform(*PAUSES) if queue else life + AFTER + QUIET

    thread = threading.Thread(target=work, name="deeds", daemon=True)
    thread.start()
    try:
        outcome = machine.run()
    finally:
        over.set()
        thread.join(60)
    return Tortured(ground, outcome, problems)
