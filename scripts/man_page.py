"""The man page, made of what the commands say of themselves: `man_page.py > docs/man/lockline.1`."""

from __future__ import annotations

import re
import sys

import click

from lockline import __version__
from lockline.cli import COMMANDS
from lockline.cli.app import lockline

HEAD = f""".TH LOCKLINE 1 "" "Lockline {__version__}" "User Commands"
.SH NAME
lockline \\- locks between processes and machines
.SH SYNOPSIS
.B lockline
.I COMMAND
[options]
.SH DESCRIPTION
Locks between processes and machines: fair, with fencing tokens, and honest about what they guarantee.
Which store carries the locks is said by \\fB\\-\\-url\\fR, \\fB\\-\\-config\\fR, the variable \\fBLOCKLINE_URL\\fR,
\\fI~/.config/lockline.toml\\fR or \\fI/etc/lockline.toml\\fR, the first of them that names one; otherwise it is this machine alone.
.SH COMMANDS
"""
TAIL = """.SH EXIT STATUS
.TP
64
wrong use
.TP
69
the backend is unreachable; nothing was run
.TP
75
the lock was busy, or the wait timed out
.TP
76
the lease was lost; the command was stopped
.TP
77
a fence refused the token
.SH ENVIRONMENT
.TP
LOCKLINE_URL
the store
.TP
LOCKLINE_REQUIRE
refuse any other kind of store: \\fBserver\\fR, or one kind
.SH FILES
.I ~/.config/lockline.toml
.br
.I /etc/lockline.toml
"""


def roff(text: str) -> str:
    """Text as roff takes it: no line is a request by accident, and hyphens stay what one can type."""
    text = " ".join(text.replace("\b", "").split())
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)


def page_of(command: click.Command, words: list[str]) -> str:
    """A command with its options, and those below it."""
    context = click.Context(command, info_name=" ".join(words))
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f".SS lockline {roff(' '.join(words))} {roff(usage)}", roff(command.help or command.short_help or "")]
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            parts += [".TP", f"\\fB{roff(record[0])}\\fR", roff(record[1])]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            parts.append(page_of(below, [*words, name]))
    return "\n".join(parts)


def main() -> None:
    """Print the page."""
    context = click.Context(lockline, info_name="lockline")
    pages = []
    for name in COMMANDS:
        command = lockline.get_command(context, name)
        assert command is not None
        pages.append(page_of(command, [name]))
    sys.stdout.write(HEAD + "\n".join(pages) + "\n" + TAIL)


if __name__ == "__main__":
    main()
