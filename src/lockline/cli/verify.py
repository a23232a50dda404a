"""`lockline verify`: does this store, as it is set up, keep what it promises?"""

from __future__ import annotations

import secrets
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click

from ..backends import default
from ..backends.url import scheme_of
from ..errors import BackendUnavailable, ConfigError, LocklineError
from ..lab.verify import planted, report
from ..lab.verify.machine import Interrupted, Machine, RunOutcome, RunProgress, RunWish
from . import codes
from .options import json_option, print_json, seconds, url_option
from .text import count, printable, say, wrapped

UNUSABLE = 2
"""No verdict: too little happened, or the store cannot be used at all."""
PLANTED_SECONDS = 15.0
"""So long the lock that is broken on purpose may take to be found out; it takes one or two."""
LONGEST_TTL = 60.0
"""What a killed worker claimed stands so long, and is waited for: with more than this a run would be waiting."""

EPILOG = """\
\b
Examples:
  lockline verify
  lockline verify redis://localhost:6379 --time 5m --html report.html
  lockline verify etcd://h1,h2,h3 --fault 'kubectl delete pod etcd-0' --every 30s
  lockline verify --json | jq '.promises[] | select(.state == "broken")'
  lockline verify --seed 7 --workers 16

\b
Exit codes:
  0  held     1  broken     2  inconclusive: too little happened, or the store cannot be used
"""
MARKS = {"held": "green", "broken": "red", "not exercised": "yellow"}


