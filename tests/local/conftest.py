"""A place for stories with more than one user."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user of the machine can reach and write in.

    Not below `tmp_path`: every test run that begins makes the folder of them all private again.
    """
    folder = Path(tempfile.mkdtemp(prefix="lockline-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)
