"""How the cost of a Redis lock grows: waiters from 1 to 1,000 on one lock, locks from 1 to 100,000.

Server time per step is what Redis itself measured; memory per claim is what its keys take.

python bench/redis_growth.py [--most 100000]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import redis
from report import Report

from lockline.backends.redis.commands import key_of
from lockline.backends.redis.scripts import ALL, ENTER, LEAVE
from tests.servers.redis import RedisServer, a_redis

ABOUT = '1 1 - 10.0 lock 1700000000.000 "some-host-name:12345"'


class Steps:
    """The backend's own steps, many in a pipeline: the client's time does not count here."""

    def __init__(self, server: RedisServer) -> None:
        self.client = redis.Redis(port=server.port)
        for script in ALL:
            self.client.script_load(script.body)

    def enter(self, pairs: list[tuple[str, str]]) -> None:
        self._run(ENTER.sha, [(key_of(name), claim, 600_000, ABOUT, "1", 610_000) for name, claim in pairs])

    def leave(self, pairs: list[tuple[str, str]]) -> None:
        self._run(LEAVE.sha, [(key_of(name), claim) for name, claim in pairs])

    def _run(self, sha: str, calls: list[tuple[Any, ...]]) -> None:
        for at in range(0, len(calls), 1000):
            pipe = self.client.pipeline(transaction=False)
            for key, *args in calls[at : at + 1000]:
                pipe.evalsha(sha, 1, key, *args)
            pipe.execute()

    def timed(self) -> float:
        """Microseconds per step since the last call."""
        stats = self.client.info("commandstats").get("cmdstat_evalsha", {"usec_per_call": 0.0})
        self.client.config_resetstat()
        return float(stats["usec_per_call"])


def waiters(steps: Steps, count: int, turns: int = 2000) -> dict[str, object]:
    """One lock with so many waiting: a turn is one release that hands over, and one new arrival."""
    steps.client.flushall()
    steps.enter([("lock", f"c{n}") for n in range(count + 1)])
    memory = int(steps.client.memory_usage(key_of("lock"), samples=0) or 0)
    steps.timed()
    best_leave = best_enter = float("inf")
    first, last = 0, count + 1
    for _ in range(4):
        some = turns // 4
        enters, leaves = [], []
        for _ in range(some):
            leaves.append(("lock", f"c{first}"))
            enters.append(("lock", f"c{last}"))
            first, last = first + 1, last + 1
        per_round = max(1, min(count, some))
        spent_leave = spent_enter = 0.0
        rounds = 0
        for at in range(0, some, per_round):
            steps.leave(leaves[at : at + per_round])
            spent_leave += steps.timed()
            steps.enter(enters[at : at + per_round])
            spent_enter += steps.timed()
            rounds += 1
        best_leave, best_enter = min(best_leave, spent_leave / rounds), min(best_enter, spent_enter / rounds)
    return {
        "waiters": count,
        "hand-over µs": best_leave,
        "arrival µs": best_enter,
        "bytes per claim": memory / (count + 1),
    }


def locks(steps: Steps, count: int) -> dict[str, object]:
    """So many locks, each held once."""
    steps.client.flushall()
    before = int(steps.client.info("memory")["used_memory"])
    steps.timed()
    names = [(f"orders/{n}", "0123456789abcdef-1") for n in range(count)]
    steps.enter(names)
    acquire = steps.timed()
    memory = int(steps.client.info("memory")["used_memory"]) - before
    sample = names[:: max(1, count // 2000)]
    steps.leave(sample)
    release = steps.timed()
    return {"locks": count, "acquire µs": acquire, "release µs": release, "bytes per lock": memory / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=100_000)
    asked = parser.parse_args()
    report = Report("redis_growth", {"redis": importlib.metadata.version("redis")})
    with a_redis() as server:
        steps = Steps(server)
        steps.enter([("warm", "w")])
        steps.leave([("warm", "w")])
        report.table("waiters on one lock", [waiters(steps, count) for count in (1, 10, 100, 1000)])
        sizes = [count for count in (1, 100, 1000, 10_000, 100_000) if count <= asked.most]
        report.table("locks held", [locks(steps, count) for count in sizes])
    report.write()


if __name__ == "__main__":
    main()
