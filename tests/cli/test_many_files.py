"""A runner that inherits more files than `select` can name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OPENS_MANY = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
for _ in range(1100):
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
os.execv(sys.executable, [sys.executable, "-m", "lockline.cli", *sys.argv[1:]])
"""


@pytest.mark.parametrize("words", [("run", "x"), ("once", "x", "--fresh", "1s")], ids=" ".join)
def test_the_command_runs_although_a_thousand_files_are_inherited(tmp_path: Path, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", OPENS_MANY, *words, "--url", f"local://{tmp_path}/l.db", "--", "echo", "hi"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "hi\n", "")
