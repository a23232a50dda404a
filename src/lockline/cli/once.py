"""`lockline once`: the output of a command, made by one and given to all."""

from __future__ import annotations

import os
import signal
import sys

import click

from ..backends import default
from ..core.arguments import a_name, a_timeout, a_ttl
from ..core.handle import Handle
from ..core.shells import engine_of
from ..errors import ConfigError, OnceFailed
from ..kit.codec import LARGEST
from ..kit.once import flights_of
from ..runtime.blocking import run
from ..sync import connect
from . import codes
from .options import WithCommand, complete_name, no_url, seconds, url_option
from .output import CommandOutput
from .signals import Stopped
from .supervisor import Prepared, Supervisor, prepared
from .text import printable, say
from .under import a_grace, entrust, refuse_one_process

EPILOG = """\
\b
Examples:
  lockline once prices --fresh 10m -- curl -fsS https://example.org/prices
  lockline once report/42 --fresh 1h --timeout 30s -- ./make-report 42 > report.pdf
  lockline show report/42                 who makes it now

\b
Exit code: the command's own, or
  64  wrong use, or more than 1 MiB of output  76  the lease was lost, the command was stopped
  69  the backend is unreachable              127  the command was not found
  75  --timeout passed
"""


class CommandFailed(Exception):
    """The command ended with another code than 0: nothing of it is kept."""

    def __init__(self, code: int, output: bytes, problem: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.output = output
        self.problem = problem


@click.command(cls=WithCommand, epilog=EPILOG)
@click.argument("key", shell_complete=complete_name, callback=no_url)
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
@click.option("--fresh", type=seconds, metavar="S", required=True, help="How old the output may be.")
@click.option("--timeout", type=seconds, metavar="S", help="Wait at most this long. Without it: for ever.")
@click.option(
    "--ttl", type=seconds, metavar="S", default="10", show_default=True,
    help="Seconds after which another one makes it when this machine goes silent. Renewed while the command runs.",
)  # fmt: skip
@url_option
def command(
    key: str,
    command: tuple[str, ...],
    fresh: float,
    timeout: float | None,
    ttl: float,
    url: str | None,
    config: str | None,
) -> int:
    """Print what COMMAND prints: run by one of all who ask for KEY at a time, and not again while that is fresh."""
    a_name(key), a_ttl(fresh, "--fresh"), a_ttl(ttl), a_timeout(timeout)
    store = default.store(url, config=config)
    output = CommandOutput(LARGEST)
    try:
        with prepared(command, output.theirs) as begin, connect(store.url) as client:
            os.close(output.theirs)
            refuse_one_process(client)
            entrust(client, begin.watchdog)
            making = Making(begin, output)
            try:
                with begin.in_line():
                    flights = flights_of(client, engine_of(client))
                    made, code = run(flights.get(key, making, fresh, ttl, timeout, None)), codes.FINE
            except CommandFailed as failed:
                if failed.problem:
                    say(failed.problem)
                made, code = failed.output, failed.code
            except OnceFailed as failed:
                # It ran elsewhere while we waited, and its output stayed there.
                say(printable(str(failed)))
                made, code = b"", int(failed.text) if failed.text.isdigit() else 1
            finally:
                making.end()
    except Stopped as stopped:
        return codes.SIGNALLED + stopped.number
    if sys.stdout is not None:
        sys.stdout.flush()
        with open(sys.stdout.fileno(), "wb", closefd=False) as out:
            out.write(made)
    return code


class Making:
    """The command, run by the one of all who makes it, as `lockline run` does."""

    def __init__(self, begin: Prepared, output: CommandOutput) -> None:
        self._begin = begin
        self._output = output
        self._began = self._given_up = False

    async def __call__(self, lease: Handle) -> bytes:
        """What it prints; CommandFailed, and LeaseLost or Stopped where that is not its own doing."""
        # With --timeout this is not the main thread. From here on a signal goes to the command.
        self._began = True
        self._begin.signals.run_command()
        self._output.begin()
        ending = Supervisor(self._begin, lease, grace=a_grace(None, lease.ttl)).run({})
        made = self._output.whole()
        if self._given_up or ending.asked is not None:
            raise Stopped(ending.asked or signal.SIGTERM)
        if ending.lost is not None:
            raise ending.lost
        if made is None:
            raise ConfigError(
                f"the command prints more than is kept, at most {LARGEST} bytes; keep it elsewhere, and its name here"
            )
        if ending.code or ending.problem:
            raise CommandFailed(ending.code, made, ending.problem)
        return made

    def end(self) -> None:
        """Nobody waits for it any more: what still runs of it ends, too."""
        if self._began:
            self._given_up = True
            self._begin.group.end()
