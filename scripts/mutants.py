"""Breaks the library by hand, one line at a time, and shows which test notices each breakage.

python scripts/mutants.py [options] [NAME ...]        a name may be a pattern, as redis-*

`scripts/mutants.toml` lists the mutants. Each one is applied to a copy of this tree in a temporary folder, so that nothing here changes, and
the tests that have to notice it run there until the first failure. Before that the same tests have to pass without the mutant.
The exit code is 1 if a mutant is not noticed, and 2 if one cannot be tried.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")
LINKED = (".servers",)
"""What the tests only read, and what is too large to copy."""
LEFT_OUT = (".git", ".venv", ".test-logs", ".hypothesis", "*_cache", "site", "dist", "results", *LINKED)
LONGEST = 1200
"""Seconds after which a run of tests counts as hanging."""
FAILED = 1
"""What pytest returns when tests ran and some of them failed; every other error is one of the selection."""
OF_THIS_LIST = "tests/core/test_house.py::test_every_mutant_still_fits_the_source"
"""It fails wherever a mutant was applied, whatever that breaks."""
FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
NOT_NOTICED = "NOT NOTICED"


@dataclass(frozen=True)
class Mutant:
    """One breakage of one file."""

    name: str
    breaks: str
    """What goes wrong, in a sentence."""
    file: str
    """Relative to `src/lockline`."""
    old: str
    new: str
    tests: str
    """Arguments of pytest."""

    def apply(self, root: Path) -> None:
        """Break the copy at this root; ValueError where the old text is not there exactly once."""
        path = root / "src" / "lockline" / self.file
        text = path.read_text()
        if (count := text.count(self.old)) != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: {self.file} has the old text {count} times, and has to have it once")
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True)
class Outcome:
    """What came of one run of tests."""

    noticed: str = ""
    """The first test that failed."""
    problem: str = ""
    """Why the tests could not run."""
    seconds: float = 0.0

    def __str__(self) -> str:
        return self.problem or self.noticed or NOT_NOTICED


def read_mutants() -> list[Mutant]:
    mutants = [Mutant(**told) for told in tomllib.loads(LIST.read_text())["mutant"]]
    names = [mutant.name for mutant in mutants]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two mutants are called {', '.join(sorted(twice))}")
    return mutants


def chosen(mutants: list[Mutant], patterns: list[str]) -> list[Mutant]:
    for pattern in patterns:
        if not any(fnmatchcase(mutant.name, pattern) for mutant in mutants):
            sys.exit(f"no mutant is called {pattern}; --list shows them all")
    return [one for one in mutants if not patterns or any(fnmatchcase(one.name, pattern) for pattern in patterns)]


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tree, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="lockline-mutant-") as folder:
        root = Path(folder) / "lockline"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        for name in LINKED:
            if (ROOT / name).exists():
                (root / name).symlink_to((ROOT / name).resolve())
        yield root


def run_tests(root: Path, tests: str) -> Outcome:
    """Run these tests at this root, up to the first failure."""
    # With CI a server that is not installed is a failure, and not a test that is left out; and the examples of hypothesis are the same each time.
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "CI": "true"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    options = ["-q", "-x", "-rfE", "--tb=short", "--deselect", OF_THIS_LIST]
    command = [sys.executable, "-m", "pytest", *options, *shlex.split(tests)]
    # A group of its own, so that a run that hangs is ended whole.
    with subprocess.Popen(
        command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    ) as running:  # fmt: skip
        try:
            output, _ = running.communicate(timeout=LONGEST)
        except BaseException as problem:
            os.killpg(running.pid, signal.SIGKILL)
            if not isinstance(problem, subprocess.TimeoutExpired):
                raise
            return Outcome(noticed=f"the tests hang for {LONGEST} s", seconds=time.monotonic() - began)
    seconds = time.monotonic() - began
    if running.returncode == 0:
        return Outcome(seconds=seconds)
    first = FIRST_FAILURE.search(output)
    if running.returncode == FAILED and first is not None:
        return Outcome(noticed=first[1], seconds=seconds)
    last = output.strip().splitlines()[-1] if output.strip() else ""
    return Outcome(problem=f"cannot run: pytest returned {running.returncode}: {last}", seconds=seconds)


def try_out(mutant: Mutant) -> Outcome:
    with copied() as root:
        mutant.apply(root)
        return run_tests(root, mutant.tests)


def check_without(mutants: Iterable[Mutant]) -> bool:
    """Whether the tests of these mutants pass as long as nothing is broken; those with the same options run together."""
    paths_by_options: dict[str, dict[str, None]] = {}
    for mutant in mutants:
        named, options = divided(mutant.tests)
        paths_by_options.setdefault(options, {}).update(dict.fromkeys(named))
    good = True
    for options, paths in paths_by_options.items():
        tests = f"{' '.join(paths)} {options}"
        with copied() as root:
            outcome = run_tests(root, tests)
        passed = not outcome.problem and not outcome.noticed
        good = good and passed
        said = "pass" if passed else f"FAIL without any mutant: {outcome}"
        print(f"tests of {len(paths)} files or functions {options}: {said}, {outcome.seconds:.0f} s", flush=True)
    return good


def divided(tests: str) -> tuple[list[str], str]:
    """The paths among these arguments, and the options."""
    words = shlex.split(tests)
    paths = [word for word in words if word.startswith("tests/")]
    return paths, shlex.join(word for word in words if not word.startswith("tests/"))


def table(outcomes: list[tuple[Mutant, Outcome]]) -> str:
    """The outcomes as Markdown."""
    lines = ["| mutant | what breaks | noticed by | seconds |", "|---|---|---|---:|"]
    for mutant, outcome in outcomes:
        by = f"`{outcome.noticed}`" if outcome.noticed else f"**{outcome}**"
        lines.append(
            f"| `{mutant.name}` | {mutant.breaks} | {by.replace('|', chr(92) + '|')} | {outcome.seconds:.0f} |"
        )
    noticed = sum(bool(outcome.noticed) for _, outcome in outcomes)
    return "\n".join([*lines, "", f"{noticed} of {len(outcomes)} mutants are noticed."]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the mutants to try; all of them without a name")
    parser.add_argument("--list", action="store_true", help="say what there is, and check that each one still fits")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many to try at the same time")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mutant first")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to this file")
    options = parser.parse_args()
    mutants = chosen(read_mutants(), options.names)
    with copied() as root:
        for mutant in mutants:
            path = root / "src" / "lockline" / mutant.file
            whole = path.read_text()
            mutant.apply(root)
            path.write_text(whole)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.breaks}\n    {mutant.tests}")
        print(f"{len(mutants)} mutants")
        return 0
    if not options.no_baseline and not check_without(mutants):
        return 2
    outcomes: list[tuple[Mutant, Outcome]] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, outcome in zip(mutants, pool.map(try_out, mutants), strict=True):
            outcomes.append((mutant, outcome))
            print(f"[{len(outcomes)}/{len(mutants)}] {mutant.name}: {outcome}, {outcome.seconds:.0f} s", flush=True)
            if options.markdown is not None:
                # After each one: who ends a long run early keeps what there is.
                options.markdown.write_text(table(outcomes))
    print(f"\n{table(outcomes)}", end="")
    if any(outcome.problem for _, outcome in outcomes):
        return 2
    return 0 if all(outcome.noticed for _, outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
