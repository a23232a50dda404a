"""The group of all commands, and the one place where errors become exit codes."""

from __future__ import annotations

import importlib
import logging
import os
import signal
from collections.abc import Sequence

import click

from .. import __version__
from ..errors import AcquireTimeout, ConfigError, LeaseLost, LineFull, LocklineError
from . import COMMANDS, codes
from .text import printable, say

EPILOG = """\
\b
Examples:
  lockline run nightly-backup -- ./backup.sh
  lockline run deploy --no-wait -- make deploy || echo "someone else deploys"
  lockline run gpu --limit 2 -- python train.py
  lockline run nightly --once-per 1d -- ./report.sh
  lockline lead scheduler -- ./scheduler.sh
  lockline once prices --fresh 10m -- curl -fsS https://example.org/prices
  lockline ls
  lockline doctor redis://localhost:6379

\b
Exit codes:
  64  wrong use              75  the lock was busy, or the wait timed out
  69  backend unreachable    76  the lease was lost
"""


class LazyCommands(click.Group):
    """Imports a command when it is called, so that each starts fast and needs only its own extra."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        try:
            module = importlib.import_module(f"{__package__}.{entry.module}")
        except ModuleNotFoundError as missing:
            if missing.name and missing.name.startswith("lockline"):
                raise
            raise click.UsageError(
                f"`lockline {cmd_name}` needs {missing.name}; install it with: pip install 'lockline[{entry.extra}]'"
            ) from None
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(cls=LazyCommands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lockline")
@click.pass_context
def lockline(ctx: click.Context) -> None:
    """Locks between processes and machines: fair, with fencing tokens, and honest about what they guarantee."""
    # None leaves it to click: colours on a terminal, none elsewhere.
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    ctx.color = False if plain else None


def run(arguments: Sequence[str]) -> int:
    """The exit code of one call of `lockline` with these arguments."""
    # What the library would warn of, the commands say themselves, in their own words.
    logging.getLogger("lockline").addHandler(logging.NullHandler())
    # A shell that asks for completion passes no arguments either: its question is in the environment.
    if not arguments and "_LOCKLINE_COMPLETE" not in os.environ:
        with click.Context(lockline, info_name="lockline") as ctx:
            click.echo(lockline.get_help(ctx), err=True)
        return codes.USAGE
    try:
        code = lockline.main(list(arguments), prog_name="lockline", standalone_mode=False)
        return code if isinstance(code, int) else codes.FINE
    except click.ClickException as problem:
        _show(problem)
        return codes.USAGE if isinstance(problem, click.UsageError) else problem.exit_code
    except click.Abort as stopped:
        if isinstance(stopped.__cause__, KeyboardInterrupt):
            # In the middle of something, not at a question: what it did by then, only the command can say.
            return codes.SIGNALLED + signal.SIGINT
        say("stopped, nothing was changed")
        return codes.DANGEROUS
    except KeyboardInterrupt:
        return codes.SIGNALLED + signal.SIGINT
    except LocklineError as problem:
        say(printable(str(problem)))
        return code_of(problem)
    except OSError as problem:
        # A full disk under our output, no more processes or files: nobody needs a traceback for that.
        say(f"the system says no: {problem.strerror or problem}")
        return codes.SYSTEM


def _show(problem: click.ClickException) -> None:
    try:
        problem.show()
        if isinstance(problem, click.NoSuchOption) and problem.ctx is not None and problem.ctx.info_name == "run":
            click.echo("Options of the command itself go behind --, as in: lockline run NAME -- ls -l", err=True)
    except OSError:  # nobody can read it; the exit code says it as well
        pass


def code_of(problem: LocklineError) -> int:
    """The exit code that says what went wrong."""
    if isinstance(problem, ConfigError):
        return codes.USAGE
    if isinstance(problem, (AcquireTimeout, LineFull)):
        return codes.BUSY
    if isinstance(problem, LeaseLost):
        return codes.LOST
    return codes.UNREACHABLE
