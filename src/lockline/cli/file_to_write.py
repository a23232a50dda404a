"""A file that a command writes when it is through: that it can be written is seen before, and not after some minutes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from .text import printable, say


def writable(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    """The path that an option names; a usage error if nothing can be written there."""
    if value is None:
        return None
    path = Path(value)
    folder = path.parent
    if path.is_dir():
        problem = "is a folder"
    elif not folder.is_dir():
        problem = f"there is no folder {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        problem = "cannot be written"
    else:
        return path
    raise click.BadParameter(printable(f"{value}: {problem}"), ctx, param)


def write(path: Path, text: str) -> bool:
    """Whether it is there; if not, why not has been said, and no half of it is left."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        say(printable(f"{path} could not be written: {problem.strerror or problem}"))
        if path.is_file():
            with contextlib.suppress(OSError):
                path.unlink()
        return False
    return True
