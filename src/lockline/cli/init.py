"""`lockline init`: make what a database needs before it can carry locks."""

from __future__ import annotations

import click

from ..backends import default, tables_of
from .options import url_option
from .text import printable

EPILOG = """\
\b
Examples:
  lockline init postgresql://localhost/app
  lockline init postgresql://localhost/app?schema=locks
  lockline init mysql://root@localhost/app
  lockline init --print > migrations/0007_lockline.sql

\b
It can be run again, also while locks are held, and by two at once.
The URL may also come from $LOCKLINE_URL.
"""


@click.command(epilog=EPILOG)
@click.argument("target", metavar="[URL]", required=False)
@url_option
@click.option("--print", "prints", is_flag=True, help="Print the statements, for a migration, and do nothing.")
def command(target: str | None, url: str | None, config: str | None, prints: bool) -> None:
    """Make the tables and routines that a database needs to carry locks, in a schema of their own."""
    if target is not None and url is not None:
        raise click.UsageError("give the URL once, as an argument or with --url")
    tables = tables_of(default.store(target or url, config=config).url)
    if prints:
        click.echo(tables.statements, nl=False)
        return
    tables.make()
    click.echo(f"{printable(tables.url)} can carry locks")
