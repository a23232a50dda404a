"""Many who want the same: what a release costs, and who gets his share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..crowd import READY, CrowdTask
from ..locks.face import PublishedLock
from ..servers.proxy import Proxy
from ..stage import PlayedClient, Stage
from ..trace import Kind, TraceEvent
from .face import Failure

WAITERS = 50
PATIENCE = 2.0
"""In ttls of 20 s: when one who waits goes away."""
CHEAP = 8.0
"""Requests per release that are a constant, whatever the number of waiters: let go, be told, look, renew."""
SIGNS_OF_LIFE = 1.5
"""Requests a second by which one who waits keeps its place or its session, whatever is released meanwhile: on ZooKeeper eight proofs
and three pings in a session's ten seconds. A machine that takes longer sees more of them; one who polls sends twenty."""
POLLS = 2.5
"""Requests a second of one who waits while nothing is released, from which on it does not wait but ask: above every sign of life, and
below Lockline on MariaDB, where the first in the line asks 33 times a second, and fifty together some 300 times."""
SHOUTS = 4 * POLLS
"""From here on nobody has to look twice: what a release costs will say it."""
CLEAR = 20
"""Grants that are enough to see a cost that is twice what is bearable."""
WINDOW, WINDOWS = 0.5, 6


def takes_part(lock: type[PublishedLock]) -> str:
    """Who waits has not come to the resource yet."""
    return "a fence takes no part in waiting: see the row without it" if lock.fenced else ""


class AtWork:
    """Crowds that take their turns while the schedule goes on."""

    def __init__(self, crowds: Sequence[tuple[PlayedClient, CrowdTask]]) -> None:
        self._clients = [client for client, _ in crowds]
        for client, turns in crowds:
            client.begin_crowd(turns)
        together = [client for client, turns in crowds if turns.together]
        for client in together:
            client.reaches(READY)
        for client in together:
            client.go_on()
        self._pool = ThreadPoolExecutor(len(crowds))
        self._answers = [self._pool.submit(client.finish) for client in self._clients]

    def waits(self, enough: Callable[[], bool]) -> list[list[float]]:
        """What each of all of them waited for, when all are through or it is enough."""
        try:
            while not all(answer.done() for answer in self._answers):
                if enough():
                    for client in self._clients:
                        client.enough()
                    break
                time.sleep(0.02)
            return [each for answer in self._answers for each in answer.result()]
        finally:
            self._pool.shutdown(wait=False)


def happened(stage: Stage, kind: Kind, but: str = "") -> int:
    """How often it has, so far."""
    return sum(event.kind == kind and event.lane != but for event in stage.trace.events())


