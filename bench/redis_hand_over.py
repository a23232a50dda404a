"""Where the time goes between one holder's release and the next one's body, and whether it pays to stay awake for an answer.

python bench/redis_hand_over.py [--seconds 2] [--rounds 3] [--processes 16]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from crowd import contended, uncontended
from redis_limits import hand_over_locker
from redis_locks import HAND_OVER, lockline_locker
from report import Report, percentile

import lockline
from lockline.backends.redis.scripts import LEAVE
from lockline.backends.redis.subscription import BlockingSubscriptions
from lockline.backends.resp import connection_blocking
from lockline.backends.resp.connection_blocking import Spin
from tests.servers.redis import RedisServer, a_redis

EACH_WAY = 0.0005

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
    """The best round of each, with the look for an answer before sleeping and without it."""
    usual = connection_blocking.MOMENT
    best: dict[tuple[str, str, str], dict[str, object]] = {}
    with far(server) as far_port:
        for _ in range(rounds):
            for where, port in (("near", str(server.port)), ("1 ms away", far_port)):
                for moment in (usual, 0.0):
                    connection_blocking.MOMENT = moment
                    how = "awake" if moment else "asleep"
                    for what, run in (
                        ("alone", _alone(port, 2000 if where == "near" else 300)),
                        (f"{processes} processes", _crowd(server, port, processes, seconds)),
                    ):
                        key = (what, where, how)
                        if key not in best or float(str(run["grants/s"])) > float(str(best[key]["grants/s"])):
                            best[key] = run
    connection_blocking.MOMENT = usual
    return [{"": f"{what}, {where}, {how}", **run} for (what, where, how), run in sorted(best.items())]


def _alone(port: str, count: int) -> dict[str, object]:
    with lockline_locker(port) as locker:
        uncontended({"": locker}, 1, 50)
        spent = time.process_time()
        took = uncontended({"": locker}, 1, count)[""]
        return {"grants/s": 1 / took, "CPU µs a grant": (time.process_time() - spent) / count * 1e6}


def _crowd(server: RedisServer, port: str, processes: int, seconds: float) -> dict[str, object]:
    server.command("FLUSHALL")
    run = contended(lockline_locker, port, processes, 0.0, seconds, method="fork")
    return {"grants/s": run["grants_per_s"], "CPU µs a grant": run["cpu_ms"] * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=16)
    asked = parser.parse_args()
    report = Report("redis_hand_over", {name: importlib.metadata.version(name) for name in ("lockline", "redis")})
    with a_redis() as server:
        for processes in (2, asked.processes):
            rows = stages(server, processes, asked.seconds)
            limit = contended(hand_over_locker, str(server.port), processes, 0.0, asked.seconds, method="fork")
            rows.append({"": HAND_OVER + ", in all", "µs": limit["hand_over_ms"] * 1e3})
            report.table(f"from one body to the next, {processes} processes, nothing inside", rows)
        report.table("awake or asleep", awake(server, asked.rounds, asked.seconds, asked.processes))
    report.write()


if __name__ == "__main__":
    main()
