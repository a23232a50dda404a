"""Run all tests in groups, several side by side, and print one table at the end.

    python scripts/run_tests.py [pytest options]

Each group is one pytest process with servers of its own; its output is in `.test-logs/GROUP.log`. `LOCKLINE_FULL=1` runs the
whole product (`make test-full`), `LOCKLINE_SIDE_BY_SIDE=1` one group after the other, `LOCKLINE_SEED=n` repeats the random choices of a run.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.steady_clock import steady_clock  # noqa: E402

LOGS = ROOT / ".test-logs"
FULL = bool(os.environ.get("LOCKLINE_FULL"))
SIDE_BY_SIDE = int(os.environ.get("LOCKLINE_SIDE_BY_SIDE", "12"))
"""More than processors: most of their time the tests wait for a ttl to pass."""
PROGRESS_EVERY_S = 30.0
CLOCK_EVERY_S = 0.25
CLOCK_STEP_S = 0.05


@dataclass(frozen=True)
class Group:
    """One pytest process: these files, and of what runs on every store these backends."""

    name: str
    paths: tuple[str, ...]
    backends: tuple[str, ...] = ()
    full: bool = False
    """In `make test-full` alone."""

    def arguments(self) -> list[str]:
        return [*(word for backend in self.backends for word in ("--backend", backend)), *self.paths]


def parts(count: int, folder: str, *backends: str) -> list[Group]:
    """A folder of many tests in parts, which run side by side: each takes every so-manieth file."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("test_*.py"))
    name = "-".join([Path(folder).name, *backends])
    return [Group(f"{name}-{part + 1}", tuple(files[part::count]), backends) for part in range(count)]


def contract(backend: str, *, full: bool = False) -> Group:
    """The contract on this backend, and random programs beside the reference where it has queues."""
    random_programs = () if backend.startswith("redlock") else ("tests/property",)
    return Group(f"contract-{backend}", ("tests/contract", *random_programs), (backend,), full)


# The longest first, so that none begins when the others are nearly done.
GROUPS = [
    Group("consul", ("tests/consul",)),
    Group("zookeeper", ("tests/zookeeper",)),
    *parts(2, "tests/redis"),
    Group("pages", ("tests/web", "tests/docs", "tests/packaging")),
    Group("recipes", ("tests/recipes", "tests/test_shells.py", "tests/test_run_tests.py", "tests/test_calm.py", "tests/test_setup.py", "tests/test_steady_clock.py")),
    Group("core", ("tests/core", "tests/backends", "tests/types")),
    Group("contract-memory", ("tests/contract",), ("memory",)),
    *parts(2, "tests/contract", "redis"),
    Group("cli", ("tests/cli",)),
    Group("sql", ("tests/sql", "tests/mysql")),
    *parts(2, "tests/redlock"),
    Group("etcd", ("tests/etcd",)),
    *parts(2, "tests/fence"),
    contract("mysql"),
    contract("postgresql"),
    contract("etcd"),
    contract("consul"),
    contract("postgresql-pgbouncer"),
    Group("contract-local", ("tests/contract",), ("local",)),
    contract("zookeeper"),
    Group("kit", ("tests/kit", "tests/local")),
    contract("redlock-3"),
    Group("observe", ("tests/observe",), ("memory", "local", "redis")),
    Group("verify", ("tests/verify",)),
    Group("postgresql", ("tests/postgresql",)),
    contract("bakery"),
    Group("lab", ("tests/lab",)),
    Group("programs", ("tests/property",), ("memory", "local", "redis")),
    contract("redis-sentinel", full=True),
    contract("redis-cluster", full=True),
    contract("redlock-5", full=True),
    contract("zookeeper3", full=True),
    contract("etcd3", full=True),
]  # fmt: skip


@dataclass
class Outcome:
    """How a group ended."""

    name: str
    code: int
    seconds: float
    output: str
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Python itself may write a word on its way out, after pytest's closing line.
        closing = re.findall(
            r"^(.*\d (?:passed|failed|errors?|skipped|deselected).* in [\d.]+s.*)$", self.output, re.MULTILINE
        )
        for number, what in re.findall(r"(\d+) (passed|failed|error|skipped)", closing[-1] if closing else ""):
            self.counts[what] = int(number)

    @property
    def passed(self) -> int:
        return self.counts.get("passed", 0)

    @property
    def failed(self) -> int:
        """At least 1 where the process ended badly: also if it died, or collected no test."""
        return max(self.counts.get("failed", 0) + self.counts.get("error", 0), int(self.code != 0))

    @property
    def skipped(self) -> int:
        return self.counts.get("skipped", 0)

    def failures(self) -> str:
        """What pytest wrote of the failing tests, without the letters before it."""
        begin = re.search(r"^=+ (ERRORS|FAILURES) =+$", self.output, re.MULTILINE)
        return self.output[begin.start() :] if begin else "\n".join(self.output.splitlines()[-40:])

    def missing(self) -> set[str]:
        """The servers and programs that were not there."""
        return set(re.findall(r"^SKIPPED .*? MISSING: (.*)$", self.output, re.MULTILINE))


