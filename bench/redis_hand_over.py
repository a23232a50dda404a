"""Where the time goes between one holder's release and the next one's body, and whether it pays to stay awake for an answer.

python bench/redis_hand_over.py [--seconds 2] [--rounds 6] [--processes 16] [--only stages costs awake]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from crowd import contended, uncontended
from redis_limits import hand_over_locker, own_requests_locker
from redis_locks import HAND_OVER, cpu, lockline_locker, redis_py_locker
from report import Report, percentile

import lockline
from lockline.backends.redis.scripts import LEAVE
from lockline.backends.redis.subscription import BlockingSubscriptions
from lockline.backends.resp import connection_blocking
from lockline.backends.resp.connection_blocking import Spin
from tests.servers.redis import RedisServer, a_redis

EACH_WAY = 0.0005

Run = dict[str, float]

# -- where the time goes ----------------------------------------------------------------------------


class Turn(NamedTuple):
    """One hold, on the clock that all processes of a machine share."""

    token: int
    heard: float
    """The message that brought it is here, and this process is awake; 0 if there was none."""
    got: float
    left: float
    sent: float
    """The kernel has the request to leave."""


class Watched:
    """Notes in this process when a request was sent and when a message was there, in the calls of the library itself."""

    def __init__(self) -> None:
        self.sent: list[float] = []
        self.heard = 0.0
        look, hear = Spin.look, BlockingSubscriptions._hear

        def noted_look(spin: Spin, attempt: Any) -> Any:
            self.sent.append(time.monotonic())
            return look(spin, attempt)

        def noted_hear(subscriptions: BlockingSubscriptions, one: Any) -> Any:
            self.heard = time.monotonic()
            return hear(subscriptions, one)

        Spin.look = noted_look  # type: ignore[method-assign,assignment]
        BlockingSubscriptions._hear = noted_hear  # type: ignore[method-assign,assignment]


def take_turns(port: int, start: float, seconds: float, pipe: Any) -> None:
    watched = Watched()
    turns = []
    with lockline.connect(f"redis://127.0.0.1:{port}") as client:
        lock = client.lock("profile")
        while time.monotonic() < start + seconds:
            asked = time.monotonic()
            with lock as lease:
                got = time.monotonic()
                token = lease.token
                heard = watched.heard if watched.heard > asked else 0.0
                watched.sent.clear()
                left = time.monotonic()
            turns.append(Turn(token, heard, got, left, watched.sent[0]))
    pipe.send([tuple(turn) for turn in turns])


def stages(server: RedisServer, processes: int, seconds: float) -> list[dict[str, object]]:
    """The way from a release to the next body, piece by piece: medians of all hand-overs by message."""
    server.command("FLUSHALL")
    server.command("CONFIG", "SET", "slowlog-max-len", 2000)
    server.command("CONFIG", "SET", "slowlog-log-slower-than", 0)
    start = time.monotonic() + 0.3
    context = multiprocessing.get_context("fork")
    pipes, children = [], []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        child = context.Process(target=take_turns, args=(server.port, start, seconds, theirs), daemon=True)
        child.start()
        pipes.append(ours)
        children.append(child)
    turns = sorted(Turn(*turn) for pipe in pipes for turn in pipe.recv())
    for child in children:
        child.join()
    server.command("CONFIG", "SET", "slowlog-log-slower-than", -1)
    with server.client() as client:
        leaves = [
            each["duration"] for each in client.slowlog_get(2000) if LEAVE.sha.encode() in _bytes(each["command"])
        ]
    script = _median([float(duration) for duration in leaves]) / 1e6
    pairs = [(one, after) for one, after in pairwise(turns) if after.heard > one.sent]
    parts = {
        "Python: from the end of the body to the request in the kernel": [one.sent - one.left for one, _ in pairs],
        "server: the script that hands over": [script] * len(pairs),
        "kernel, server's loop, wake-ups": [after.heard - one.sent - script for one, after in pairs],
        "Python: from the message to the next body": [after.got - after.heard for _, after in pairs],
        "in all": [after.got - one.left for one, after in pairs],
    }
    return [{"": part, "µs": _median(times) * 1e6} for part, times in parts.items()]


def _bytes(command: Any) -> bytes:
    return command if isinstance(command, bytes) else str(command).encode()


def _median(values: list[float]) -> float:
    return percentile(sorted(values), 0.5)


def costs(server: RedisServer, rounds: int, seconds: float, processes: int) -> list[dict[str, object]]:
    """What a grant costs in a crowd, on both sides of the wire: the best round of each."""
    peers = {
        HAND_OVER: hand_over_locker,
        "Lockline's requests on bare sockets": own_requests_locker,
        "Lockline": lockline_locker,
        "redis-py": redis_py_locker,
    }
    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for peer, opener in peers.items():
            server.command("FLUSHALL")
            run = contended(
                opener, str(server.port), processes, 0.0, seconds, method="fork",
                counted=lambda: {"server": cpu(server) * 1e6},
            )  # fmt: skip
            best[peer] = max(best.get(peer, run), run, key=lambda each: float(each["grants_per_s"]))
    return [
        {
            "": peer,
            "grants/s": run["grants_per_s"],
            "jain": run["jain"],
            "client: CPU µs a grant": run["cpu_ms"] * 1e3,
            "server: CPU µs a grant": run["server_per_grant"],
        }
        for peer, run in best.items()
    ]


# -- awake or asleep ----------------------------------------------------------------------------------


@contextmanager
def far(server: RedisServer) -> Iterator[str]:
    """The port of the same server, one millisecond away."""
    program = [sys.executable, str(Path(__file__).parent / "hot.py"), "delay", str(server.port), str(EACH_WAY)]
    proxy = subprocess.Popen(program, stdout=subprocess.PIPE)
    assert proxy.stdout is not None
    try:
        yield proxy.stdout.readline().decode().strip()
    finally:
        proxy.kill()
        proxy.wait()


def awake(server: RedisServer, rounds: int, seconds: float, processes: int) -> list[dict[str, object]]:
    """The median round of each, with the look for an answer before sleeping and without it; who comes first changes from round to round."""
    usual = connection_blocking.MOMENT
    ways = [("awake", usual), ("asleep", 0.0)]
    runs: dict[tuple[str, str], list[Run]] = {}
    with far(server) as far_port:
        near = str(server.port)
        trials: dict[str, Callable[[], Run]] = {
            "alone, near": lambda: _alone(near, 2000),
            "alone, 1 ms away": lambda: _alone(far_port, 200),
            f"alone, near, beside {os.cpu_count()} busy processes": lambda: _beside_others(near, seconds),
            f"{processes} processes, near": lambda: _crowd(server, near, processes, seconds),
            f"{processes} processes, 1 ms away": lambda: _crowd(server, far_port, processes, seconds),
        }
        for number in range(rounds):
            for how, moment in ways if number % 2 else reversed(ways):
                connection_blocking.MOMENT = moment
                for what, trial in trials.items():
                    runs.setdefault((what, how), []).append(trial())
    connection_blocking.MOMENT = usual
    return [{"": f"{what}, {how}", **_middle(runs[what, how])} for what in trials for how, _ in ways]


def _middle(runs: list[Run]) -> dict[str, float]:
    """The median of each figure, and the range of what counts most."""
    row = {what: _median([run[what] for run in runs]) for what in runs[0]}
    grants = [run["grants/s"] for run in runs]
    return {**row, "least": min(grants), "most": max(grants)}


def _alone(port: str, count: int) -> Run:
    with lockline_locker(port) as locker:
        uncontended({"": locker}, 1, 50)
        spent = time.process_time()
        took = uncontended({"": locker}, 1, count)[""]
        return {"grants/s": 1 / took, "CPU µs a grant": (time.process_time() - spent) / count * 1e6}


def _beside_others(port: str, seconds: float) -> Run:
    """One who takes and gives back while every core has something else to do; and how much of that gets done."""
    context = multiprocessing.get_context("fork")
    turns = [context.Value("L", 0, lock=False) for _ in range(os.cpu_count() or 1)]
    busy = [context.Process(target=_count, args=(one,), daemon=True) for one in turns]
    for one in busy:
        one.start()
    try:
        with lockline_locker(port) as locker:
            uncontended({"": locker}, 1, 50)
            done, spent, began = sum(one.value for one in turns), time.process_time(), time.perf_counter()
            grants = 0
            while time.perf_counter() < began + seconds:
                with locker():
                    grants += 1
            took = time.perf_counter() - began
            return {
                "grants/s": grants / took,
                "CPU µs a grant": (time.process_time() - spent) / grants * 1e6,
                "the others: thousand turns/s": (sum(one.value for one in turns) - done) / took / 1e3,
            }
    finally:
        for one in busy:
            one.kill()
            one.join()


def _count(turns: Any) -> None:
    while True:
        for _ in range(1000):
            pass
        turns.value += 1000


def _crowd(server: RedisServer, port: str, processes: int, seconds: float) -> Run:
    server.command("FLUSHALL")
    run = contended(lockline_locker, port, processes, 0.0, seconds, method="fork")
    return {"grants/s": run["grants_per_s"], "CPU µs a grant": run["cpu_ms"] * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--only", nargs="*", default=["stages", "costs", "awake"])
    asked = parser.parse_args()
    report = Report("redis_hand_over", {name: importlib.metadata.version(name) for name in ("lockline", "redis")})
    with a_redis() as server:
        for processes in (2, asked.processes) if "stages" in asked.only else ():
            rows = stages(server, processes, asked.seconds)
            limit = contended(hand_over_locker, str(server.port), processes, 0.0, asked.seconds, method="fork")
            rows.append({"": HAND_OVER + ", in all", "µs": limit["hand_over_ms"] * 1e3})
            report.table(f"from one body to the next, {processes} processes, nothing inside", rows)
        if "costs" in asked.only:
            rows = costs(server, asked.rounds, asked.seconds, asked.processes)
            report.table(f"what a grant costs, {asked.processes} processes, nothing inside", rows)
        if "awake" in asked.only:
            report.table("awake or asleep", awake(server, asked.rounds, asked.seconds, asked.processes))
    report.write()


if __name__ == "__main__":
    main()
