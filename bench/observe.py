"""What it costs to be listened to, and what it costs when nobody listens: an uncontended pair, acquire and release.

    python bench/observe.py                         # beside a client that has no stream at all
    python bench/observe.py --baseline ../old/src   # beside another source tree

The kinds take turns in one process, a short run each, many times; the best run of each counts: what is left then is its own cost
and not the machine's. A baseline from another source tree runs in a process of its own, in turn with ours.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Report

HERE = Path(__file__).resolve()
PAIRS = {"memory": 400, "redis": 120}
"""Pairs in one run: some milliseconds, so that many runs have the processor to themselves."""
ROUNDS = 400


def client_without_stream(url: str) -> Any:
    from lockline.backends import open_backend
    from lockline.core.engine import Engine
    from lockline.runtime.blocking import BlockingRuntime
    from lockline.sync import Client

    runtime = BlockingRuntime()
    return Client(Engine(open_backend(url, runtime, {}), runtime, None))


def kinds(url: str) -> dict[str, Callable[[], Any]]:
    import lockline
    from lockline.observe.otel import OpenTelemetry
    from lockline.observe.prometheus import PrometheusMetrics

    return {
        "no stream at all": lambda: client_without_stream(url),
        "nobody listens": lambda: lockline.connect(url),
        "an empty listener": lambda: lockline.connect(url, on_event=lambda event: None),
        "Prometheus": lambda: lockline.connect(url, on_event=PrometheusMetrics()),
        "OpenTelemetry, no SDK": lambda: lockline.connect(url, on_event=OpenTelemetry()),
    }


def run(lock: Any, pairs: int) -> float:
    """Seconds for one pair."""
    began = time.perf_counter()
    for _ in range(pairs):
        lock.acquire().release()
    return (time.perf_counter() - began) / pairs


def best_of(locks: dict[str, Any], pairs: int, rounds: int) -> dict[str, float]:
    best = dict.fromkeys(locks, float("inf"))
    names = list(locks)
    gc.disable()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            best[name] = min(best[name], run(locks[name], pairs))
            if turn % 20 == 0:
                gc.collect()
    gc.enable()
    return best


def alone(url: str, pairs: int, rounds: int) -> None:
    """A client as `connect` gives it, for the comparison of two source trees."""
    import lockline

    print(best_of({"connect": lockline.connect(url).lock("x")}, pairs, rounds)["connect"])


def other_tree(source: Path, url: str, pairs: int, rounds: int) -> float:
    ran = subprocess.run(
        [sys.executable, str(HERE), "--alone", url, str(pairs), str(rounds)],
        env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(ran.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--alone", nargs=3, metavar=("URL", "PAIRS", "ROUNDS"))
    arguments = parser.parse_args()
    if arguments.alone:
        alone(arguments.alone[0], int(arguments.alone[1]), int(arguments.alone[2]))
        return
    sys.path.insert(0, str(HERE.parents[1]))
    from tests.servers.redis import a_redis

    report = Report("observe", {})
    with a_redis() as server:
        for store, url in (("memory", "memory:bench"), ("redis", server.url)):
            clients = {name: make() for name, make in kinds(url).items()} if store == "memory" else {
                name: make() for name, make in kinds(url).items() if name in ("no stream at all", "nobody listens", "an empty listener")
            }  # fmt: skip
            best = best_of(
                {name: client.lock(name) for name, client in clients.items()}, PAIRS[store], arguments.rounds
            )
            for client in clients.values():
                client.close()
            first = best["no stream at all"]
            report.table(
                f"{store}: one acquire and one release",
                [{"who listens": name, "µs": one * 1e6, "more": f"{(one / first - 1) * 100:+.2f} %"} for name, one in best.items()],
            )  # fmt: skip
            if arguments.baseline:
                theirs, ours = float("inf"), float("inf")
                for _ in range(6):
                    theirs = min(theirs, other_tree(arguments.baseline, url, PAIRS[store], 60))
                    ours = min(ours, other_tree(HERE.parents[1] / "src", url, PAIRS[store], 60))
                report.table(
                    f"{store}: beside {arguments.baseline}",
                    [{"tree": "the other", "µs": theirs * 1e6}, {"tree": "this", "µs": ours * 1e6, "more": f"{(ours / theirs - 1) * 100:+.2f} %"}],
                )  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
