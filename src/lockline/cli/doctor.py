"""`lockline doctor`: is it reachable, what does it promise, what is dangerous about it."""

from __future__ import annotations

import time
from typing import Any

import click

from ..core.backend import Finding
from ..errors import BackendUnavailable, ConfigError, LocklineError
from ..guarantees import Guarantees
from . import codes
from .options import json_option, open_client, print_json, url_option
from .words import printable

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
    "machine": "between the processes of one machine",
    "server": "between all clients of one server",
    "majority": "between all clients of a majority of servers",
    "consensus": "between all clients of a cluster that agrees by consensus",
}
EVENTS = ("release", "expiry", "restart", "failover", "wipe")
PROBE = "lockline/doctor"


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
            client.inspect(PROBE)
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
            "guarantees": _as_json(client.guarantees),
            "findings": [{"level": found.level, "text": found.text, "cure": found.cure} for found in findings],
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


def _tell(
    url: str, problem: LocklineError | None, took: float, guarantees: Guarantees, findings: list[Finding]
) -> None:
    click.secho(printable(url), bold=True)
    if problem is None:
        _line("ok", f"reachable: answered in {took * 1000:.1f} ms")
    else:
        word = "unreachable" if isinstance(problem, BackendUnavailable) else "not usable"
        _line("error", f"{word}: {printable(str(problem))}")
    click.echo()
    click.secho("It guarantees", bold=True)
    survives = [event for event in EVENTS if event in guarantees.token_survives]
    click.echo(f"  exclusion   {guarantees.exclusion}: {EXCLUSION[guarantees.exclusion]}")
    click.echo(f"  order       {'first come, first served' if guarantees.fifo else 'none'}")
    click.echo(f"  wake-up     {'pushed' if guarantees.push else 'by looking again'}")
    click.echo(f"  tokens      keep rising after {', '.join(survives) or 'nothing'}")
    click.echo(f"  tolerates   {printable(guarantees.tolerates)}")
    if findings:
        click.echo()
        click.secho("Findings", bold=True)
    for found in findings:
        _line(found.level, printable(found.text))
        if found.cure:
            click.echo(f"           cure: {printable(found.cure)}")


def _line(level: str, text: str) -> None:
    word, colour = MARKS[level]
    click.echo(f"  {click.style(word.ljust(7), fg=colour)}  {text}")
