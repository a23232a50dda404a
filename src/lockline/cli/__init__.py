"""The `lockline` command: one file per command, each imported only when it is called."""

from __future__ import annotations

import io
import os
import sys
from typing import Final, NamedTuple


class CommandHome(NamedTuple):
    """Where a command lives; its module has it under the name `command`."""

    module: str
    help: str
    extra: str = "cli"
    """What to install when something that the module imports is missing."""


# One line per command. The help stands here too, so that `lockline --help` imports none of them.
COMMANDS: Final = {
    "run": CommandHome("run", "Run a command under a lock."),
    "lead": CommandHome("lead", "Run a command on one machine at a time, and on the next when that one ends."),
    "once": CommandHome("once", "Share the output of a command: one makes it, all get it."),
    "ls": CommandHome("ls", "List the names that are held or waited for."),
    "show": CommandHome("show", "Show one line: who holds it, who waits."),
    "exporter": CommandHome("exporter", "Show the state of a store to Prometheus.", "prometheus"),
    "web": CommandHome("web", "Show every line in the browser, live.", "web"),
    "evict": CommandHome("evict", "Take a lock away from whoever holds it."),
    "doctor": CommandHome("doctor", "Say what a backend guarantees and what is dangerous about it."),
    "verify": CommandHome("verify", "Check that a store keeps its promises, under faults."),
    "init": CommandHome("init", "Make the tables that a database needs to carry locks.", "postgresql"),
    "fence": CommandHome("fence", "Check a fencing token where the data is."),
    "redlock": CommandHome("redlock", "Set up and look after the servers behind redlock://.", "redis"),
    "lab": CommandHome("lab", "Run the locks of the literature against its failures, on real servers.", "lab"),
    "completion": CommandHome("completion", "Print the completion script for a shell."),
}


def fill_the_first_three() -> None:
    """Keep the places of stdin, stdout and stderr taken where we were started without them.

    Or the next pipe or socket gets one of these numbers, and what is meant for a terminal ends up in it. As every file of
    ours they close on exec: the command finds closed what we found closed.
    """
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(lowest)


def drop_the_unwritten() -> bool:
    """Drop what the standard files could not write, on a full disk for example; whether there was anything.

    Or the interpreter tries it once more on its way out, writes of it to stderr, and leaves with its own exit code.
    """
    found = False
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            found = True
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
    return found


def main() -> None:
    """Run the command line and leave with its exit code."""
    fill_the_first_three()
    try:
        import click  # noqa: F401
    except ModuleNotFoundError:
        print("lockline: the command line needs click; install it with: pip install 'lockline[cli]'", file=sys.stderr)
        sys.exit(64)
    from . import codes
    from .app import run

    # A name has any letters, and an old locale only some of them: those that it lacks are shown as their numbers.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    if drop_the_unwritten() and code == codes.FINE:
        code = codes.SYSTEM
    sys.exit(code)
