"""`lockline run`: a command under a lock."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import click

from ..backends import default
from ..backends.default import Store
from ..core.arguments import a_limit, a_name, a_timeout, a_ttl
from ..core.shells import backend_of
from ..errors import AcquireTimeout, LeaseLost, LocklineError
from ..sync import Client, Lease, Lock, connect
from . import codes
from .options import complete_name, seconds, url_option
from .signals import Stopped
from .supervisor import Ending, Supervisor, prepared
from .text import everybody, printable, say
from .waiting import WaitingLine, on_terminal
from .watchdog import Watchdog

EPILOG = """\
\b
Examples:
  lockline run nightly-backup -- ./backup.sh --full
  lockline run deploy --timeout 5m -- make deploy
  lockline run deploy --no-wait -- make deploy || echo "busy or failed: $?"
  lockline run report --shared -- ./read-everything.sh
  lockline run gpu --limit 2 -- python train.py
  lockline run report --no-wait --quiet --busy-code 0 --require server -- ./report.sh
  lockline run import -- sh -c './import --fencing-token "$LOCKLINE_TOKEN"'

\b
The command gets LOCKLINE_NAME, LOCKLINE_TOKEN, LOCKLINE_OWNER and LOCKLINE_URL.

\b
Exit code: the command's own (128+n when signal n ended it), or
  64  wrong use                               76  the lease was lost, the command was stopped
  69  the backend is unreachable             126  the command cannot be run
  75  the lock was busy, or --timeout passed  127  the command was not found
      (another one with --busy-code)
"""

GRACE = 1 / 4
LONGEST_GRACE = 10.0
"""A command has this share of the ttl between TERM and KILL when the lease cannot be renewed, and not more than this."""
MOST_GRACE = 1 / 2
"""Right before a renewal about two thirds of the ttl are left: with more grace than this, TERM would come for nothing."""


@click.command(epilog=EPILOG)
@click.argument("name", shell_complete=complete_name)
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option(
    "--ttl", type=seconds, metavar="S", default="10", show_default=True,
    help="Seconds after which others get the lock when this machine goes silent. Renewed while the command runs.",
)  # fmt: skip
@click.option("--timeout", type=seconds, metavar="S", help="Wait at most this long. Without it: for ever.")
@click.option("--no-wait", is_flag=True, help="Do not wait at all: exit 75 when the lock is taken.")
@click.option("--shared", is_flag=True, help="Share the lock with others that say --shared; exclude those that do not.")
@click.option("--limit", type=int, metavar="N", help="Let N hold it at a time. All users of the name say the same N.")
@click.option(
    "--grace", type=seconds, metavar="S",
    help="Seconds between TERM and KILL when the lease cannot be renewed; both come before it ends. "
    "At most half the ttl.  [default: a quarter of the ttl, at most 10]",
)  # fmt: skip
@click.option(
    "--quiet", "-q", is_flag=True, help="Say nothing of the wait, the store or a busy lock; only what went wrong."
)
@click.option(
    "--busy-code", type=click.IntRange(0, 255), metavar="N", default=codes.BUSY, show_default=True,
    help="The exit code when the lock was busy or --timeout passed.",
)  # fmt: skip
@url_option
@click.option(
    "--require", metavar="KIND",
    help="Refuse any other backend than this kind: server (whichever), redis, redlock, zk, etcd or local. "
    "Without it: $LOCKLINE_REQUIRE.",
)  # fmt: skip
def command(
    name: str,
    command: tuple[str, ...],
    ttl: float,
    timeout: float | None,
    no_wait: bool,
    shared: bool,
    limit: int | None,
    grace: float | None,
    quiet: bool,
    busy_code: int,
    url: str | None,
    config: str | None,
    require: str | None,
) -> int:
    """Run COMMAND while holding the lock NAME; wait in line for it first.

    The command runs in a process group of its own and gets the signals that lockline gets. The lock is kept until the last
    process of the group has ended, and the group is stopped before the lease runs out.
    """
    if no_wait and timeout is not None:
        raise click.UsageError("--no-wait and --timeout exclude each other")
    if shared and limit is not None:
        raise click.UsageError("--shared and --limit exclude each other")
    if grace is not None and not 0 <= grace <= ttl * MOST_GRACE:
        raise click.UsageError(f"--grace must be from 0 to half the ttl, which is {ttl * MOST_GRACE:g} s")
    # All that can be wrong with the arguments is found before there is a second process.
    a_name(name), a_ttl(ttl), a_timeout(timeout)
    if limit is not None:
        a_limit(limit)
    store = default.store(url, config=config, require=require)

    try:
        with prepared(command) as begin, connect(store.url) as client:
            if client.guarantees.exclusion == "process":
                raise click.UsageError(f"{client.url} cannot keep processes apart; use local: or a server")
            if not quiet:
                _tell_the_store(name, client, store)
                if not (no_wait or shared or limit) and _inside(name, _for_the_command(client, store)):
                    say(f"this already runs under {printable(name)}, and may wait for itself")
            meta = {"command": os.path.basename(command[0])[:128]}
            if shared:
                lock = client.rwlock(name, ttl, meta=meta).read()
            elif limit is not None:
                lock = client.semaphore(name, limit, ttl, meta=meta)
            else:
                lock = client.lock(name, ttl, meta=meta)
            _entrust(client, begin.watchdog)
            try:
                with begin.in_line():
                    lease = _acquire(client, lock, timeout, no_wait, quiet)
            except AcquireTimeout as late:
                if not quiet:
                    say(printable(str(late)))
                return busy_code
            if lease is None:
                if not quiet:
                    _tell_who_has_it(client, name)
                return busy_code
            lease.check()
            if grace is None:
                grace = min(ttl * GRACE, LONGEST_GRACE)
            return _let_go(lease, Supervisor(begin, lease, grace=grace).run(_environment(client, lease, store)))
    except Stopped as stopped:
        return codes.SIGNALLED + stopped.number


def _tell_the_store(name: str, client: Client, store: Store) -> None:
    """On a terminal, where the lock is: a lock on this machine alone is easily taken for one between all machines."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    where = printable(client.url)
    if store.said_by is None:
        where = "this machine only (no --url, LOCKLINE_URL or lockline.toml)"
    say(f"{printable(name)} on {where}", dim=True)


