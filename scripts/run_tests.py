"""All tests, in a few groups side by side: most of their time is waiting for leases to run out.

python scripts/run_tests.py [--one-by-one] [pytest options]
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = ROOT / ".test-logs"
SHARED = {"tests/contract", "tests/property"}
"""These run on every backend: each group takes the backends that its own folders are about."""
GROUPS = {
    "zookeeper": (["zookeeper", "zookeeper3"], ["tests/zookeeper"]),
    "etcd": (["etcd", "etcd3"], ["tests/etcd"]),
    "redis": (["redis", "redis-sentinel", "redis-cluster"], ["tests/redis"]),
    "redlock": (["redlock-3", "redlock-5"], ["tests/redlock"]),
    "core": (["memory", "local"], ["tests/core", "tests/local", "tests/cli", "tests/docs", "tests/test_shells.py"]),
    "fence": ([], ["tests/fence"]),
}
"""The longest first."""
ALONE = ["tests/local/test_many_processes.py"]
"""First, with the machine to itself: fifty processes, and a bound on how long anybody may be held up."""
SIDE_BY_SIDE = 4


def check_that_nothing_is_left_out() -> None:
    grouped = {folder for _, folders in GROUPS.values() for folder in folders} | SHARED
    there = {
        f"tests/{path.name}"
        for path in (ROOT / "tests").iterdir()
        if list(path.rglob("test_*.py")) or path.name.startswith("test_")
    }
    if there - grouped:
        sys.exit(f"no group runs {', '.join(sorted(there - grouped))}; add it to {Path(__file__).name}")


def run(name: str, options: list[str]) -> tuple[str, int, str, float]:
    if name == "alone":
        chosen, there = [], ALONE
    else:
        backends, folders = GROUPS[name]
        there = [*folders, *(sorted(SHARED) if backends else [])]
        chosen = [f"--ignore={path}" for path in ALONE]
        chosen += [word for backend in backends for word in ("--backend", backend)]
    began = time.monotonic()
    LOGS.mkdir(exist_ok=True)
    log = LOGS / f"{name}.log"
    with open(log, "w") as output:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--durations=5", *chosen, *options, *there],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return name, ran.returncode, log.read_text(), time.monotonic() - began


def main() -> int:
    options = sys.argv[1:]
    side_by_side = SIDE_BY_SIDE
    if "--one-by-one" in options:
        options.remove("--one-by-one")
        side_by_side = 1
    check_that_nothing_is_left_out()
    counts = {"passed": 0, "failed": 0, "error": 0, "skipped": 0}
    worst = 0

    def take(name: str, code: int, output: str, seconds: float) -> None:
        nonlocal worst
        print(f"== {name}: {seconds:.0f} s, exit code {code}\n{output}", flush=True)
        worst = max(worst, code)
        closing = output.strip().splitlines()[-1] if output.strip() else ""
        for count, what in re.findall(r"(\d+) (passed|failed|error|skipped)", closing):
            counts[what] += int(count)

    take(*run("alone", options))
    with ThreadPoolExecutor(side_by_side) as pool:
        for outcome in pool.map(lambda name: run(name, options), GROUPS):
            take(*outcome)
    failed = counts["failed"] + counts["error"]
    print(f"{counts['passed']} passed, {failed} failed, {counts['skipped']} skipped")
    return worst


if __name__ == "__main__":
    sys.exit(main())
