"""`lockline doctor`: is it reachable, what does it promise, what is dangerous about it."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

import click

from ..core.backend import Finding
from ..errors import BackendUnavailable, ConfigError, LocklineError
from ..guarantees import Guarantees
from . import codes
from .options import PROBE, json_option, look, open_client, print_json, url_option
from .text import printable, wrapped

EPILOG = """\
\b
Examples:
  lockline doctor
  lockline doctor redis://localhost:6379
  lockline doctor --json | jq '.findings[] | select(.level != "ok")'

\b
Exit codes:
  0  reachable, and nothing wrong    1  a finding of level error    69  unreachable
"""

MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "error": ("error", "red")}
EXCLUSION = {
    "process": "between the threads and tasks of one process",
    "machine": "between the processes of one machine that use this file; each user's local: is a file of its own",
    "server": "between all clients of one server",
    "majority": "between all clients of a majority of servers",
    "consensus": "between all clients of a cluster that agrees by consensus",
}
EVENTS = ("release", "expiry", "restart", "failover", "wipe")


@click.command(epilog=EPILOG)
@click.argument("target", metavar="[URL]", required=False)
@url_option
@json_option
@click.pass_context
def command(ctx: click.Context, target: str | None, url: str | None, config: str | None, as_json: bool) -> int:
    """Say whether the backend is reachable, what it guarantees, and what is dangerous about it."""
    if target is not None and url is not None:
        raise click.UsageError("give the URL once, as an argument or with --url")
    with open_client(target or url, config) as client:
        findings: list[Finding] = []
        problem: LocklineError | None = None
        began = time.perf_counter()
        try:
            look(client, PROBE)
            took = time.perf_counter() - began
            findings = client.examine()
        except ConfigError:
            raise
        except LocklineError as unreachable:
            problem, took = unreachable, 0.0
        report = {
            "url": client.url,
            "reachable": problem is None,
            "problem": None if problem is None else str(problem),
            "answer_seconds": None if problem is not None else round(took, 6),
            # Of a store that is not there nobody can say what it guarantees.
            "guarantees": None if problem is not None else _as_json(client.guarantees),
            "findings": [{"level": found.level, "text": found.text, "cure": _cure(found)} for found in findings],
        }
        if as_json:
            print_json(report)
        else:
            _tell(client.url, problem, took, client.guarantees, findings)
    if problem is not None:
        return codes.UNREACHABLE
    return codes.DANGEROUS if any(found.level == "error" for found in findings) else codes.FINE


def _as_json(guarantees: Guarantees) -> dict[str, Any]:
    return {
        "exclusion": guarantees.exclusion,
        "fifo": guarantees.fifo,
        "push": guarantees.push,
        "token_survives": [event for event in EVENTS if event in guarantees.token_survives],
        "tolerates": guarantees.tolerates,
    }


def wake_up(guarantees: Guarantees) -> str:
    """How a waiter hears of its turn. Where there is no order nobody knows whose turn it is: a push is a hint to all."""
    if not guarantees.push:
        return "by looking again"
    return "pushed" if guarantees.fifo else "hinted"


def _cure(found: Finding) -> str:
    """What to do about it; what is well needs nothing done."""
    return "" if found.level == "ok" else found.cure


def _tell(
    url: str, problem: LocklineError | None, took: float, guarantees: Guarantees, findings: list[Finding]
) -> None:
    click.secho(printable(url), bold=True)
    if problem is not None:
        word = "unreachable" if isinstance(problem, BackendUnavailable) else "not usable"
        _line("error", f"{word}: {printable(str(problem))}")
        return
    _line("ok", f"reachable: answered in {took * 1000:.1f} ms")
    click.echo()
    click.secho("It guarantees", bold=True)
    survives = [event for event in EVENTS if event in guarantees.token_survives]
    _promise("exclusion", f"{guarantees.exclusion}: {EXCLUSION[guarantees.exclusion]}")
    _promise("order", "first come, first served" if guarantees.fifo else "none")
    _promise("wake-up", wake_up(guarantees))
    _promise("tokens", f"keep rising after {', '.join(survives) or 'nothing'}")
    _promise("tolerates", printable(guarantees.tolerates))
    if findings:
        click.echo()
        click.secho("Findings", bold=True)
    for found in findings:
        _line(found.level, printable(found.text))
        if _cure(found):
            _print(printable(_cure(found)), first=f"{'':11}cure: ", indent=17)


def _promise(what: str, text: str) -> None:
    _print(text, first=f"  {what:<12}", indent=14)


def _line(level: str, text: str) -> None:
    word, colour = MARKS[level]
    first, *others = wrapped(text, first=f"  {word:<7}  ", indent=11, most=_width())
    click.echo(f"  {click.style(word, fg=colour)}{first[2 + len(word) :]}")
    for line in others:
        click.echo(line)


def _print(text: str, *, first: str, indent: int) -> None:
    for line in wrapped(text, first=first, indent=indent, most=_width()):
        click.echo(line)


def _width() -> int | None:
    """The columns of the terminal; None where a program reads along, which wants whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
