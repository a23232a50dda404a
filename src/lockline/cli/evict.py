"""`lockline evict`: the operator's force release."""

from __future__ import annotations

import click

from ..core.claim import Standing
from ..sync import Client
from . import codes
from .options import claim_as_json, json_option, look, name_argument, open_client, print_json, url_option
from .terminal import asks
from .text import age, count, everybody, printable

EPILOG = """\
\b
Examples:
  lockline evict nightly-backup
  lockline evict nightly-backup --yes --json
  lockline evict nightly-backup --token 1789467012345678

\b
Exit codes:
  0   they are out, or nobody held it        64  wrong use
  1   nothing was done: you said no, or      69  the backend is unreachable
      another holds it than you were told
"""


@click.command(epilog=EPILOG)
@name_argument
@click.option("--token", type=click.IntRange(min=1), metavar="N", help="Only the holder that has this fencing token.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@url_option
@json_option
def command(name: str, token: int | None, yes: bool, url: str | None, config: str | None, as_json: bool) -> int:
    """Take NAME away from those who hold it now, and let in the next in line.

    Those, and nobody else: who takes over while the question is on the screen keeps it. The victim is told: its lease is lost, and
    `lockline run` stops its command. What the victim writes before it notices is only refused where the resource checks
    fencing tokens.
    """
    with open_client(url, config) as client:
        there = look(client, name).holders
        chosen = [held for held in there if token in (None, held.token)]
        if chosen and not yes and asks():
            question = f"{printable(name)} is held by {everybody(chosen)} for {age(chosen[0].began)}. Take it away?"
            # On stderr, so that `--json > file` still asks the person.
            click.confirm(question, abort=True, err=True)
        victims = [held for held in chosen if client.evict(name, token=held.token)]
        others = [] if victims else _others(client, name, there, chosen)
    if as_json:
        print_json({"name": name, "evicted": len(victims), "holders": [claim_as_json(held) for held in victims]})
    elif victims:
        click.echo(f"{printable(name)}: evicted {count(len(victims), 'holder')}: {everybody(victims)}")
    elif others:
        meant = f"token {token}" if token is not None else everybody(chosen)
        click.echo(
            f"{printable(name)}: nothing done, {meant} no longer holds it; held by {everybody(others)}", err=True
        )
    else:
        click.echo(f"{printable(name)}: nobody held it")
    return codes.DANGEROUS if others else codes.FINE


def _others(client: Client, name: str, there: tuple[Standing, ...], chosen: list[Standing]) -> tuple[Standing, ...]:
    """Who holds it where nobody of those that were meant does."""
    return client.inspect(name).holders if chosen else there