@click.command(epilog=EPILOG)
@click.argument("target", metavar="[URL]", required=False)
@url_option
@click.option("--time", "length", metavar="TIME", default="60s", show_default=True, help="How long to run.")
@click.option("--workers", type=click.IntRange(2, 64), default=8, show_default=True, help="Worker processes.")
@click.option("--seed", type=click.IntRange(0), help="Replay the schedule of an earlier run.")
@click.option("--ttl", metavar="TIME", default="2s", show_default=True, help="The ttl of the locks.")
@click.option(
    "--fault",
    "faults",
    metavar="CMD",
    multiple=True,
    help="A fault of your own, by the shell; may be given more than once.",
)
@click.option("--every", metavar="TIME", default="30s", show_default=True, help="How often one of them happens.")
@click.option("--no-faults", is_flag=True, help="Leave workers, network and clocks alone.")
@click.option("--html", "page", metavar="FILE", type=click.Path(dir_okay=False), help="Write a report, one file.")
@json_option
def command(
    target: str | None, url: str | None, config: str | None, length: str, workers: int, seed: int | None, ttl: str,
    faults: tuple[str, ...], every: str, no_faults: bool, page: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Check that a store keeps its promises: many processes that lock, faults from outside, and a judge.

    Safe on a server that others use: all names are under lockline-verify/, the load is bounded, and nothing is left. Workers
    are frozen and killed, the network between them and the server is cut and delayed by a proxy, their clocks are stepped.
    """
    if target is not None and url is not None:
        raise click.UsageError("give the URL once, as an argument or with --url")
    if not all(command.strip() for command in faults):
        raise click.BadParameter("--fault is a command, and this one is empty")
    wish = RunWish(
        url="", seconds=_at_least(length, 1.0, "--time"), workers=workers, ttl=_between(ttl, 0.5, LONGEST_TTL, "--ttl"),
        seed=secrets.randbelow(1_000_000) if seed is None else seed,
        hooks=faults, every=_at_least(every, 0.5, "--every"), strikes=not no_faults,
    )  # fmt: skip
    if page is not None:
        _check_writable(Path(page))
    try:
        wish = replace(wish, url=default.store(url if target is None else target, config=config).url)
        if scheme_of(wish.url) == "memory":
            raise ConfigError("memory: is of one process, and this needs many; try local:")
        bites = _run(
            replace(
                wish,
                seconds=PLANTED_SECONDS,
                workers=4,
                hooks=(),
                strikes=False,
                subject=planted.NAME,
                until_broken=True,
                least=1,
            )
        )
        if not bites.verdict.broken:
            say("the checker does not bite here: a lock that is broken on purpose was not found out; no verdict")
            return UNUSABLE
        outcome = _run(wish, _display())
    except Interrupted as stopped:
        say(
            "stopped; nothing is left in the store"
            if stopped.cleaned
            else "stopped; the store does not answer, so that what was claimed there is left to its ttl"
        )
        return codes.SIGNALLED + signal.SIGINT
    except LocklineError as problem:
        word = "unreachable" if isinstance(problem, BackendUnavailable) else "not usable"
        say(f"{word}: {printable(str(problem))}" if not isinstance(problem, ConfigError) else printable(str(problem)))
        return UNUSABLE
    written = "" if page is None else _write(Path(page), report.page(outcome))
    if as_json:
        found = bites.verdict
        print_json(
            {
                **report.as_json(outcome),
                "planted": {
                    "found": True,
                    "after_grants": found.grants,
                    "promises": [one.promise for one in found.broken],
                },
            }
        )
    else:
        _tell(outcome, bites, written)
    return outcome.verdict.code


def _at_least(text: str, least: float, option: str) -> float:
    length = seconds(text)
    if length < least:
        raise click.BadParameter(f"{option} is at least {least:g} s")
    return length


def _between(text: str, least: float, most: float, option: str) -> float:
    length = _at_least(text, least, option)
    if length > most:
        raise click.BadParameter(f"{option} is at most {most:g} s")
    return length


def _check_writable(path: Path) -> None:
    """Say it now, and not after the run; nothing is left of the try."""
    there = path.exists()
    try:
        with open(path, "a"):
            pass
        if not there:
            path.unlink()
    except OSError as problem:
        raise click.BadParameter(f"--html {path}: {problem.strerror}") from None


def _write(path: Path, text: str) -> str:
    """Where it is now, in words; a disk that has become full meanwhile takes nothing from the verdict."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        return f"the report could not be written to {shlex.quote(str(path))}: {problem.strerror}"
    return f"the report is in {shlex.quote(str(path))}"


def _run(wish: RunWish, tell: Callable[[RunProgress], None] | None = None) -> RunOutcome:
    machine = Machine(wish, tell)
    with _ended_by_signals(machine):
        return machine.run()


@contextmanager
def _ended_by_signals(machine: Machine) -> Iterator[None]:
    """The first Ctrl-C ends the run in good order, and no later one can disturb that."""

    def came(number: int, frame: FrameType | None) -> None:
        machine.stop()
        if not machine.started:
            raise Interrupted

    kept = {number: signal.signal(number, came) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except Interrupted:
        # All is cleaned up, and the word on it is still to be said.
        for number in kept:
            signal.signal(number, signal.SIG_IGN)
        raise
    finally:
        for number, handler in kept.items():
            if signal.getsignal(number) is came:
                signal.signal(number, handler)


def _display() -> Callable[[RunProgress], None] | None:
    """One line that is written again and again, where somebody looks."""
    if not sys.stderr.isatty():
        return None

    def show(progress: RunProgress) -> None:
        filled = int(20 * min(1.0, progress.elapsed / progress.seconds))
        doing = f" · {progress.doing}" if progress.doing else ""
        sys.stderr.write(
            f"\r\x1b[K{'█' * filled}{'░' * (20 - filled)} {progress.elapsed:.0f} of {progress.seconds:.0f} s · "
            f"{progress.grants:,} grants · {count(progress.faults, 'fault')}{doing}"
        )
        sys.stderr.flush()

    return show


def _tell(outcome: RunOutcome, bites: RunOutcome, written: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    verdict, history = outcome.verdict, outcome.history
    click.secho(printable(outcome.shown_url), bold=True)
    _line(
        "yes",
        "green",
        f"the checker bites here: a lock that is broken on purpose was found out after {count(bites.verdict.grants, 'grant')}",
    )
    for finding in verdict.findings:
        times = f"{finding.broken:,} times, first: " if finding.broken > 1 else ""
        _line(finding.state, MARKS[finding.state], f"{finding.promise}: {times}{printable(finding.text)}")
    click.echo()
    kinds: dict[str, int] = {}
    for fault in history.faults:
        kinds[fault.kind] = kinds.get(fault.kind, 0) + 1
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "none"
    _line(
        "",
        None,
        f"{verdict.grants:,} grants and {verdict.unknown:,} operations without an answer in {history.ended - history.began:.0f} s",
    )
    _line("", None, f"{count(len(history.faults), 'fault')}: {printable(told)}")
    if outcome.network:
        _line("", None, f"faults of the network: not exercised, {outcome.network}")
    _line(
        "",
        None,
        f"the fence refused {verdict.refused:,} late accesses; without it {verdict.lost_without_fence:,} updates were lost",
    )
    for note in outcome.notes:
        _line("note", "yellow", printable(note))
    if written:
        _line("", None, printable(written))
    word = report.word(outcome)
    click.secho(f"{word}{_why(outcome)}", bold=True, fg={"held": "green", "broken": "red"}.get(word, "yellow"))
    if word != "held" or sys.stderr.isatty():
        click.echo(f"the same schedule again: --seed {outcome.wish.seed}")


def _why(outcome: RunOutcome) -> str:
    missing = outcome.verdict.inconclusive
    if not outcome.verdict.code or outcome.verdict.broken:
        return ""
    told = [f"{finding.promise}: {finding.missing}" for finding in missing if finding.missing]
    if outcome.verdict.failed:
        told.append(f"{count(outcome.verdict.failed, 'worker')} ended before its time")
    if little := [finding.promise for finding in missing if not finding.missing]:
        told.append(f"too little happened to speak of {', '.join(little)}; try a longer --time")
    return f": {'; '.join(told)}"


def _line(mark: str, colour: str | None, text: str) -> None:
    lines = wrapped(text, first="", indent=16, most=None)
    click.echo(click.style(f"{mark:14}", fg=colour) + "  " + "\n".join(lines))
