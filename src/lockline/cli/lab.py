"""`lockline lab`: every lock of the literature against every failure of the literature, on real servers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click

# Each has a lock of its own in the laboratory: what is missing is told before anything is started.
import kazoo  # noqa: F401
import psycopg  # noqa: F401
import redis  # noqa: F401

from ..lab.draw import terminal
from ..lab.draw.page import HOME, page
from ..lab.draw.svg import svg
from ..lab.runner import Laboratory
from ..lab.verdicts import Outcome, Verdict
from . import codes
from .file_to_write import writable, write
from .options import json_option, print_json
from .text import count, say

EPILOG = """\
\b
Examples:
  lockline lab --html lab.html
  lockline lab --lock setnx --lock redlock-as-published
  lockline lab show redlock-as-published one-of-five-restarts-empty
  lockline lab list

\b
It starts servers of its own on free ports, in a folder of its own, and stops them.
Exit code 1 if a cell is not what the literature says.
"""


@contextlib.contextmanager
def a_laboratory(pace: float = 1.0) -> Iterator[Laboratory]:
    """Open for as long as the block lasts; Ctrl-C, SIGTERM and SIGHUP end it, and leave nothing behind."""
    opening, came = True, False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal came
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # it is on its way out: once is enough
        came = True
        if not opening:
            raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        before[number] = signal.getsignal(number)
        if number == signal.SIGINT or before[number] != signal.SIG_IGN:  # nohup
            signal.signal(number, stop)
    lab = Laboratory(pace)
    try:
        opening = False
        if came:
            raise KeyboardInterrupt
        yield lab
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        lab.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def a_pace(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """A number between these two; NaN is neither below nor above."""
    if not 0.5 <= value <= 20:
        raise click.BadParameter(f"{value:g} is not in the range 0.5<=x<=20", ctx, param)
    return value


@click.group(invoke_without_command=True, epilog=EPILOG)
@click.option("--lock", "locks", multiple=True, metavar="ID", help="Only this lock; may be given more than once.")
@click.option(
    "--failure", "failures", multiple=True, metavar="ID", help="Only this failure; may be given more than once."
)
@click.option("--html", callback=writable, metavar="FILE", help="Write the matrix and all pictures as one page.")
@click.option("--docs", default=HOME, metavar="BASE", help="Where the page's links to the documentation begin.")
@click.option(
    "--pace",
    type=float,
    callback=a_pace,
    default=1.0,
    help="Make every ttl so many times longer, on a busy machine.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    locks: tuple[str, ...],
    failures: tuple[str, ...],
    html: Path | None,
    docs: str,
    pace: float,
    as_json: bool,
) -> int | None:
    """Run the locks of the literature against its failures, on real servers, and show what becomes of each."""
    if ctx.invoked_subcommand is not None:
        return None
    rows, columns = chosen(locks, known_locks(), "lock"), chosen(failures, known_failures(), "failure")
    with a_laboratory(pace) as lab:
        began = time.monotonic()
        outcomes = run_all(lab, rows, columns, quiet=as_json)
        seconds = time.monotonic() - began
    written = html is None or write(html, page(outcomes, lab.locks, lab.failures, seconds, docs))
    if as_json:
        print_json({"seconds": round(seconds, 1), "cells": [outcome.as_json() for outcome in outcomes.values()]})
    else:
        show_text(terminal.matrix(outcomes, rows, columns, shutil.get_terminal_size().columns))
        tell_the_rest(outcomes, seconds)
        if html is not None and written:
            say(f"the page is {html}")
    if not written:
        return codes.SYSTEM
    return codes.FINE if all(outcome.as_expected for outcome in outcomes.values()) else codes.DANGEROUS


def run_all(lab: Laboratory, rows: list[str], columns: list[str], *, quiet: bool) -> dict[tuple[str, str], Outcome]:
    """The whole matrix, in its order, with a word on how far it is."""
    cells = [(row, column) for row in rows for column in columns]
    progress = Progress(len(cells), quiet=quiet)
    done = {}
    for outcome in lab.matrix(cells, progress.begins):
        done[outcome.lock, outcome.failure] = outcome
        progress.ended(outcome)
    progress.close()
    return {cell: done[cell] for cell in cells}


class Progress:
    """One line that moves on a terminal; elsewhere a line now and then."""

    EVERY = 10.0
    """Seconds between two lines where nothing can be overwritten."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total = total
        self._done = 0
        self._wrong = 0
        self._now: list[tuple[str, str]] = []
        self._moves = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._quiet = quiet and not self._moves
        self._began = self._last = time.monotonic()

    def begins(self, lock: str, failure: str) -> None:
        self._now.append((lock, failure))

    def ended(self, outcome: Outcome) -> None:
        self._done += 1
        self._wrong += not outcome.as_expected
        if (outcome.lock, outcome.failure) in self._now:
            self._now.remove((outcome.lock, outcome.failure))
        if self._moves or time.monotonic() - self._last > self.EVERY:
            self._last = time.monotonic()
            self._show()

    def _show(self) -> None:
        if self._quiet:
            return
        filled = 24 * self._done // self._total
        news = f"{'█' * filled}{'░' * (24 - filled)} {self._done}/{self._total}  {time.monotonic() - self._began:.0f} s"
        if self._wrong:
            news += f"  {self._wrong} unexpected"
        if self._now:
            news += "  " + " under ".join(self._now[0])
        news = terminal.in_characters_of(sys.stderr.encoding, news)
        if self._moves:
            click.echo("\r\x1b[K" + news[: shutil.get_terminal_size().columns - 1], err=True, nl=False)
        else:
            click.echo(news, err=True)

    def close(self) -> None:
        """Leave the line clean."""
        if self._moves:
            click.echo("\r\x1b[K", err=True, nl=False)


