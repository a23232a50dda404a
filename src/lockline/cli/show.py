"""`lockline show`: one line, in order."""

from __future__ import annotations

import click

from ..core.claim import Line, Standing
from .options import claim_as_json, json_option, look, name_argument, open_client, print_json, url_option
from .text import age, count, duration, ordinal, print_table, printable, who

EPILOG = """\
\b
Examples:
  lockline show nightly-backup
  lockline show nightly-backup --json | jq '.holders[0].token'
"""


@click.command(epilog=EPILOG)
@name_argument
@url_option
@json_option
def command(name: str, url: str | None, config: str | None, as_json: bool) -> None:
    """Show one line: who holds NAME, since when, under which token, and who waits for it."""
    with open_client(url, config) as client:
        line = look(client, name)
    if as_json:
        print_json(
            {
                "name": line.name,
                "holders": [claim_as_json(claim) for claim in line.holders],
                "waiters": [claim_as_json(claim) for claim in line.waiters],
            }
        )
        return
    if not line.claims:
        click.echo(f"{printable(name)} is free: nobody holds it or waits for it")
        return
    click.echo(
        f"{click.style(printable(name), bold=True)}: {count(len(line.holders), 'holder')}, {len(line.waiters)} waiting"
    )
    marked = [claim.holds for claim in line.claims]
    print_table(("", "WHO", "KIND", "TOKEN", "FOR", "EXPIRES IN"), _rows(line), marked)


def _rows(line: Line) -> list[tuple[str, ...]]:
    holders = [_row("detached" if claim.detached else "holds", claim) for claim in line.holders]
    return holders + [_row(f"{ordinal(place)} in line", claim) for place, claim in enumerate(line.waiters, 1)]


def _row(state: str, claim: Standing) -> tuple[str, ...]:
    token = str(claim.token) if claim.holds else "-"
    return (state, who(claim), claim.kind, token, age(claim.began), duration(claim.remaining))
