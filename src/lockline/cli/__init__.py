"""The `lockline` command: one file per command, each imported only when it is called."""

from __future__ import annotations

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


def main() -> None:
    """Run the command line and leave with its exit code."""
    fill_the_first_three()
    try:
        import click  # noqa: F401
    except ModuleNotFoundError:
        print("lockline: the command line needs click; install it with: pip install 'lockline[cli]'", file=sys.stderr)
        sys.exit(64)
    from .app import run

    sys.exit(run(sys.argv[1:]))