def _inside(name: str, url: str) -> bool:
    """Whether we were started by a command that runs under this very lock."""
    return (
        os.environ.get("LOCKLINE_NAME") == name
        and "LOCKLINE_TOKEN" in os.environ
        and os.environ.get("LOCKLINE_URL") == url
    )


def _entrust(client: Client, watchdog: Watchdog) -> None:
    """Where the store knows at once of a process that died, let it look at the watchdog as well."""
    entrust = getattr(backend_of(client), "entrust", None)
    if entrust is not None:
        watchdog.hold(entrust(watchdog.pid))


def _acquire(client: Client, lock: Lock, timeout: float | None, no_wait: bool, quiet: bool) -> Lease | None:
    if no_wait:
        return lock.try_acquire()
    if quiet or not on_terminal():
        return lock.acquire(timeout)
    with WaitingLine(client, lock.name):
        return lock.acquire(timeout)


def _tell_who_has_it(client: Client, name: str) -> None:
    text = f"{printable(name)} is taken"
    try:
        holders = client.inspect(name).holders
    except LocklineError:
        holders = ()
    if holders:
        text += f", held by {everybody(holders)}"
    say(text)


def _environment(client: Client, lease: Lease, store: Store) -> dict[str, str]:
    return {
        "LOCKLINE_NAME": lease.name,
        "LOCKLINE_TOKEN": str(lease.token),
        "LOCKLINE_OWNER": lease.owner,
        "LOCKLINE_URL": _for_the_command(client, store),
    }


def _for_the_command(client: Client, store: Store) -> str:
    """The store's URL for a `lockline` inside, with its password and options: only this user can read the environment.

    `client.url` is without them. But of a file on this machine it is the whole truth, wherever the command thinks its home is.
    """
    return client.url if client.guarantees.exclusion == "machine" else store.url


def _let_go(lease: Lease, ending: Ending) -> int:
    if ending.problem:
        with suppress(LocklineError):  # it expires by itself, and the reason to end is another
            lease.release()
        say(ending.problem)
        return ending.code
    lost = ending.lost
    try:
        lease.release()
    except LeaseLost as problem:
        lost = lost or problem
    except LocklineError as problem:
        # The work was done under a valid lease. The lock is free when the ttl is over, if not before.
        say(f"the lock could not be released and will expire by itself: {printable(str(problem))}")
    if lost is None:
        return ending.code
    say(printable(str(lost)))
    return codes.LOST
