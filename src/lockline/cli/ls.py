"""`lockline ls`: the names that are held or waited for."""

from __future__ import annotations

import click

from ..core.claim import Line
from ..errors import BackendUnavailable
from ..sync import Client
from .options import claim_as_json, json_option, names, no_url, open_client, print_json, url_option
from .text import age, everybody, print_table, printable

EPILOG = """\
\b
Examples:
  lockline ls
  lockline ls orders/
  lockline ls --watch
  lockline ls --json | jq -r '.[] | select(.waiting > 0) | .name'
"""


@click.command(epilog=EPILOG)
@click.argument("prefix", default="", callback=no_url)
@click.option(
    "--watch",
    "-w",
    "watches",
    is_flag=True,
    help="Go on, and show each change: on a terminal in place, elsewhere a line each.",
)
@url_option
@json_option
def command(prefix: str, watches: bool, url: str | None, config: str | None, as_json: bool) -> None:
    """List the names that are held or waited for, those that begin with PREFIX."""
    with open_client(url, config) as client:
        if watches:
            from .watching import watch  # what it needs of the page's room is no concern of a plain list

            watch(client, prefix, as_json=as_json)
            return
        lines, unreadable = _look(client, prefix)
    if as_json:
        print_json([_json(line) for line in lines])
    elif lines:
        print_table(("NAME", "KIND", "TOKEN", "FOR", "WAITING", "HELD BY"), [_row(line) for line in lines])
    elif not unreadable:
        click.echo("nothing is held" + (f" under {printable(prefix)!r}" if prefix else ""), err=True)


def _look(client: Client, prefix: str) -> tuple[list[Line], dict[str, BackendUnavailable]]:
    """The lines, and what cannot be read, which hides no other."""
    lines: list[Line] = []
    unreadable: dict[str, BackendUnavailable] = {}
    for name in names(client, prefix):
        try:
            line = client.inspect(name)
        except BackendUnavailable as problem:
            if not problem.permanent:
                raise
            unreadable[name] = problem
        else:
            lines += [line] if line.claims else []
    if unreadable:
        name, why = next(iter(unreadable.items()))
        count = "1 name" if len(unreadable) == 1 else f"{len(unreadable)} names"
        click.echo(f"left out {count} that cannot be read, first {printable(name)!r}: {why}", err=True)
    return lines, unreadable


def _row(line: Line) -> tuple[str, ...]:
    waiting = str(len(line.waiters))
    if not line.holders:
        return (printable(line.name), "-", "-", "-", waiting, "-")
    first = line.holders[0]
    token = str(max(held.token for held in line.holders))
    return (printable(line.name), first.kind, token, age(first.began), waiting, everybody(line.holders))


def _json(line: Line) -> dict[str, object]:
    return {
        "name": line.name,
        "holders": [claim_as_json(claim) for claim in line.holders],
        "waiting": len(line.waiters),
    }
