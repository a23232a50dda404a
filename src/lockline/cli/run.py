"""`lockline run`: a command under a lock."""

from __future__ import annotations

import os

import click

from ..backends import default
from ..core.arguments import a_limit, a_name, a_timeout, a_ttl
from ..errors import AcquireTimeout, LocklineError
from ..kit.sync import Pool, Slot
from ..runtime import clock
from ..sync import Client, Lease, Lock, connect
from . import codes
from .options import (
    WithCommand,
    complete_name,
    grace_option,
    look,
    no_url,
    refuse_url,
    require_option,
    seconds,
    url_option,
)
from .signals import Stopped
from .supervisor import Supervisor, prepared
from .text import LONGEST_COMMAND, everybody, printable, say
from .under import (
    Period,
    a_grace,
    a_pool,
    entrust,
    environment,
    for_the_command,
    give_back,
    lasts,
    refuse_one_process,
    stay,
    tell_the_store,
)  # fmt: skip
from .waiting import WaitingLine, on_terminal

EPILOG = """\
\b
Examples:
  lockline run nightly-backup -- ./backup.sh --full
  lockline run deploy --timeout 5m -- make deploy
  lockline run deploy --no-wait -- make deploy || echo "busy or failed: $?"
  lockline run report --shared -- ./read-everything.sh
  lockline run gpu --limit 2 -- python train.py
  lockline run --pool gpu=0-3 --cuda -- python train.py
  lockline run report --no-wait --quiet --busy-code 0 --require server -- ./report.sh
  lockline run nightly --once-per 1d --require server -- ./report.sh
  lockline run nightly --no-wait --keep-for 5m -- ./report.sh
  lockline run import -- sh -c './import --fencing-token "$LOCKLINE_TOKEN"'

\b
The command gets LOCKLINE_NAME, LOCKLINE_TOKEN, LOCKLINE_OWNER, LOCKLINE_URL, and LOCKLINE_SLOT of a --pool.

\b
Exit code: the command's own (128+n when signal n ended it), or
  64  wrong use                               76  the lease was lost, the command was stopped
  69  the backend is unreachable             126  the command cannot be run
  75  the lock was busy, or --timeout passed  127  the command was not found
      (another one with --busy-code)
"""


