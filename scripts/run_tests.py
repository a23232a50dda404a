"""All tests, in a few groups, four at a time; LOCKLINE_SIDE_BY_SIDE=1 runs one after the other.

python scripts/run_tests.py [pytest options]
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = ROOT / ".test-logs"
SHARED = {"tests/contract", "tests/property"}
"""These run on every backend: each group takes the backends that its own folders are about."""
FULL = bool(os.environ.get("LOCKLINE_FULL"))
"""Also the contract on every other topology, and whole where another store on the same core shows it: it takes an hour more."""
GROUPS: dict[str, tuple[list[str], list[str]]] = {
    "lab": ([], ["tests/lab"]),
    "redlock": (["redlock-3"], ["tests/redlock"]),
    "zookeeper": (["zookeeper"], ["tests/zookeeper"]),
    "core": (["memory", "local"], ["tests/core", "tests/local"]),
    "fence": (["bakery"], ["tests/fence", "tests/backends", "tests/observe"]),
    "etcd": (["etcd"], ["tests/etcd"]),
    "postgresql": (["postgresql"], ["tests/postgresql"]),
    "redis": (["redis"], ["tests/redis"]),
    "consul": (["consul"], ["tests/consul"]),
    "pgbouncer": (["postgresql-pgbouncer"], ["tests/sql"]),
    "mysql": (["mysql"], ["tests/mysql"]),
    "pages": ([], ["tests/web", "tests/docs", "tests/recipes", "tests/packaging"]),
    "verify": ([], ["tests/verify"]),
    "commands": (
        [],
        [
            "tests/cli",
            "tests/kit",
            "tests/types",
            "tests/test_shells.py",
            "tests/test_run_tests.py",
            "tests/test_calm.py",
            "tests/test_setup.py",
        ],
    ),
}
"""The long ones first, so that none begins when the others are nearly done; beside one that works much one that mostly waits."""
MORE_GROUPS: dict[str, tuple[list[str], list[str]]] = {
    "redis topologies": (["redis-sentinel", "redis-cluster"], []),
    "redlock of five": (["redlock-5"], []),
    "zookeeper of three": (["zookeeper3"], []),
    "etcd of three": (["etcd3"], []),
}
ALL_GROUPS = GROUPS | MORE_GROUPS
CROWDS = [
    "tests/local/test_many_processes.py",
    "tests/redis/test_failover.py",
    "tests/redis/test_disturbances.py",
    "tests/redlock/test_live_faults.py",
    "tests/zookeeper/test_faults.py",
    "tests/etcd/test_faults.py",
    "tests/consul/test_faults.py",
    "tests/postgresql/test_bad_minutes.py",
    "tests/mysql/test_killed.py",
    "tests/kit/test_leaders.py",
    "tests/kit/test_crowds.py",
]
"""Many processes each: these have the machine to themselves, one after the other, before the rest."""
CROWDED = ("lab",)
"""Groups that run twenty stories side by side themselves, and so have the machine to themselves too."""
PACE = "2"
"""How much longer than at home the short ttls of the contract are: the machine may be busy with other things."""
SIDE_BY_SIDE = int(os.environ.get("LOCKLINE_SIDE_BY_SIDE", "4"))
"""Most of their time the tests wait for a ttl to pass."""
NEWS_EVERY = 30.0
"""Seconds between two words on how far the groups are that run."""


def check_that_nothing_is_left_out() -> None:
    grouped = {folder for _, folders in ALL_GROUPS.values() for folder in folders} | SHARED
    there = {
        f"tests/{path.name}"
        for path in (ROOT / "tests").iterdir()
        if list(path.rglob("test_*.py")) or path.name.startswith("test_")
    }
    if there - grouped:
        sys.exit(f"no group runs {', '.join(sorted(there - grouped))}; add it to {Path(__file__).name}")


class News:
    """A line for each group that runs, now and then: how many tests it has behind it, and how many of them failed."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Path, float]] = {}
        self._mutex = threading.Lock()
        threading.Thread(target=self._work, daemon=True).start()

    def begins(self, name: str, log: Path) -> None:
        with self._mutex:
            self._running[name] = log, time.monotonic()
        print(f"{name}: begins", flush=True)

    def ends(self, name: str) -> None:
        with self._mutex:
            del self._running[name]

    def _work(self) -> None:
        while True:
            time.sleep(NEWS_EVERY)
            with self._mutex:
                running = list(self._running.items())
            for name, (log, began) in running:
                ran, failed = so_far(log.read_text(errors="replace"))
                print(f"{name}: {ran} tests, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)


def so_far(output: str) -> tuple[int, int]:
    """How many tests pytest has run, and how many of them failed, by the letters that it wrote until now."""
    letters = ""
    for line in output.splitlines():
        if line.startswith("="):  # from here on it tells of the failures
            break
        found = re.fullmatch(r"([.FEsxX]+)(?: *\[ *\d+%\])?", line)
        letters += found[1] if found else ""
    return len(letters), letters.count("F") + letters.count("E")


def run(name: str, options: list[str], news: News) -> tuple[str, int, str, float]:
    if name == "crowds":
        chosen, there = [], CROWDS
    else:
        backends, folders = ALL_GROUPS[name]
        there = [*folders, *(sorted(SHARED) if backends else [])]
        chosen = [f"--ignore={path}" for path in CROWDS]
        chosen += [word for backend in backends for word in ("--backend", backend)]
    began = time.monotonic()
    LOGS.mkdir(exist_ok=True)
    log = LOGS / f"{name}.log"
    with open(log, "w") as output:
        news.begins(name, log)
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--durations=5", *chosen, *options, *there],
            cwd=ROOT,
            env={"LOCKLINE_TEST_PACE": "1" if name == "crowds" else PACE, **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    news.ends(name)
    return name, ran.returncode, log.read_text(), time.monotonic() - began


def main() -> int:
    options = sys.argv[1:]
    check_that_nothing_is_left_out()
    # Whoever starts us in the background ignores these for all below, and a shell cannot trap what it finds ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)
    counts = {"passed": 0, "failed": 0, "error": 0, "skipped": 0}
    worst = 0

    def take(name: str, code: int, output: str, seconds: float) -> None:
        nonlocal worst
        print(f"== {name}: {seconds:.0f} s, exit code {code}\n{output}", flush=True)
        worst = max(worst, code)
        closing = output.strip().splitlines()[-1] if output.strip() else ""
        for count, what in re.findall(r"(\d+) (passed|failed|error|skipped)", closing):
            counts[what] += int(count)

    news = News()
    groups = ALL_GROUPS if FULL else GROUPS
    for alone in ("crowds", *(name for name in groups if name in CROWDED)):
        take(*run(alone, options, news))
    together = [name for name in groups if name not in CROWDED]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for outcome in pool.map(lambda name: run(name, options, news), together):
            take(*outcome)
    failed = counts["failed"] + counts["error"]
    print(f"{counts['passed']} passed, {failed} failed, {counts['skipped']} skipped")
    return worst


if __name__ == "__main__":
    sys.exit(main())
