"""Many who want the same: what a release costs, and who gets his share."""

from __future__ import annotations

import threading
import time

from ..locks.face import PublishedLock
from ..servers.proxy import Proxy
from ..stage import Client, Stage
from .face import Failure

WAITERS = 50
CHEAP = 8.0
"""Requests per release that are a constant, whatever the number of waiters: let go, be told, look, renew."""
SIGNS_OF_LIFE = 1.5
"""Requests a second by which one who waits keeps its place or its session, whatever is released meanwhile: on ZooKeeper eight proofs
and three pings in a session's ten seconds. A machine that takes longer sees more of them; one who polls sends twenty."""
POLLS = 2.5
"""Requests a second of one who waits while nothing is released, from which on it does not wait but ask: above every sign of life, and
below Lockline on MariaDB, where the first in the line asks 33 times a second, and fifty together some 300 times."""
WINDOW, WINDOWS = 0.5, 6
FAIR = 0.9
"""Jain's index: 1 is everybody's same share, 1/n is one who has it all."""


def takes_part(lock: type[PublishedLock]) -> str:
    """Who waits has not come to the resource yet."""
    return "a fence takes no part in waiting: see the row without it" if lock.fenced else ""


def herd(stage: Stage) -> None:
    lines = stage.lines_for("waiters", watched=False)
    a = stage.client("A")
    a.do("acquire", 10.0)
    clients = [stage.crowd_client(f"waiters {number}", lines) for number in range(2)]
    began = time.monotonic()
    for client in clients:
        client.begin_crowd(WAITERS // 2, rounds=1, seconds=40.0, hold=0.02)
    quiet(lines)
    idle = rate_while_nothing_happens(lines) / WAITERS
    before, since = sum(line.requests for line in lines), time.monotonic()
    a.do("release")
    waits = [wait for client in clients for each in client.finish() for wait in each]
    took = time.monotonic() - since
    got = sum(1 for wait in waits if wait >= 0)
    requests = sum(line.requests for line in lines) - before
    per_release = requests / max(1, got)
    stage.facts |= {"waiters": WAITERS, "granted": got, "requests per release": round(per_release, 1)}
    stage.facts |= {"seconds": round(took, 2), "asked": round(since - began, 2), "idle": round(idle, 1)}
    waited = sum(max(0.0, abs(wait) - (since - began)) for wait in waits)
    bearable = CHEAP + SIGNS_OF_LIFE * waited / max(1, got)
    stage.figure = f"{per_release:.0f} req." if lines else f"{took / max(1, got) * 1000:.0f} ms"
    # Whoever asks again and again gets it in the end, on a machine that bears it; who waits for a word that never comes does not.
    if got and per_release > bearable:
        unserved = f", of whom {WAITERS - got} got nothing in 40 s" if got < WAITERS else ""
        stage.costly = f"{per_release:.0f} requests per release with {WAITERS} waiters{unserved}"
    elif got < WAITERS:
        stage.stuck = f"{WAITERS - got} of {WAITERS} waiters got nothing in 40 s"
    elif idle > POLLS:
        stage.costly = f"{idle * WAITERS:.0f} requests a second by {WAITERS} waiters while nothing is released"


def quiet(lines: list[Proxy]) -> None:
    """Until every waiter has a connection, or ten seconds."""
    until = time.monotonic() + 10
    while lines and lines[0].accepted < WAITERS and time.monotonic() < until:
        time.sleep(0.02)


def rate_while_nothing_happens(lines: list[Proxy]) -> float:
    """Requests a second of all who wait, in the quietest window of some: those who are still coming make the first ones loud."""
    rates: list[float] = []
    while len(rates) < WINDOWS and min(rates, default=POLLS * WAITERS + 1) > POLLS * WAITERS:
        before, since = sum(line.requests for line in lines), time.monotonic()
        time.sleep(WINDOW)
        rates.append((sum(line.requests for line in lines) - before) / (time.monotonic() - since))
    return min(rates)


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
SECONDS = 4.0
HOLD = 0.1
"""Longer than one from far away takes to hear of a release and to ask: it then finds the lock taken by one who is near. And long enough
that there are few turns: where each is a lottery, the shares of a few turns differ; in a line they do not, however few there are."""
A_TURN_OR_TWO = 2
"""Between the shares of those who stand in a line: who began first, and who came back a little too late for one more round."""


def starvation(stage: Stage) -> None:
    near_lines, far_lines = stage.lines_for("near", watched=False), stage.lines_for("far", watched=False)
    for line in far_lines:
        line.delay(0.03)
    near, far = stage.crowd_client("near", near_lines), stage.crowd_client("far", far_lines)
    seconds = SECONDS * stage.ttl / STARVATION.ttl
    threads = []
    waits: dict[str, list[list[float]]] = {}

    def ask(name: str, client: Client, count: int) -> None:
        client.begin_crowd(count, rounds=100_000, seconds=seconds, hold=HOLD)
        waits[name] = client.finish()

    for name, client, count in (("near", near, NEAR), ("far", far, 1)):
        threads.append(threading.Thread(target=ask, args=(name, client, count)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    everybody = [each for name in ("near", "far") for each in waits[name]]
    grants = [sum(1 for wait in each if wait >= 0) for each in everybody]
    longest = max((abs(wait) for each in everybody for wait in each), default=seconds)
    squares = sum(number * number for number in grants)
    index = sum(grants) ** 2 / (len(grants) * squares) if squares else 0.0
    stage.facts |= {"grants": grants, "jain": round(index, 3), "longest wait": round(longest, 2)}
    stage.figure = f"Jain {index:.2f}"
    mean = sum(grants) / len(grants)
    if max(grants) - min(grants) > A_TURN_OR_TWO and (index < FAIR or min(grants) < mean / 4):
        stage.late = longest


STARVATION = Failure(
    "starvation", "starvation", "Eight take turns as fast as they can, one of them from further away: who gets how much?", starvation,
    {
        "late": "Whoever asks at the lucky moment gets it, and the one that just let go is nearest: {figure}, and the longest wait took all of the {late} there were.",
        "safe": "Everybody got the same share, near and far: {figure}.",
    },
    "First come, first served.", "docs/road.md#7-everybody-polls", ttl=20.0, crowded=True,
    applies=takes_part,
)  # fmt: skip

ALL = [HERD, STARVATION]
