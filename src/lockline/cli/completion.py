"""`lockline completion`: the script that a shell needs to complete commands, options and lock names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

EPILOG = """\
\b
Examples:
  bash:  lockline completion bash > ~/.local/share/bash-completion/completions/lockline
  zsh:   lockline completion zsh > "${fpath[1]}/_lockline"
  fish:  lockline completion fish > ~/.config/fish/completions/lockline.fish
"""


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL; names of locks are completed as well."""
    complete = get_completion_class(shell)
    assert complete is not None
    script = complete(ctx.find_root().command, {}, "lockline", "_LOCKLINE_COMPLETE")
    # Not `source()`, which for bash starts a bash to look at its version: the script may be for another machine.
    click.echo(script.source_template % script.source_vars())
