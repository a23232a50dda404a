"""`lockline once`: the output of a command, made by one and given to all."""

from __future__ import annotations

import subprocess
import sys

import click

from ..backends import default
from ..core.arguments import a_name, a_timeout, a_ttl
from ..errors import OnceFailed
from ..runtime.termination import exit_on_sigterm
from ..sync import connect
from . import codes
from .group import why_not
from .options import complete_name, seconds, url_option
from .text import printable, say
from .under import refuse_one_process

EPILOG = """\
\b
Examples:
  lockline once prices --fresh 10m -- curl -fsS https://example.org/prices
  lockline once report/42 --fresh 1h --timeout 30s -- ./make-report 42 > report.pdf
  lockline show report/42                 who makes it now

\b
Exit code: the command's own, or
  64  wrong use, or more than 1 MiB of output  75  --timeout passed
  69  the backend is unreachable              127  the command was not found
"""


class CommandFailed(Exception):
    """The command ended with another code than 0: nothing of it is kept."""

    def __init__(self, code: int, output: bytes, problem: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.output = output
        self.problem = problem


@click.command(epilog=EPILOG)
@click.argument("key", shell_complete=complete_name)
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
    with exit_on_sigterm(), connect(default.store(url, config=config).url) as client:
        refuse_one_process(client)
        code = codes.FINE
        try:
            output: bytes = client.once(key, lambda: _output_of(command), fresh, ttl=ttl, timeout=timeout)
        except CommandFailed as failed:
            if failed.problem:
                say(failed.problem)
            output, code = failed.output, failed.code
        except OnceFailed as failed:
            # It ran elsewhere while we waited, and its output stayed there.
            say(str(failed))
            output, code = b"", int(failed.text) if failed.text.isdigit() else 1
    sys.stdout.flush()
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(output)
    return code


def _output_of(command: tuple[str, ...]) -> bytes:
    try:
        ran = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    except OSError as problem:
        raise CommandFailed(*_never_ran(problem, command[0])) from None
    if ran.returncode:
        code = ran.returncode if ran.returncode > 0 else codes.SIGNALLED - ran.returncode
        raise CommandFailed(code, ran.stdout)
    return ran.stdout


def _never_ran(problem: OSError, name: str) -> tuple[int, bytes, str]:
    code, text = why_not(problem, printable(name))
    return code, b"", text
