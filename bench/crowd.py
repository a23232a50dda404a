"""One lock, alone and in a crowd of processes: how fast, how fair, how long the waits."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

from report import jain, percentile

Locker = Callable[[], AbstractContextManager[Any]]
Opener = Callable[[str], AbstractContextManager[Locker]]
"""Opens one peer's way to lock at a place; a function of a module, so that another process can have it."""

STUCK = 30.0
WARM_UP = 5
"""How often each has it before the clock runs: statements are prepared and scripts loaded by then, whoever's they are."""


def uncontended(lockers: Mapping[str, Locker], rounds: int, count: int) -> dict[str, float]:
    """Seconds for one acquire and release, the best round of each; they take turns, so that all meet the same machine."""
    best = dict.fromkeys(lockers, float("inf"))
    for _ in range(rounds):
        for peer, locker in lockers.items():
            began = time.perf_counter()
            for _ in range(count):
                with locker():
                    pass
            best[peer] = min(best[peer], (time.perf_counter() - began) / count)
    return best


def contended(
    opener: Opener,
    place: str,
    processes: int,
    hold: float,
    seconds: float,
    *,
    method: str = "spawn",
    counted: Callable[[], Mapping[str, float]] = dict,
) -> dict[str, Any]:
    """Grants per second, fairness, waits, and how much of what is `counted` a grant cost; or the problem of a peer."""
    context: Any = multiprocessing.get_context(method)
    pipes: list[Connection] = []
    children = []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        child = context.Process(target=_member, args=(opener, place, hold, seconds, theirs), daemon=True)
        child.start()
        pipes.append(ours)
        children.append(child)
    try:
        answers = [_answer(pipe, STUCK) for pipe in pipes]
        before = counted()
        if set(answers) == {"ready"}:
            start = time.monotonic() + 0.2
            for pipe in pipes:
                pipe.send(start)
            answers = [_answer(pipe, seconds + STUCK) for pipe in pipes]
        after = counted()
    finally:
        for child in children:
            child.join(1)
            child.kill()
    problems = [answer for answer in answers if isinstance(answer, str)]
    if problems:
        return {"grants_per_s": 0.0, "problem": next(word for word in problems if word != "ready")}
    waits = sorted(wait for answer in answers for wait in answer[0])
    grants = len(waits)
    period = max(answer[2] for answer in answers) / grants
    return {
        "grants_per_s": 1 / period,
        "jain": jain([len(answer[0]) for answer in answers]),
        "p50_ms": percentile(waits, 0.5) * 1e3,
        "p99_ms": percentile(waits, 0.99) * 1e3,
        "longest_ms": waits[-1] * 1e3,
        "hand_over_ms": (period - sum(answer[1] for answer in answers) / grants) * 1e3,
        "p99_of_fair_turn": percentile(waits, 0.99) / (processes * period),
        "cpu_ms": sum(answer[3] for answer in answers) / grants * 1e3,
        **{f"{what}_per_grant": (after[what] - before[what]) / grants for what in after},
    }


def _answer(pipe: Connection, patience: float) -> Any:
    return pipe.recv() if pipe.poll(patience) else "stuck"


def _member(opener: Opener, place: str, hold: float, seconds: float, pipe: Connection) -> None:
    """Take the lock again and again; report each wait, the time inside, and what it took."""
    try:
        with opener(place) as locker:
            for _ in range(WARM_UP):
                with locker():
                    pass
            pipe.send("ready")
            start = pipe.recv()
            while time.monotonic() < start:
                time.sleep(0.0005)
            waits: list[float] = []
            inside = 0.0
            spent = time.process_time()
            end = start + seconds
            while (asked := time.monotonic()) < end:
                with locker():
                    got = time.monotonic()
                    if hold:
                        time.sleep(hold)
                    inside += time.monotonic() - got
                # What comes after the end is not the crowd's: those who are done take the machine to go.
                waits.append(min(got, end) - asked)
            pipe.send((waits, inside, time.monotonic() - start, time.process_time() - spent))
    except Exception as problem:
        pipe.send(f"{type(problem).__name__}: {problem}"[:120])