def herd(stage: Stage) -> None:
    lines = stage.lines_for("waiters", watched=False)
    a = stage.client("A")
    a.do("acquire", 10.0)
    began = time.monotonic()
    patience = PATIENCE * stage.ttl
    turns = CrowdTask(WAITERS // 2, 0.02, patience, rounds=1, lane=f"the {WAITERS}")
    at_work = AtWork([(stage.crowd_client(f"waiters {number}", lines), turns) for number in range(2)])
    quiet(lines)
    idle = idle_rate(lines)
    before, since = sum(line.requests for line in lines), time.monotonic()

    def requests() -> int:
        return sum(line.requests for line in lines) - before

    def clear() -> bool:
        """Whether it costs twice what is bearable, even if everybody had been waiting all the time."""
        got = happened(stage, "granted", but="A")
        waited = WAITERS * (time.monotonic() - since)
        return CLEAR <= got < WAITERS and requests() > 2 * (CHEAP * got + SIGNS_OF_LIFE * waited)

    a.do("release")
    waits = [wait for each in at_work.waits(clear) for wait in each]
    took = time.monotonic() - since
    got = sum(1 for wait in waits if wait >= 0)
    in_vain = took + since - began > patience and got < WAITERS
    per_release = requests() / max(1, got)
    stage.facts |= {"waiters": WAITERS, "granted": got, "requests per release": round(per_release, 1)}
    stage.facts |= {"seconds": round(took, 2), "asked": round(since - began, 2), "idle": idle}
    waited = sum(max(0.0, abs(wait) - (since - began)) for wait in waits)
    bearable = CHEAP + SIGNS_OF_LIFE * waited / max(1, got)
    stage.figure = f"{per_release:.0f} req." if lines else f"{took / max(1, got) * 1000:.0f} ms"
    # Whoever asks again and again gets it in the end, on a machine that bears it; who waits for a word that never comes does not.
    if per_release > bearable:
        unserved = f", of whom {WAITERS - got} got nothing in {patience:.0f} s" if in_vain else ""
        stage.costly = f"{per_release:.0f} requests per release with {WAITERS} waiters{unserved}"
    elif got < WAITERS:
        stage.stuck = f"{WAITERS - got} of {WAITERS} waiters got nothing in {patience:.0f} s"
    elif idle is not None and idle > POLLS:
        stage.costly = f"{idle * WAITERS:.0f} requests a second by {WAITERS} waiters while nothing is released"


def quiet(lines: list[Proxy]) -> None:
    """Until every waiter has a connection, or ten seconds."""
    until = time.monotonic() + 10
    while lines and lines[0].accepted < WAITERS and time.monotonic() < until:
        time.sleep(0.02)


def idle_rate(lines: list[Proxy]) -> float | None:
    """Requests a second of one who waits while nothing is released, in the quietest window of some: those who are still coming make
    the first ones loud. None where all shout: then what a release costs will say it, and more windows would only say the same."""
    rates: list[float] = []
    while len(rates) < WINDOWS:
        before, since = sum(line.requests for line in lines), time.monotonic()
        time.sleep(WINDOW)
        rates.append((sum(line.requests for line in lines) - before) / (time.monotonic() - since) / WAITERS)
        if rates[-1] <= POLLS:
            break
        if len(rates) > 1 and min(rates) > SHOUTS:
            return None
    return round(min(rates), 1)


HERD = Failure(
    "herd", "herd of 50 waiters", "Fifty wait; the holder lets go, and each takes its turn: how many requests is that per release?", herd,
    {
        "costly": "{costly}: whoever waits asks again and again, or all are woken and one gets it.",
        "safe": "{figure} per release, whatever the number of waiters: only the one whose turn it is hears of it.",
        "stuck for ever": "{stuck}.",
    },
    "A line in order of arrival, and a push to the one whose turn it is.", "docs/road.md#7-everybody-polls", ttl=20.0, crowded=True,
    applies=takes_part,
)  # fmt: skip

NEAR = 7
TURNS = 28
"""So many are played, however long they take: where each is a lottery, somebody is then overtaken three times but once in a hundred
thousand runs."""
HOLD = 0.1
"""Longer than one from far away takes to hear of a release and to ask: it then finds the lock taken by one who is near."""
A_TURN_OR_TWO = 2
"""So often another may have its turn while one waits in a line: it stood there before, and it was back before the request had arrived."""


def starvation(stage: Stage) -> None:
    near_lines, far_lines = stage.lines_for("near", watched=False), stage.lines_for("far", watched=False)
    for line in far_lines:
        line.delay(0.03)
    near, far = stage.crowd_client("near", near_lines), stage.crowd_client("far", far_lines)
    patience = PATIENCE * stage.ttl
    at_work = AtWork([
        (near, CrowdTask(NEAR, HOLD, patience, together=True)), (far, CrowdTask(1, HOLD, patience, together=True))
    ])  # fmt: skip
    everybody = at_work.waits(lambda: happened(stage, "letting go") >= TURNS)
    shares = [sum(1 for wait in each if wait >= 0) for each in everybody]
    longest = max(abs(wait) for each in everybody for wait in each)
    squares = sum(number * number for number in shares)
    index = sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
    passed = overtaken(stage.trace.events())
    stage.facts |= {"grants": shares, "jain": round(index, 3), "longest wait": round(longest, 2), "overtaken": passed}
    stage.figure = f"Jain {index:.2f}"
    if passed > A_TURN_OR_TWO or sum(shares) < TURNS:
        stage.late = longest


def overtaken(events: Sequence[TraceEvent]) -> int:
    """How often, at most, one and the same other had its turn while somebody waited for a single one."""
    since: dict[str, float] = {}
    turns: dict[str, list[float]] = {}
    most = 0
    for event in events:
        if event.kind == "asked":
            since[event.lane] = event.at
        elif event.kind == "granted":
            since.pop(event.lane, None)
            turns.setdefault(event.lane, []).append(event.at)
            most = max([most, *(sum(at > began for at in turns[event.lane]) for began in since.values())])
    return most


STARVATION = Failure(
    "starvation", "starvation", "Eight take turns as fast as they can, one of them from further away: who gets how much?", starvation,
    {
        "late": "Whoever asks at the lucky moment gets it, and the one that just let go is nearest: {figure}, and the longest wait was {late}.",
        "safe": "Everybody got its turn before anybody else had a third, near and far: {figure}.",
    },
    "First come, first served.", "docs/road.md#7-everybody-polls", ttl=20.0,
    applies=takes_part,
)  # fmt: skip

ALL = [HERD, STARVATION]
