"""`lockline fence`: the check at the resource, for shell scripts."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from urllib.parse import urlsplit

import click

from ..backends.url import redacted, scrubbed
from ..errors import ConfigError, StaleToken
from ..fence.door import Door
from ..fence.file.marks import FileMarks
from ..fence.rule import Offer, a_resource, an_exclusive, may_enter, offer_of, stale
from ..fence.sequencer import parse_sequencer, read_number
from . import codes
from .signals import Stopped
from .supervisor import Supervisor, prepared
from .text import printable, say

STALE = 77
"""The token is stale: a newer holder has been at the resource."""

EPILOG = """\
\b
Examples:
  lockline fence enter marks.db orders/42 "$TOKEN" || exit
  lockline fence enter marks.db orders/42 "$SEQUENCER" -- ./write-the-order.sh
  lockline fence check "$SEQUENCER"
  lockline fence ddl postgresql

\b
Exit codes:
  0   it may pass            77  the token is stale
  64  wrong use              69  the marks cannot be reached
"""


@click.group(epilog=EPILOG)
def command() -> None:
    """Check a fencing token where the data is."""


@command.command("enter", context_settings={"ignore_unknown_options": True})
@click.argument("file_or_url")
@click.argument("resource")
@click.argument("token")
@click.argument("run", nargs=-1, type=click.UNPROCESSED)
@click.option("--lock", help="The lock that a bare number belongs to; without it, the one named like the resource.")
@click.option("--patience", type=float, default=30.0, show_default=True, help="Seconds to wait for another entrant.")
def enter(file_or_url: str, resource: str, token: str, run: tuple[str, ...], lock: str | None, patience: float) -> int:
    """Raise the mark of RESOURCE to TOKEN; exit 77 if a newer one was there.

    FILE-OR-URL is where the marks are kept: a SQLite file (made if it is not there), a folder, redis:// or postgresql://.
    Passwords that other users of the machine must not see go into REDISCLI_AUTH and PGPASSWORD. TOKEN is a number or a sequencer. With a command behind `--`, the command runs inside: nobody else enters meanwhile.
    """
    resource = a_resource(resource)
    offer = _offer(resource, token, lock)
    if not patience > 0:
        raise ConfigError("patience is a number of seconds greater than zero")

    with closing(door(file_or_url)) as marks:
        admit = partial(marks.admit, resource, offer, writes=False, patience=patience)
        try:
            if run:
                return _enter_and_run(run, admit)
            admit()()
        except StaleToken as refusal:
            say(str(refusal))
            return STALE
    return codes.FINE


def _enter_and_run(run: tuple[str, ...], admit: Callable[[], Callable[[], None]]) -> int:
    """As `lockline run` does: signals go to the group, and the fence is left when its last process has ended."""
    try:
        with prepared(run) as begin:
            with begin.in_line():
                leave = admit()
            try:
                # Where the kernel closes the fence behind a killed process, the watchdog keeps it shut until the group has ended.
                handle = getattr(leave, "handle", None)
                if handle is not None:
                    begin.watchdog.hold(handle)
                ending = Supervisor(begin, None).run({})
            finally:
                leave()
    except Stopped as stopped:
        return codes.SIGNALLED + stopped.number
    if ending.problem:
        say(ending.problem)
    return ending.code


@command.command("check")
@click.argument("sequencer")
@click.argument("file_or_url", required=False)
@click.argument("resource", required=False)
def check(sequencer: str, file_or_url: str | None, resource: str | None) -> int:
    """Read a sequencer and print its lock, mode and token; with marks and a RESOURCE, exit 77 if it is stale there.

    Nothing is changed: only `enter` raises a mark.
    """
    read = parse_sequencer(sequencer)
    click.echo(f"{printable(read.lock)}\t{read.mode}\t{read.token}")
    if file_or_url is None:
        return 0
    if resource is None:
        raise click.UsageError("name the RESOURCE as well")
    an_exclusive(read.mode)
    offer = Offer(read.lock, read.token, read.grant)
    with closing(door(file_or_url)) as marks:
        mark = marks.look(a_resource(resource), read.lock)
    if may_enter(mark, offer):
        return 0
    say(str(stale(resource, mark, offer)))
    return STALE


@command.command("ddl")
@click.argument("dialect", type=click.Choice(["sqlite", "postgresql", "mysql", "other"]))
@click.option("--table", default="lockline_fence", show_default=True)
def ddl(dialect: str, table: str) -> None:
    """Print the statement that makes SqlFence's table, for a migration."""
    from ..fence.sql import SqlFence

    click.echo(SqlFence(table).ddl(dialect) + ";")


def door(where: str) -> Door:
    """Where the marks are kept."""
    scheme = urlsplit(where).scheme
    if scheme in ("redis", "rediss", "unix"):
        try:
            import redis
        except ModuleNotFoundError:
            raise ConfigError("'redis' is not installed; this needs: pip install 'lockline[redis]'") from None
        from ..fence.redis.marks import RedisMarks

        try:
            # What the URL says comes first. The arguments of a process are visible to all users of its machine.
            return RedisMarks(redis.Redis.from_url(where, password=os.environ.get("REDISCLI_AUTH")))
        except ValueError as problem:
            raise ConfigError(f"{redacted(where)!r} is not usable: {scrubbed(str(problem), where)}") from None
    if os.path.isdir(where):
        return FileMarks(where)
    from ..fence.sql.marks import SqlMarks

    return SqlMarks(where)


def _offer(resource: str, token: str, lock: str | None) -> Offer:
    if ":" in token:
        return offer_of(resource, token, lock)
    return offer_of(resource, read_number(token), lock)