class Progress:
    """One line now and then: which groups run, and how many tests each has behind it."""

    def __init__(self) -> None:
        self._running: dict[str, Path] = {}
        self._mutex = threading.Lock()
        self._began = time.monotonic()
        threading.Thread(target=self._work, daemon=True).start()

    def begins(self, name: str, log: Path) -> None:
        with self._mutex:
            self._running[name] = log

    def ends(self, outcome: Outcome, left: int) -> None:
        with self._mutex:
            del self._running[outcome.name]
        word = "ok" if not outcome.code else "FAILED"
        print(
            f"{word:6} {outcome.name:28} {outcome.passed:5} tests {outcome.seconds:4.0f} s; {left} groups left",
            flush=True,
        )

    def _work(self) -> None:
        while True:
            time.sleep(PROGRESS_EVERY_S)
            with self._mutex:
                running = list(self._running.items())
            words = []
            for name, log in running:
                ran, failed = so_far(log.read_text(errors="replace"))
                words.append(f"{name} {ran}" + (f" ({failed} failed)" if failed else ""))
            print(f"{time.monotonic() - self._began:4.0f} s: {', '.join(words)}", flush=True)


class ClockWatch:
    """Notes each step of the machine's wall clock, by which Redis and the databases measure a ttl: a step can end a lease early."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._began = time.monotonic()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        offset = _wall_offset()
        while True:
            time.sleep(CLOCK_EVERY_S)
            now = _wall_offset()
            if abs(now - offset) > CLOCK_STEP_S:
                self.steps.append(f"{now - offset:+.2f} s at {time.monotonic() - self._began:.0f} s")
                print(f"the machine's wall clock was stepped: {self.steps[-1]}", flush=True)
            offset = now


def _wall_offset() -> float:
    # The shortest of three looks: the thread may lose its processor between the two clocks.
    looks = []
    for _ in range(3):
        before = time.monotonic()
        wall = time.time()
        after = time.monotonic()
        looks.append((after - before, wall - after))
    return min(looks)[1]


def so_far(output: str) -> tuple[int, int]:
    """How many tests pytest has run, and how many of them failed, by the letters that it wrote until now."""
    letters = ""
    for line in output.splitlines():
        if line.startswith("="):  # from here on pytest describes the failures
            break
        found = re.fullmatch(r"([.FEsxX]+)(?: *\[ *\d+%\])?", line)
        letters += found[1] if found else ""
    return len(letters), letters.count("F") + letters.count("E")


def check_that_nothing_is_left_out() -> None:
    grouped = {"/".join(path.split("/")[:2]) for group in GROUPS for path in group.paths}
    there = {
        f"tests/{path.name}"
        for path in (ROOT / "tests").iterdir()
        if list(path.rglob("test_*.py")) or path.name.startswith("test_")
    }
    if there - grouped:
        sys.exit(f"no group runs {', '.join(sorted(there - grouped))}; add it to {Path(__file__).name}")


def environment() -> dict[str, str]:
    """What the groups run with, and all that they start."""
    # The tests start thousands of programs: what is compiled for one of them is kept for the others.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    steady = steady_clock(LOGS / "clock")
    if not steady:
        print("no C compiler: a step of the machine's wall clock may fail tests of Redis and the databases", flush=True)
    kept |= steady
    kept.setdefault("LOCKLINE_SEED", "1" if os.environ.get("CI") else str(random.randrange(10**6)))
    return kept


def run(group: Group, options: list[str], environment: dict[str, str], progress: Progress) -> Outcome:
    began = time.monotonic()
    LOGS.mkdir(exist_ok=True)
    log = LOGS / f"{group.name}.log"
    with open(log, "w") as output:
        progress.begins(group.name, log)
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--durations=15", *options, *group.arguments()],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Outcome(group.name, ran.returncode, time.monotonic() - began, log.read_text(errors="replace"))


def report(outcomes: list[Outcome], steps: list[str], seconds: float, seed: str) -> None:
    """The failing tests with their output, and the table."""
    for outcome in outcomes:
        if outcome.code:
            print(f"\n== {outcome.name}: exit code {outcome.code}\n{outcome.failures()}")
    print(f"\n{'group':28} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for outcome in sorted(outcomes, key=lambda outcome: -outcome.seconds):
        print(f"{outcome.name:28} {outcome.passed:7} {outcome.failed:7} {outcome.skipped:8} {outcome.seconds:8.0f}")
    missing = sorted(set().union(*(outcome.missing() for outcome in outcomes)))
    for what in missing:
        print(f"\nNOT TESTED, because it is missing here: {what}")
    if steps:
        print(f"\nThe machine's wall clock was stepped {len(steps)} times while the tests ran: {', '.join(steps[:20])}")
    print(f"\n{seconds:.0f} s, seed {seed}; the output of each group is in {LOGS.relative_to(ROOT)}/")


def main() -> int:
    options = sys.argv[1:]
    check_that_nothing_is_left_out()
    # A shell that started this run in the background ignores these for all below, and a program cannot trap what it finds ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)
    began, settings, progress, clock = time.monotonic(), environment(), Progress(), ClockWatch()
    groups = [group for group in GROUPS if FULL or not group.full]
    print(f"{len(groups)} groups, {SIDE_BY_SIDE} side by side, seed {settings['LOCKLINE_SEED']}", flush=True)
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for ended in as_completed([pool.submit(run, group, options, settings, progress) for group in groups]):
            outcomes.append(ended.result())
            progress.ends(outcomes[-1], len(groups) - len(outcomes))
    report(outcomes, clock.steps, time.monotonic() - began, settings["LOCKLINE_SEED"])
    passed, failed, skipped = (sum(getattr(one, what) for one in outcomes) for what in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
