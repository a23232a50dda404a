"""`lockline evict`: the operator's force release."""

from __future__ import annotations

import sys

import click

from .options import as_json as claim_as_json
from .options import json_option, name_argument, open_client, print_json, url_option
from .words import age, count, everybody, printable

EPILOG = """\
\b
Examples:
  lockline evict nightly-backup
  lockline evict nightly-backup --yes --json
"""


@click.command(epilog=EPILOG)
@name_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@url_option
@json_option
def command(name: str, yes: bool, url: str | None, config: str | None, as_json: bool) -> None:
    """Take NAME away from whoever holds it, and let in the next in line.

    The victim is told: its lease is lost, and `lockline run` stops its command. What the victim writes before it notices
    is only refused where the resource checks fencing tokens.
    """
    with open_client(url, config) as client:
        holders = client.inspect(name).holders
        if holders and not yes and sys.stdin.isatty():
            question = f"{printable(name)} is held by {everybody(holders)} for {age(holders[0].since)}. Take it away?"
            # On stderr, so that `--json > file` still asks the person.
            click.confirm(question, abort=True, err=True)
        evicted = client.evict(name)
    if as_json:
        print_json({"name": name, "evicted": evicted, "holders": [claim_as_json(claim) for claim in holders]})
    elif evicted:
        known = f": {everybody(holders)}" if holders else ""
        click.echo(f"{printable(name)}: evicted {count(evicted, 'holder')}{known}")
    else:
        click.echo(f"{printable(name)}: nobody held it")