def show_text(text: str) -> None:
    """To the terminal, in characters that it has."""
    click.echo(terminal.in_characters_of(sys.stdout.encoding, text))


def known_locks() -> list[str]:
    """By name, without starting anything."""
    from ..lab import locks

    return list(locks.catalogue())


def known_failures() -> list[str]:
    """By name, without starting anything."""
    from ..lab import failures

    return list(failures.catalogue())


def chosen(wanted: tuple[str, ...], known: list[str], what: str) -> list[str]:
    """Those that were asked for, in their order; all if none was."""
    for name in wanted:
        if name not in known:
            raise click.UsageError(f"there is no {what} {name!r}; `lockline lab list` names them")
    return [name for name in known if not wanted or name in wanted]


def tell_the_rest(outcomes: dict[tuple[str, str], Outcome], seconds: float) -> None:
    """What is missing, and what is not as it should be."""
    ran = sum(1 for outcome in outcomes.values() if outcome.verdict.judged)
    click.echo(f"\n{count(ran, 'run')} in {seconds:.0f} s.")
    for reason in sorted({outcome.reason for outcome in outcomes.values() if outcome.verdict is Verdict.MISSING}):
        click.echo(click.style(f"not run: {reason}", fg="bright_black"))
    for outcome in outcomes.values():
        if not outcome.as_expected and outcome.expected is not None:
            show_text(
                f"{terminal.headline(outcome)}, and the literature says {outcome.expected.value}: {outcome.reason}"
            )


@command.command(name="list")
@json_option
def list_all(as_json: bool) -> None:
    """Name every lock and every failure."""
    from ..lab import failures, locks

    if as_json:
        print_json(
            {
                "locks": [
                    {"id": lock.id, "title": lock.title, "source": lock.source} for lock in locks.catalogue().values()
                ],
                "failures": [
                    {"id": each.id, "title": each.title, "story": each.story} for each in failures.catalogue().values()
                ],
            }
        )
        return
    click.secho("Locks", bold=True)
    for lock in locks.catalogue().values():
        click.echo(f"  {lock.id:30} {lock.title}")
    click.secho("Failures", bold=True)
    for failure in failures.catalogue().values():
        click.echo(f"  {failure.id:30} {failure.story}")


@command.command()
@click.argument("lock")
@click.argument("failure")
@click.option("--svg", "picture", callback=writable, metavar="FILE", help="Write the time line as a picture.")
@json_option
def show(lock: str, failure: str, picture: Path | None, as_json: bool) -> int:
    """Run one cell and draw its time line."""
    chosen((lock,), known_locks(), "lock")
    chosen((failure,), known_failures(), "failure")
    with a_laboratory() as lab:
        outcome = lab.run(lock, failure)
    written = picture is None or not outcome.events or write(picture, svg(outcome))
    if as_json:
        print_json(outcome.as_json())
    elif outcome.events:
        show_text(terminal.show(outcome, shutil.get_terminal_size().columns))
    else:
        show_text(f"{terminal.headline(outcome)}: {outcome.reason}")
        if outcome.verdict is Verdict.FAILED:
            click.echo(outcome.facts.get("traceback", ""), err=True)
    if not written:
        return codes.SYSTEM
    return codes.FINE if outcome.as_expected else codes.DANGEROUS
