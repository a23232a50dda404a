"""`lockline lead`: a command on one machine at a time, for as long as there is one that leads."""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

import click

from ..backends import default
from ..core.arguments import a_name, a_ttl
from ..errors import BackendUnavailable
from ..runtime import clock
from ..sync import connect
from . import codes
from .options import WithCommand, complete_name, grace_option, no_url, require_option, seconds, url_option
from .signals import ASKING, Signals, Stopped
from .supervisor import Supervisor, prepared
from .text import printable, say
from .under import a_grace, entrust, environment, give_back, refuse_one_process, tell_the_store

EPILOG = """\
\b
Examples:
  lockline lead scheduler -- python -m scheduler
  lockline lead scheduler --require server -- ./scheduler.sh
  lockline lead scheduler --ttl 30 --grace 5s -- ./scheduler.sh
  lockline show scheduler                 who leads, who stands behind

\b
The command gets LOCKLINE_NAME, LOCKLINE_TOKEN (the term), LOCKLINE_OWNER and LOCKLINE_URL.

\b
Exit code: the command's own when it ends by itself (128+n when signal n ended it), or
  64  wrong use                   126  the command cannot be run
  69  the store says no           127  the command was not found
"""

PAUSE: Final = 1.0
"""Seconds between two tries at a store that does not answer."""


@click.command(cls=WithCommand, epilog=EPILOG)
@click.argument("name", shell_complete=complete_name, callback=no_url)
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option(
    "--ttl", type=seconds, metavar="S", default="10", show_default=True,
    help="Seconds after which another leads when this machine goes silent. Renewed while the command runs.",
)  # fmt: skip
@grace_option
@click.option("--quiet", "-q", is_flag=True, help="Say nothing of the store or of a change; only what went wrong.")
@url_option
@require_option
def command(
    name: str,
    ttl: float,
    grace: float | None,
    command: tuple[str, ...],
    quiet: bool,
    url: str | None,
    config: str | None,
    require: str | None,
) -> int:
    """Run COMMAND while this process leads NAME: start it on every machine, and it runs on one.

    When the lease is lost the command is stopped before another one leads, and this stands in the line again. When the
    command ends, or a signal asks us to, the next one leads at once.
    """
    # Blocked while one program took the place of the other; nothing is held yet, so one that came in between may end us.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
    grace = a_grace(grace, ttl)
    a_name(name), a_ttl(ttl)
    store = default.store(url, config=config, require=require)
    try:
        with prepared(command) as begin:
            signals = begin.signals
            with connect(store.url) as client:
                refuse_one_process(client)
                if not quiet:
                    tell_the_store(name, client, store)
                entrust(client, begin.watchdog)
                with begin.in_line():
                    lease = client.lock(name, ttl, meta={"command": os.path.basename(command[0])[:128]}).acquire()
                if not quiet:
                    say(f"leads {printable(name)}, term {lease.token}", dim=True)
                ending = Supervisor(begin, lease, grace=grace).run(environment(client, lease, store))
                lost = give_back(lease, ending)
            if lost is None or ending.asked is not None:
                return ending.code
            return _begin_again(signals)
    except Stopped as stopped:
        return codes.SIGNALLED + stopped.number
    except BackendUnavailable as away:
        if away.permanent:
            raise
        say(f"{printable(str(away))}; standing again")
        return _begin_again(signals, PAUSE)


def _begin_again(signals: Signals, pause: float = 0.0) -> int:
    """Become the same program anew: what watches over the command is forked before there is any thread or connection.

    A signal that asks us to go has only been collected since the line was left: then there is nothing to begin again.
    """
    until = clock.now() + pause
    while True:
        left = until - clock.now()
        if left <= 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
        for number in signals.wait(left):
            if number in ASKING:
                return codes.SIGNALLED + number
        if left <= 0:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
