"""A place for stories with more than one user."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
"""An interpreter that every user can run."""


@pytest.fixture(scope="session")
def source() -> Iterator[Path]:
    """The package where every user can read it, compiled once for all of them."""
    folder = Path(tempfile.mkdtemp(prefix="lockline-source-"))
    folder.chmod(0o755)
    shutil.copytree(ROOT / "src" / "lockline", folder / "lockline", ignore=shutil.ignore_patterns("__pycache__"))
    if PYTHON is not None:
        subprocess.run([PYTHON, "-m", "compileall", "-q", str(folder)], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user of the machine can reach and write in.

    Not below `tmp_path`: every test run that begins makes the folder of them all private again.
    """
    folder = Path(tempfile.mkdtemp(prefix="lockline-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)
