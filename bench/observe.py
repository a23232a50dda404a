"""What it costs to be listened to, and what it costs when nobody listens: an uncontended pair, acquire and release.

    python bench/observe.py
    python bench/observe.py --baseline ../old/src   # beside another source tree as well

Everything is measured beside a copy of this source from which all that is for listeners was taken out (`without_events.py`). Each kind
is a process of its own, and they take turns, some milliseconds each, many times, through several lives: the machine's moods and a
process's luck with its memory fall on all of them alike. What is counted is the processor's time, of all threads of the process; the best
turn of each kind is its own cost, and the rest is what others did to it. "The copy again" is the copy, once more: how far it is from zero
is how exact all this is.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from report import Report
from without_events import write_without_events

HERE: Final = Path(__file__).resolve()
OURS: Final = HERE.parents[1] / "src"
PAIRS: Final = {"memory": 200, "redis": 50}
"""Pairs in one turn: some milliseconds, so that many turns have the processor to themselves."""
TURNS: Final = 120
LIVES: Final = 8
COPY: Final = "without events"
LISTENERS: Final = ("nobody listens", "an empty listener", "Prometheus", "OpenTelemetry, no SDK")


def listener(kind: str) -> Any:
    if kind == "an empty listener":
        return lambda event: None
    if kind == "Prometheus":
        from lockline.observe.prometheus import PrometheusMetrics

        return PrometheusMetrics()
    if kind == "OpenTelemetry, no SDK":
        from lockline.observe.otel import OpenTelemetry

        return OpenTelemetry()
    return None


def work(url: str, pairs: int, kind: str, source: str) -> None:
    """One process: for each line that it reads, a turn, and the seconds of one pair."""
    import lockline

    assert Path(lockline.__file__).is_relative_to(source), f"{lockline.__file__} is not in {source}"
    lock = lockline.connect(url, on_event=listener(kind)).lock(f"bench/{kind}/{source}")
    gc.disable()
    for _ in sys.stdin:
        began = time.process_time()
        for _ in range(pairs):
            lock.acquire().release()
        print((time.process_time() - began) / pairs, flush=True)
        gc.collect()


@contextmanager
def worker(url: str, pairs: int, kind: str, source: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(HERE), "--work", url, str(pairs), kind, str(source)],
        env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


def turn(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def measure(url: str, pairs: int, kinds: dict[str, tuple[str, Path]], lives: int) -> dict[str, list[float]]:
    """The seconds of a pair in each turn of each kind."""
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for life in range(lives):
        with ExitStack() as running:
            workers = {
                name: running.enter_context(worker(url, pairs, kind, source)) for name, (kind, source) in kinds.items()
            }
            names = list(workers)
            for _ in range(3):  # the interpreter learns its own code by running it
                for process in workers.values():
                    turn(process)
            for number in range(TURNS):
                first = (life + number) % len(names)
                for name in names[first:] + names[:first]:
                    took[name].append(turn(workers[name]))
    return took


def row(name: str, took: list[float], copy: list[float]) -> dict[str, object]:
    return {
        "who listens": name, "µs": min(took) * 1e6, "more": f"{(min(took) / min(copy) - 1) * 100:+.2f} %",
        "median µs": statistics.median(took) * 1e6,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--lives", type=int, default=LIVES)
    parser.add_argument("--work", nargs=4, metavar=("URL", "PAIRS", "KIND", "SOURCE"))
    arguments = parser.parse_args()
    if arguments.work:
        url, pairs, kind, source = arguments.work
        work(url, int(pairs), kind, source)
        return
    sys.path.insert(0, str(HERE.parents[1]))
    from tests.servers.redis import a_redis

    report = Report("observe", {})
    with tempfile.TemporaryDirectory() as folder, a_redis() as server:
        copy = write_without_events(OURS, Path(folder))
        kinds = {COPY: ("", copy), "the copy again": ("", copy), **{kind: (kind, OURS) for kind in LISTENERS}}
        if arguments.baseline:
            kinds["the other tree"] = ("", arguments.baseline.resolve())
        for store, url in (("memory", "memory:bench"), ("redis", server.url)):
            took = measure(url, PAIRS[store], kinds, arguments.lives)
            report.table(f"{store}: one acquire and one release", [row(name, took[name], took[COPY]) for name in kinds])
    report.write()


if __name__ == "__main__":
    main()
