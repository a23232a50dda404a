"""The page about the command line tells the truth: its examples are run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .conftest import Shell

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition("\n")[0][2:42])
def test_an_example_prints_what_the_page_says(shell: Shell, block: str) -> None:
    lines = block.splitlines()
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    expected = [line for line in lines if not line.startswith("$ ")]
    program = shell.program()
    done = subprocess.run(
        ["sh", "-c", "\n".join(commands)],
        env={**shell.env, "PATH": f"{program.parent}:{shell.env['PATH']}"},
        cwd=shell.folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == expected


def test_the_page_names_every_command() -> None:
    from lockline.cli import COMMANDS

    text = PAGE.read_text()
    assert BLOCKS
    assert [name for name in ("run", "ls", "show", "evict", "doctor", "completion") if name not in COMMANDS] == []
    assert [
        name for name in ("run", "ls", "show", "evict", "doctor", "completion") if f"lockline {name}" not in text
    ] == []