@click.command(cls=WithCommand, epilog=EPILOG)
@click.argument("name", shell_complete=complete_name, callback=no_url)
@click.argument("command", nargs=-1, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option(
    "--ttl", type=seconds, metavar="S", default="10", show_default=True,
    help="Seconds after which others get the lock when this machine goes silent. Renewed while the command runs.",
)  # fmt: skip
@click.option("--timeout", type=seconds, metavar="S", help="Wait at most this long. Without it: for ever.")
@click.option("--no-wait", is_flag=True, help="Do not wait at all: exit 75 when the lock is taken.")
@click.option("--shared", is_flag=True, help="Share the lock with others that say --shared; exclude those that do not.")
@click.option("--limit", type=int, metavar="N", help="Let N hold it at a time. All users of the name say the same N.")
@click.option(
    "--pool", metavar="NAME=ITEMS",
    help="Instead of a lock: one item of a pool, as in gpu=0-3 or port=8001,8002. The command gets it as LOCKLINE_SLOT.",
)  # fmt: skip
@click.option("--cuda", is_flag=True, help="With --pool: the item is CUDA_VISIBLE_DEVICES of the command, too.")
@click.option(
    "--once-per", type=seconds, metavar="S",
    help="Run it once in each slot of that length of the store's time, on one machine of all: exit 0 where it is done, and as "
    "busy while another runs it. A command that fails leaves its slot to the next who asks.",
)  # fmt: skip
@click.option(
    "--keep-for", type=seconds, metavar="S",
    help="Hold the lock at least that long from its beginning, also when the command ends before.",
)  # fmt: skip
@grace_option
@click.option(
    "--quiet", "-q", is_flag=True, help="Say nothing of the wait, the store or a busy lock; only what went wrong."
)
@click.option(
    "--busy-code", type=click.IntRange(0, 255), metavar="N", default=codes.BUSY, show_default=True,
    help="The exit code when the lock was busy or --timeout passed.",
)  # fmt: skip
@url_option
@require_option
def command(
    name: str,
    command: tuple[str, ...],
    ttl: float,
    timeout: float | None,
    no_wait: bool,
    shared: bool,
    limit: int | None,
    pool: str | None,
    cuda: bool,
    once_per: float | None,
    keep_for: float | None,
    grace: float | None,
    quiet: bool,
    busy_code: int,
    url: str | None,
    config: str | None,
    require: str | None,
) -> int:
    """Run COMMAND while holding the lock NAME; wait in line for it first. With --pool there is no NAME.

    The command runs in a process group of its own and gets the signals that lockline gets. The lock is kept until the last
    process of the group has ended, and the group is stopped before the lease runs out.
    """
    items: list[str] = []
    if pool is not None:
        # There is no NAME: what stands in its place is the command's first word.
        command = (name, *command)
        name, items = a_pool(pool)
        refuse_url(name, "the pool's name")
        if shared or limit is not None or once_per is not None or keep_for is not None:
            raise click.UsageError("--pool excludes --shared, --limit, --once-per and --keep-for")
    elif not command:
        raise click.UsageError("Missing argument '-- COMMAND...'.")
    if cuda and pool is None:
        raise click.UsageError("--cuda says which device of a --pool the command sees")
    if no_wait and timeout is not None:
        raise click.UsageError("--no-wait and --timeout exclude each other")
    if shared and limit is not None:
        raise click.UsageError("--shared and --limit exclude each other")
    grace = a_grace(grace, ttl)
    if (once_per is not None or keep_for is not None) and (shared or limit is not None):
        raise click.UsageError("--once-per and --keep-for are for one at a time: not with --shared or --limit")
    # All that can be wrong with the arguments is found before there is a second process.
    a_name(name), a_ttl(ttl), a_timeout(timeout)
    if keep_for is not None:
        a_ttl(keep_for, "--keep-for")
    if limit is not None:
        a_limit(limit)
    store = default.store(url, config=config, require=require)

    try:
        with prepared(command) as begin, connect(store.url) as client:
            refuse_one_process(client)
            if not quiet:
                tell_the_store(name, client, store)
                if not (no_wait or shared or limit) and _inside(name, for_the_command(client, store)):
                    say(f"this already runs under {printable(name)}, and may wait for itself")
            meta = {"command": os.path.basename(command[0])[:LONGEST_COMMAND]}
            lock: Lock | Pool[str]
            if pool is not None:
                lock = client.pool(name, items, ttl, meta=meta)
            elif shared:
                lock = client.rwlock(name, ttl, meta=meta).read()
            elif limit is not None:
                lock = client.semaphore(name, limit, ttl, meta=meta)
            else:
                lock = client.lock(name, ttl, meta=meta, keep_for=keep_for if lasts(client) else None)
            period = None if once_per is None else Period(client, name, once_per)
            entrust(client, begin.watchdog)
            try:
                with begin.in_line():
                    if period is not None:
                        asked = clock.now()
                        if period.is_done(timeout):
                            return _tell_done(name, quiet)
                        no_wait = no_wait or timeout is None
                        timeout = None if timeout is None else max(timeout - (clock.now() - asked), 0.0)
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
            began = clock.now()
            if period is not None and period.enter(lease):
                lease.release()
                return _tell_done(name, quiet)
            ending = Supervisor(begin, lease, grace=grace).run(environment(client, lease, store, cuda=cuda))
            if period is not None and ending.code == codes.FINE and not (ending.problem or ending.lost):
                period.finish(lease)
            if keep_for is not None and not lasts(client):
                stay(begin.signals, lease, began + keep_for)
            return ending.code if give_back(lease, ending) is None else codes.LOST
    except Stopped as stopped:
        return codes.SIGNALLED + stopped.number


def _inside(name: str, url: str) -> bool:
    """Whether we were started by a command that runs under this very lock."""
    return (
        os.environ.get("LOCKLINE_NAME") == name
        and "LOCKLINE_TOKEN" in os.environ
        and os.environ.get("LOCKLINE_URL") == url
    )


def _acquire(
    client: Client, lock: Lock | Pool[str], timeout: float | None, no_wait: bool, quiet: bool
) -> Lease | Slot[str] | None:
    if no_wait:
        return lock.try_acquire() if isinstance(lock, Lock) else lock.acquire(timeout=0)
    if quiet or not on_terminal():
        return lock.acquire(timeout)
    with WaitingLine(client, lock.name):
        return lock.acquire(timeout)


def _tell_done(name: str, quiet: bool) -> int:
    if not quiet:
        say(f"{printable(name)} is done for this time")
    return codes.FINE


def _tell_who_has_it(client: Client, name: str) -> None:
    text = f"{printable(name)} is taken"
    try:
        holders = look(client, name).holders
    except LocklineError:
        holders = ()
    if holders:
        text += f", held by {everybody(holders)}"
    say(text)
